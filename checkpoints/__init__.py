"""What a shard knows across restarts: the `state` file, progress, decisions."""
