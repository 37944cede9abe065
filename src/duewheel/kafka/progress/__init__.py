"""The progress of shards in the state topic.

`shard_progress` reads that of one shard once, `progress_reader` again and again, `all_shards` that
of all; `newest` searches a key's newest record. `state_topic` has their places, `broker_clock`
reads the brokers' clock, and `pause_records` writes and follows the pauses beside them.
"""
