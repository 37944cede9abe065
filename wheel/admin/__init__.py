"""What an operator changes of a shard: its settings, and losses that are accepted."""
