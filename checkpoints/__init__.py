"""The state of a shard across restarts: the `state` file, the progress, and recovery decisions."""
