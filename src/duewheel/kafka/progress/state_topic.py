"""Where the records of shards are.

Each shard has a partition of the state topic, the one of its index: an open transaction holds back
the stable offset of every partition that it has written to, and would hide another shard's records.
A partition also receives the transactions of `reshard`; the first one those of all command ledgers
without a topic of their own (kafka/ledger/command_ledger.py), and pauses.
"""

from __future__ import annotations

from duewheel.schemas.batches import TopicPartition


def state_partition(state_topic: str, shard: int) -> TopicPartition:
    """The partition of a shard's records; records of no shard are in that of shard 0."""
    return state_topic, shard
