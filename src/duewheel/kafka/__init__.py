"""Kafka, by kafka-python's clients. Each folder depends on the ones above it:

    connect/     clients that are opened, bounded in time and closed; why a server refuses one
    log/         the one reader: ends, ranges as columns or as records, following
    topics/      topics as Kafka describes them, the settings that they must have, which are read
    targets/     where a transaction may write, cached; partitions that take no writes for now
    progress/    the records of shards in the state topic
    ledger/      transactions: kafka-python's producer, and the exactly-once writer of commands
    publish/     a shard's transaction of deliveries and progress; held copies

Errors, unless a docstring names others: KafkaUnavailable without an answer by a deadline,
ConfigError if the settings, the rights or the versions do not fit.

`transaction_limits.py` has the bounds of transactions, `transaction_errors.py` the meaning of their
errors; `shard_settings.py` derives the bounds from a configuration.
"""
