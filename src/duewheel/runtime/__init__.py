"""The processes of a shard, what they measure, and what keeps them alive."""
