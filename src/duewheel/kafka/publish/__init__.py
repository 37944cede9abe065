"""A shard's transactions: `publisher` runs them, over the clients of `fenced_session`.

`attempt` has the content of one, `failed_batches` the consequences of a failure. `held_queue`
decides which copies wait; `record_clock` has the timestamps of records; `transactional_ids` takes
another id if Kafka blocks one.
"""
