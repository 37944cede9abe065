"""Records that the operator has skipped: dead letters that the parser does not see.

Their headers are neither parsed nor kept: the bytes that stop ingest may be there. Key and value
stay, and the dead letter names the record's offset. A compressed or damaged batch that begins with
such a record is not read at all (wire/batch_reader.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from duewheel.schemas.arrays import Int64
from duewheel.schemas.batches import TimerBatch, TopicPartition
from duewheel.schemas.request.acceptance_rules import Rule, Rules
from duewheel.schemas.request.parser import Contract, parse
from duewheel.schemas.request.unread_batches import SKIPPED_CODE
from duewheel.schemas.wire.kafka_records import KafkaRecords

# Every row fails it.
SKIPPED = Rule(
    SKIPPED_CODE,
    "the operator has skipped this record: duewheel reconfigure --skip",
    "due_ms",
    lambda values: np.zeros(len(values), np.bool_),
    nulls_pass=False,
)


def parse_but_skipped(
    records: KafkaRecords,
    parser: Callable[[KafkaRecords], TimerBatch],
    skipped: Mapping[TopicPartition, Sequence[int]],
    dead_letter_topic: str,
) -> TimerBatch:
    """The rows of `parser`, with dead letters for the skipped records. `records` are in offset
    order within a partition; `skipped` has offsets.
    """
    rows = _rows(records, skipped)
    if not len(rows):
        return parser(records)
    contract = Contract((0,), {}, dead_letter_topic, Rules((SKIPPED,), {}, {}, ""))
    bare = records.take(rows).without_headers()
    others = np.delete(np.arange(len(records)), rows)
    batch = parser(records.take(others)).extended_by(parse(bare, contract))
    return batch.take(np.lexsort((batch.offset, batch.partition)))


def _rows(records: KafkaRecords, skipped: Mapping[TopicPartition, Sequence[int]]) -> Int64:
    """The skipped rows, rising."""
    found = np.zeros(len(records), np.bool_)
    for number, partition in enumerate(records.partitions):
        if offsets := skipped.get(partition):
            found |= (records.partition == number) & np.isin(records.offset, np.array(offsets))
    return np.flatnonzero(found)
