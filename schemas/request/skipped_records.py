"""Records that the operator has skipped: they become dead letters unread.

Their headers are neither parsed nor kept: the bytes that stop ingest may lie there. Key and value
stay, and the dead letter names the record's offset.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from duewheel.schemas.arrays import Int64
from duewheel.schemas.batches import TimerBatch, TopicPartition
from duewheel.schemas.request.acceptance_rules import Rule, Rules
from duewheel.schemas.request.parser import Contract, parse

_pa: Any = pa
_pc: Any = pyarrow.compute

# Every row fails it, whatever its columns hold.
SKIPPED = Rule(
    "skipped_by_operator",
    "the operator has skipped this record: duewheel reconfigure --skip",
    "due_ms",
    lambda values: np.zeros(len(values), np.bool_),
    nulls_pass=False,
)


def parse_but_skipped(
    table: pa.Table,
    parser: Callable[[pa.Table], TimerBatch],
    skipped: Mapping[TopicPartition, Sequence[int]],
    dead_letter_topic: str,
) -> TimerBatch:
    """The rows of `parser`, with dead letters in the place of the skipped records.

    Args:
        table: as of `parser.parse`, in offset order within a partition.
        parser: of the others.
        skipped: offsets, by partition.
        dead_letter_topic: where the skipped ones go.
    """
    rows = _rows(table, skipped)
    if not len(rows):
        return parser(table)
    contract = Contract((0,), {}, dead_letter_topic, Rules((SKIPPED,), {}, {}, ""))
    bare = table.take(_pa.array(rows))
    at, kind = bare.schema.get_field_index("headers"), bare.schema.field("headers").type
    bare = bare.set_column(at, "headers", _pa.nulls(len(rows), kind))
    others = np.delete(np.arange(table.num_rows), rows)
    batch = parser(table.take(_pa.array(others))).extended_by(parse(bare, contract))
    return batch.take(np.lexsort((batch.offset, batch.partition)))


def _rows(table: pa.Table, skipped: Mapping[TopicPartition, Sequence[int]]) -> Int64:
    """The skipped rows, rising."""
    if not skipped:
        return np.empty(0, np.int64)
    offsets = _pa.array(sorted({offset for each in skipped.values() for offset in each}))
    near = np.flatnonzero(np.asarray(_pc.is_in(table.column("offset"), offsets)))
    few = table.select(["topic", "partition", "offset"]).take(_pa.array(near)).to_pylist()
    is_skipped = [r["offset"] in skipped.get((r["topic"], r["partition"]), ()) for r in few]
    return near[np.array(is_skipped, np.bool_)]
