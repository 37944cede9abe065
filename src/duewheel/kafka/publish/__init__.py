"""A shard's transactions: `publisher` runs them, over the clients of `fenced_session`.

`attempt` has the content of one, `held_queue` decides which copies wait, `record_clock` the
timestamps of records.
"""
