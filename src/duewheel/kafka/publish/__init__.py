"""A shard's transactions: `publisher` runs them.

`attempt` has the content of one, `held_queue` decides which copies wait, `record_clock` the
timestamps of records.
"""
