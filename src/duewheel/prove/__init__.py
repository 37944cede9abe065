"""`duewheel prove`: a shard of its own on the user's cluster, killed under load, and judged."""
