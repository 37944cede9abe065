"""A shard as a whole: its status and readiness, lateness, bounds; pause, resume and promote."""
