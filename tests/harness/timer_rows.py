"""Batches of timers for the engine, without records; and replies and chases, read again."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from duewheel.schemas import header_names as names
from duewheel.schemas.batches import (
    ACCEPTED,
    ANY_OFFSET,
    ANY_TIME,
    NO_LEVEL,
    NO_PARTITION,
    NO_SLOT,
    Deliveries,
    TimerBatch,
    TopicPartition,
)
from duewheel.schemas.columns import binary
from duewheel.schemas.hashing import id_hashes, key_hashes
from duewheel.schemas.header_names import NAME_OF, TAG, Request
from duewheel.schemas.name_patterns import NONE
from duewheel.schemas.wire.record_codec import framed_bytes, key_values
from duewheel.schemas.wire.varint import read_varint


def suite_parameters(**given: Any) -> dict[str, Any]:
    """Parameters of the suite that allow long delays and nearly all targets; `given` overrides."""
    return {"max_delay_ms": 10**12, "forbidden_targets": [], "timer_topics": NONE, **given}


@dataclass(frozen=True, slots=True)
class TimerRow:
    """One row for `timer_batch`. Its position in Kafka determines its message.

    Attributes:
        partition, offset: its position.
        due_ms: its due time.
        rejected: whether it is a dead letter.
        level: requested delay level, 0 for none.
        timer_id: its id; None: derived from its position, too.
        request: "cancel", "reschedule" or "keep" with this id, or "".
        origin: offset of its first copy, if it is another one.
        timestamp_ms: of its record; its due time if none is given.
        tags: its headers TIMER_TAG, after the others.
        named: first offset of the only timer that a cancel matches.
        chase_slot, chase_flags: of a cancel that dequeue has written again, with its `origin`.
    """

    partition: int
    offset: int
    due_ms: int
    rejected: bool = False
    level: int = NO_LEVEL
    timer_id: bytes | None = None
    request: str = ""
    origin: int | None = None
    timestamp_ms: int | None = None
    tags: tuple[bytes, ...] = ()
    named: int = ANY_OFFSET
    chase_slot: int = NO_SLOT
    chase_flags: int = 0

    @property
    def source(self) -> str:
        """The timer's name in deliveries."""
        return f"{TIMER_TOPIC}-{self.partition}@{self.offset}"

    @property
    def default_id(self) -> str:
        """Its id if it has no other one: the name of its first copy."""
        return (
            f"{TIMER_TOPIC}-{self.partition}@{self.offset if self.origin is None else self.origin}"
        )


TIMER_TOPIC = "timers"
P0: TopicPartition = (TIMER_TOPIC, 0)
P1: TopicPartition = (TIMER_TOPIC, 1)


def ends_of(timers: Iterable[TimerRow]) -> dict[TopicPartition, int]:
    """The offset after the last row of each partition; rows in the order of their offsets."""
    return {(TIMER_TOPIC, timer.partition): timer.offset + 1 for timer in timers}


def timer_batch(timers: Sequence[TimerRow]) -> TimerBatch:
    """A batch of the given rows, with messages of all kinds: keys and values null, empty and long,
    no headers and several, with and without id, with and without a requested partition.
    """
    numbers = sorted({timer.partition for timer in timers})
    offset = np.array([timer.offset for timer in timers], np.int64)
    rejected = np.array([timer.rejected for timer in timers], np.bool_)
    keys = (None, b"", b"key")
    key = binary(keys[o % 3] for o in offset.tolist())
    value = binary(
        None if timer.offset % 11 == 7 else timer.source.encode() * (timer.offset % 13)
        for timer in timers
    )
    given = [b"" if t.offset % 2 else b"id of " + t.source.encode() for t in timers]
    ids = [own if t.timer_id is None else t.timer_id for t, own in zip(timers, given, strict=True)]
    timer_id = binary(ids)
    origin = [t.offset if t.origin is None else t.origin for t in timers]
    header = framed_bytes(b"h") + framed_bytes(b"\xff\0")
    tag = framed_bytes(TAG.encode())
    tags = [b"".join(tag + framed_bytes(each) for each in timer.tags) for timer in timers]
    count = (offset % 3).astype(np.int32)
    return TimerBatch(
        partitions=[(TIMER_TOPIC, number) for number in numbers],
        partition=np.searchsorted(numbers, [t.partition for t in timers]).astype(np.int32),
        offset=offset,
        origin_offset=np.array(origin, np.int64),
        due_ms=np.array([timer.due_ms for timer in timers], np.int64),
        not_before_ms=np.full(len(timers), ANY_TIME, np.int64),
        codes=["bad_header"],
        code=np.where(rejected, 0, ACCEPTED).astype(np.int32),
        timer=np.array([t.request != "cancel" for t in timers], np.bool_),
        cancels=np.array([t.request in {"cancel", "reschedule"} for t in timers], np.bool_),
        named_offset=np.array([t.named for t in timers], np.int64),
        targets=["orders", "bills", "dead"],
        target=np.where(rejected, 2, offset % 2).astype(np.int32),
        target_partition=np.where(offset % 5, NO_PARTITION, offset % 4).astype(np.int32),
        key_hash=key_hashes(key),
        id_hash=id_hashes(
            binary(own or t.default_id.encode() for t, own in zip(timers, ids, strict=True))
        ),
        timer_id=timer_id,
        key_value=key_values(key, value),
        headers=binary(
            header * times + more for times, more in zip(count.tolist(), tags, strict=True)
        ),
        header_count=count + np.array([len(timer.tags) for timer in timers], np.int32),
        roll_times=np.zeros(len(timers), np.int32),
        retries=np.zeros(len(timers), np.int32),
        level=np.array([timer.level for timer in timers], np.int32),
        timestamp_ms=np.array(
            [t.due_ms if t.timestamp_ms is None else t.timestamp_ms for t in timers], np.int64
        ),
        chase_slot=np.array([t.chase_slot for t in timers], np.int64),
        chase_flags=np.array([t.chase_flags for t in timers], np.int32),
        recurring=np.zeros(len(timers), np.bool_),
        seed=np.zeros(len(timers), np.bool_),
        forged=np.zeros(len(timers), np.bool_),
        keeps=np.array([t.request == "keep" for t in timers], np.bool_),
    )


def answer_value(key_value: bytes) -> dict[str, str]:
    """Extracts the value of a reply, a JSON object, from its framed key and value."""
    size, at = read_varint(key_value, 0)
    size, at = read_varint(key_value, at + max(size, 0))
    value: dict[str, str] = json.loads(key_value[at : at + size])
    return value


def headers_of(encoded: bytes, count: int) -> list[tuple[str, bytes]]:
    """Names and values of so many headers as they stand in a record; none is null."""
    found, at = [], 0
    for _ in range(count):
        parts = []
        for _ in range(2):
            size, at = read_varint(encoded, at)
            parts.append(encoded[at : at + size])
            at += size
        found.append((parts[0].decode(), parts[1]))
    return found


def chases_in(deliveries: Deliveries) -> list[TimerRow]:
    """The chases among the rows of a transaction, without their offsets in the timer topic."""
    found = []
    for row in np.flatnonzero(deliveries.answer & deliveries.is_copy).tolist():
        encoded, count = deliveries.headers[row].as_py(), int(deliveries.header_count[row])
        headers = dict(headers_of(encoded, count))
        named = headers.get(NAME_OF[Request.CANCEL_OFFSET], ANY_OFFSET)
        found.append(
            TimerRow(
                int(deliveries.target_partition[row]),
                offset=-1,
                due_ms=0,
                timer_id=headers[NAME_OF[Request.CANCEL]],
                request="cancel",
                origin=int(headers[names.ORIGIN]),
                named=int(named),
                chase_slot=int(headers[names.CHASE_SLOT]),
                chase_flags=int(headers[names.CHASE_FLAGS]),
            )
        )
    return found
