"""The one reader of Kafka.

`ends` finds out where logs begin and end, `reader` reads ranges and follows, `newest`
searches a key's newest record. `columns` and `records` decode batches, with the codecs of
`compression`, which also compresses deliveries. `leader_requests` has the requests of `ends` and
`reader`, `list_offsets_times` the special times in them.
"""
