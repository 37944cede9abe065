"""The one reader of Kafka.

`connection` finds out where logs begin and end, `reader` reads ranges and follows. `columns` and
`records` decode batches, with the codecs of `compression`, which also compresses deliveries.
`leader_requests` has the requests of `connection` and `reader`, `list_offsets_times` the special
times in them.
"""
