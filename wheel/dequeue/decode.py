"""Decodes stored messages into deliveries, column by column.

A timer goes to its target unchanged, a rolled one back to its timer topic (requeue.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from duewheel.schemas.arrays import Bool, Int32, Int64
from duewheel.schemas.batches import ANY_TIME, NO_POLICY, Deliveries, TopicPartition
from duewheel.schemas.columns import choose, coded
from duewheel.schemas.hashing import source_names
from duewheel.schemas.wire.record_codec import NO_ORIGIN
from duewheel.wheel.dequeue.requeue import rolled_copies
from duewheel.wheel.dequeue.slot_scan import ScannedChunk
from duewheel.wheel.dequeue.successors import Recurring
from duewheel.wheel.storage.byte_layouts import (
    FLAG_DEAD_LETTER,
    FLAG_RESCHEDULE,
    FLAG_SEED,
    level_of,
)
from duewheel.wheel.storage.message_store import StoredMessages
from duewheel.wheel.storage.topic_numbers import TopicNames, public_name


@dataclass(frozen=True, slots=True)
class DecodedChunk:
    """A chunk's rows as deliveries.

    Attributes:
        chunk: the rows' log records.
        deliveries: the rows.
        sources: the source partitions that `source` indexes.
        source: of each row, index in `sources`.
        offset: source offset of each row; for a timer that rolled, of its copy.
        flags: of each row's stored message (wheel/storage/byte_layouts.py).
    """

    chunk: ScannedChunk
    deliveries: Deliveries
    sources: list[TopicPartition]
    source: Int32
    offset: Int64
    flags: npt.NDArray[np.uint16]

    def part(self, first: int, end: int) -> DecodedChunk:
        """Rows `first` to `end` − 1 alone, with their targets: each later step looks at all
        targets of a part, and a chunk may have as many as rows.
        """
        deliveries = self.deliveries.slice(first, end)
        used, target = np.unique(deliveries.target, return_inverse=True)
        targets = [deliveries.targets[index] for index in used.tolist()]
        return DecodedChunk(
            self.chunk.part(first, end),
            replace(deliveries, targets=targets, target=target.astype(np.int32)),
            self.sources,
            self.source[first:end],
            self.offset[first:end],
            self.flags[first:end],
        )

    @property
    def seed(self) -> Bool:
        """Which rows are seeds of recurring timers."""
        seed: Bool = (self.flags & FLAG_SEED) != 0
        return seed

    def recurring(self, precision_ms: int) -> Recurring:
        """The rows of recurring timers that leave the wheel here: others of them roll."""
        rows = np.flatnonzero(self.chunk.recurring & ~self.deliveries.is_copy)
        # A seed that replaces another timer was taken once the slots before its own were closed:
        # their instants are the other's, which may have fired.
        closed_ms = (self.chunk.slot[rows] - 1) * precision_ms
        replaces = (self.flags[rows] & FLAG_RESCHEDULE) != 0
        due_ms = self.deliveries.due_ms[rows]
        after_ms = np.where(replaces, np.maximum(due_ms, closed_ms), due_ms)
        return Recurring(rows, self.seed[rows], after_ms)


def decode_chunk(chunk: ScannedChunk, messages: StoredMessages, topics: TopicNames) -> DecodedChunk:
    """Decodes a chunk's stored messages as deliveries.

    Raises:
        CorruptFile: a message names a timer topic that was never numbered.
    """
    prefix = messages.prefix
    sources, source = topics.sources(prefix)
    origin_offset = prefix["origin_offset"].astype(np.int64)
    public_sources = [(public_name(topic), number) for topic, number in sources]
    first_source = source_names(public_sources, source, origin_offset)
    if public_sources != sources:
        # A retired topic: in its successor the offset of the first copy would name another record.
        lost = [a != b for a, b in zip(public_sources, sources, strict=True)]
        origin_offset = np.where(np.array(lost, np.bool_)[source], NO_ORIGIN, origin_offset)
    target, targets = coded(messages.target)
    rolled, without_id = chunk.rolled, prefix["id_size"] == 0
    deliveries = Deliveries(
        targets=[(name or b"").decode() for name in targets.to_pylist()],
        target=target.astype(np.int32),
        target_partition=prefix["target_partition"].astype(np.int32),
        key_hash=prefix["key_hash"].astype(np.int32),
        due_ms=prefix["due_ms"].astype(np.int64),
        source_partitions=public_sources,
        source_partition=source,
        origin_offset=origin_offset,
        source=first_source,
        timer_id=first_source
        if without_id.all()
        else choose(without_id, first_source, messages.timer_id),
        key_value=messages.key_value,
        headers=messages.headers,
        header_count=prefix["header_count"].astype(np.int32),
        roll_times=prefix["roll_times"].astype(np.int32),
        retries=prefix["retries"].astype(np.int32),
        level=level_of(chunk.records["magic"]),
        dead_letter=(prefix["flags"] & FLAG_DEAD_LETTER) != 0,
        is_copy=np.zeros(len(rolled), np.bool_),
        not_before_ms=np.full(len(rolled), ANY_TIME),
        policies=[],
        policy=np.full(len(rolled), NO_POLICY, np.int32),
        answer=np.zeros(len(rolled), np.bool_),
    )
    if rolled.any():
        deliveries = rolled_copies(deliveries, rolled)
    offset = prefix["source_offset"].astype(np.int64)
    flags = prefix["flags"].astype(np.uint16)
    return DecodedChunk(chunk, deliveries, sources, source, offset, flags)
