"""The HTTP API: `duewheel serve`, a process of its own beside ingest and dequeue.

    connections a silent client does not keep one
    gate        host names, size of a body, requests at a time, headers of every response
    access      tokens: who may read, who may change
    problems    errors as RFC 9457 has them
    models      the JSON of requests and responses
    probes      /livez, /readyz, /metrics
    reads       what is pending, from the mapped files; changes: through Kafka, like any client's
    page        static files
    app         puts them together; server runs it

Each operation calls a function of `ops`, which the command of the same name calls, too.
"""
