"""The records of shards in the state topic: of one shard, of all, and read again and again."""
