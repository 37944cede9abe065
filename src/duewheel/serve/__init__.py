"""The HTTP API: `duewheel serve`, a process of its own beside ingest and dequeue.

connections a silent client does not keep one
gate        host names, size of a body, requests at a time, headers of every response
metrics     requests by operation, beside the metrics of the shard
access      tokens: who may read, who may change
scopes      which timer topics a request touches, and may
problems    errors as RFC 9457 has them
service     the state that operations share; bulkhead: threads for each kind of calls; waits:
            those for replies; file_probe: reads for the probes
change_records
            the log and the topic of changes; record_writer: writes to this topic
url_names   names in URLs
server_connection
            HTTP to the server of another shard; fleet: the status of all of them
shard_requests
            a request to the owner of a shard, as fleet has it; fleet_timers: to all of them
other_shards
            any operation of another shard, by such a request
timers, changes, dead_letters, receipts, schedules, shard
            the operations: each calls one of `ops`, which the command calls, too
page        static files
app         puts them together; server runs it
"""
