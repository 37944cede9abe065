"""The processes of a shard, their metrics, and their supervisor."""
