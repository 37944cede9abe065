"""The timers of a simulation: their records in the timer topic, and their rows at ingest.

All content of a timer follows from its partition and the offset of its first copy, so a judge can
check each delivery. That of a timer which a real client has written (sources.py) is kept beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from duewheel.schemas import header_names as names
from duewheel.schemas.batches import (
    ACCEPTED,
    ANY_OFFSET,
    ANY_TIME,
    NO_PARTITION,
    NO_SLOT,
    TimerBatch,
)
from duewheel.schemas.columns import binary
from duewheel.schemas.hashing import id_hashes, key_hashes
from duewheel.schemas.wire.record_codec import LETTER_END, framed_bytes, key_values
from duewheel.schemas.wire.varint import read_varint
from duewheel.wheel.roll_rule import offset_spread, roll_instants
from duewheel.wheel.slots import EARLIEST_SLOT, WheelConfig, slot_of

TOPIC = "timers"
TARGETS = ["orders", "bills", "dead"]
DEAD = 2
TARGET_PARTITIONS = 4
HEADERS = [(b"h", b"\xff\0"), (b"again", b""), (b"h", b"\xff\0")]


@dataclass(frozen=True)
class Content:
    """What a real client has written.

    Attributes:
        key, value, headers: of the message, without those of the request.
        target: index in TARGETS.
        target_partition: likewise, or NO_PARTITION.
        recurrence: of a recurring timer: headers before the others.
    """

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes], ...]
    target: int
    target_partition: int = NO_PARTITION
    recurrence: tuple[tuple[bytes, bytes], ...] = ()


@dataclass(frozen=True)
class Timer:
    """A timer as a user wrote it.

    Attributes:
        origin: offset of its first copy.
        mapped: its target if it names none, as the settings had it when it first came.
        named: its id, if that does not follow from its place; of a cancel that of its timers.
        request: "cancel", "reschedule" or "keep", or "".
        named_offset: of a request that is for one timer only: its origin; else ANY_OFFSET.
        content: of a real client's; None: it follows from the place.
        fired: whether it is a firing of a recurring timer, which has its place and its origin.
    """

    partition: int
    origin: int
    due_ms: int
    rejected: bool
    mapped: int = 0
    named: bytes | None = None
    request: str = ""
    named_offset: int = ANY_OFFSET
    content: Content | None = None
    fired: bool = False

    @property
    def recurs(self) -> bool:
        return self.content is not None and bool(self.content.recurrence)

    @property
    def is_timer(self) -> bool:
        return self.request != "cancel"

    @property
    def keeps(self) -> bool:
        """Whether it is dropped while an earlier timer of its id is pending."""
        return self.request == "keep"

    @property
    def source(self) -> bytes:
        """Its name here; of all but firings TIMER_SOURCE, too."""
        place = record_name(self.partition, self.origin)
        return b"%b!%d" % (place, self.due_ms) if self.fired else place

    @property
    def given_id(self) -> bytes:
        if self.named is not None:
            return self.named
        return b"id of " + self.source if self.origin % 2 else b""

    @property
    def timer_id(self) -> bytes:
        return self.given_id or self.source

    @property
    def key(self) -> bytes | None:
        if self.content is not None:
            return self.content.key
        return (None, b"", b"key")[self.origin % 3]

    @property
    def value(self) -> bytes | None:
        if self.content is not None:
            return self.content.value
        return None if self.origin % 11 == 7 else self.source * (self.origin % 13)

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        if self.content is not None:
            return [*self.content.recurrence, *self.content.headers]
        own = (
            []
            if self.expires_ms is None
            else [(names.EXPIRES_MS.encode(), b"%d" % self.expires_ms)]
        )
        return [*HEADERS[: self.origin % 4], *own]

    @property
    def expires_ms(self) -> int | None:
        """The value of its TIMER_EXPIRES_MS, for some after their due time."""
        if self.content is not None or self.origin % 9 != 4:
            return None
        return self.due_ms + 2_500 * ((self.origin + self.partition) % 4)

    @property
    def plain_headers(self) -> list[tuple[bytes, bytes]]:
        """Those of a delivery, a chase and a reply."""
        return self.headers if self.content is None else list(self.content.headers)

    @property
    def level(self) -> int:
        return 0 if self.rejected or self.content is not None else self.origin % 4

    @property
    def target(self) -> int:
        if self.rejected:
            return DEAD
        if self.content is not None:
            return self.content.target
        return self.mapped if self.origin % 3 == 0 else self.origin % 2

    @property
    def target_partition(self) -> int:
        if self.content is not None:
            return self.content.target_partition
        return NO_PARTITION if self.origin % 5 else self.origin % TARGET_PARTITIONS

    @property
    def target_partitions(self) -> set[tuple[str, int]]:
        """Where it may go: to one partition, or to any."""
        asked = self.target_partition
        numbers = self.numbers if asked == NO_PARTITION else {asked}
        return {(TARGETS[self.target], number) for number in numbers}

    @property
    def numbers(self) -> set[int]:
        """The partitions of any topic that its key may lead to."""
        if self.key is None:
            return set(range(TARGET_PARTITIONS))
        return {self.columns[0] % TARGET_PARTITIONS}

    @cached_property
    def columns(self) -> tuple[int, int, bytes, bytes]:
        """Hash of the key, hash of the id, key with value and headers as records hold them."""
        key, value = binary([self.key]), binary([self.value])
        headers = encoded(self.headers)
        (key_value,) = key_values(key, value).to_pylist()
        assert key_value is not None
        hashes = int(key_hashes(key)[0]), int(id_hashes(binary([self.timer_id]))[0])
        return *hashes, key_value, headers


@dataclass(frozen=True)
class Copy:
    """A record of the timer topic: a timer, or what a roll or parking has made of it; or a chase.

    Attributes:
        timer: as its user wrote it; of a chase the request.
        chase_slot: of a chase, the last slot delivered in full when it was written, else NO_SLOT.
        chase_flags: of a chase.
        added: the headers behind its user's own: of a copy duewheel's, else forged ones.
    """

    timer: Timer
    offset: int
    timestamp_ms: int
    rolls: int
    not_before_ms: int = ANY_TIME
    retries: int = 0
    chase_slot: int = NO_SLOT
    chase_flags: int = 0
    added: bytes = b""

    @property
    def is_chase(self) -> bool:
        """Whether it is a request that dequeue has written again."""
        return self.chase_slot != NO_SLOT

    @property
    def is_first(self) -> bool:
        """Whether its headers are the user's."""
        return self.offset == self.timer.origin and not self.is_chase

    @property
    def is_timer(self) -> bool:
        """Whether it is to be delivered."""
        return self.timer.is_timer and not self.is_chase

    @property
    def key_value(self) -> bytes:
        """As records hold them; a chase has no value."""
        if not self.is_chase:
            return self.timer.columns[2]
        (framed,) = key_values(binary([self.timer.key]), binary([None])).to_pylist()
        assert framed is not None
        return framed

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """Its user's own, as records hold them; a chase has none of a recurrence."""
        return self.timer.plain_headers if self.is_chase else self.timer.headers

    def held_ms(self, wheel: WheelConfig) -> int:
        """Before which it does not leave."""
        return min(self.not_before_ms, self.timestamp_ms + wheel.window_ms)

    def leaves_ms(self, wheel: WheelConfig) -> int:
        """Before which it is not delivered."""
        return max(self.timer.due_ms, self.held_ms(wheel))

    def rolled(self, wheel: WheelConfig) -> bool:
        """Whether it leaves the wheel to be written to the timer topic again."""
        return not self.timer.rejected and self.timer.due_ms - self.timestamp_ms > wheel.window_ms

    def slot(self, wheel: WheelConfig) -> int:
        """The slot that its record means, whatever slot was open when it came."""
        if self.timer.rejected:
            held = slot_of(self.held_ms(wheel), wheel.precision_ms)
            return held if self.retries else int(EARLIEST_SLOT)
        instant = self.timer.due_ms
        if self.rolled(wheel):
            due, stamp, partition, offset = (
                np.array([number], np.int64)
                for number in (instant, self.timestamp_ms, self.timer.partition, self.offset)
            )
            spread = offset_spread(partition, offset)
            instant = int(roll_instants(due, stamp, spread, wheel.window_ms)[0])
        return slot_of(max(instant, self.held_ms(wheel)), wheel.precision_ms)


def as_letter(timer: Timer, headers: bytes) -> Timer:
    """The dead letter that a policy has made of a timer, and that waits for its topic; `headers`:
    of the copy, the user's and those of the error, and behind them those of a waiting letter.
    """
    parts = split_headers(headers)
    end = [name for name, _ in parts].index(names.LETTER.encode()) - len(LETTER_END) + 1
    content = Content(timer.key, timer.value, tuple(parts[:end]), DEAD)
    return replace(timer, rejected=True, content=content)


def batch_of(copies: Sequence[Copy], mapped: int) -> TimerBatch:
    """What ingest makes of these records; `mapped`: the target of timers that name none."""
    timers = [
        replace(copy.timer, mapped=mapped)
        if copy.is_first and copy.timer.mapped != mapped
        else copy.timer
        for copy in copies
    ]
    numbers = sorted({timer.partition for timer in timers})
    hashes = np.array([t.columns[:2] for t in timers], np.int64).reshape(-1, 2)
    rejected = np.array([t.rejected for t in timers], np.bool_)

    def column(values: list[Any], dtype: type = np.int64) -> npt.NDArray[Any]:
        return np.array(values, dtype)

    return TimerBatch(
        partitions=[(TOPIC, number) for number in numbers],
        partition=column([numbers.index(t.partition) for t in timers], np.int32),
        offset=column([copy.offset for copy in copies]),
        origin_offset=column([t.origin for t in timers]),
        due_ms=column([t.due_ms for t in timers]),
        not_before_ms=column([copy.not_before_ms for copy in copies]),
        codes=["bad_header"],
        code=np.where(rejected, 0, ACCEPTED).astype(np.int32),
        timer=column([copy.is_timer for copy in copies], np.bool_),
        cancels=column([_cancels(copy) for copy in copies], np.bool_),
        named_offset=column([c.timer.named_offset if _cancels(c) else ANY_OFFSET for c in copies]),
        targets=TARGETS,
        target=column([t.target for t in timers], np.int32),
        target_partition=column([t.target_partition for t in timers], np.int32),
        key_hash=hashes[:, 0].astype(np.int32),
        id_hash=hashes[:, 1],
        timer_id=binary(t.given_id for t in timers),
        key_value=binary(copy.key_value for copy in copies),
        headers=binary(encoded(copy.headers) for copy in copies),
        header_count=column([len(copy.headers) for copy in copies], np.int32),
        roll_times=column([copy.rolls for copy in copies], np.int32),
        retries=column([copy.retries for copy in copies], np.int32),
        level=column([t.level for t in timers], np.int32),
        timestamp_ms=column([copy.timestamp_ms for copy in copies]),
        chase_slot=column([copy.chase_slot for copy in copies]),
        chase_flags=column([copy.chase_flags for copy in copies], np.int32),
        recurring=column([copy.timer.recurs and copy.is_timer for copy in copies], np.bool_),
        seed=column([copy.timer.recurs and copy.is_first for copy in copies], np.bool_),
        forged=np.zeros(len(copies), np.bool_),
        keeps=column([copy.timer.keeps and copy.is_first for copy in copies], np.bool_),
    )


def record_name(partition: int, offset: int) -> bytes:
    """As TIMER_SOURCE names it."""
    return b"%b-%d@%d" % (TOPIC.encode(), partition, offset)


def encoded(headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """As records hold them."""
    return b"".join(framed_bytes(name) + framed_bytes(text) for name, text in headers)


def split_headers(headers: bytes) -> list[tuple[bytes, bytes]]:
    """Names and values of headers, as records hold them."""
    parts, at = [], 0
    while at < len(headers):
        size, at = read_varint(headers, at)
        parts.append(headers[at : at + size])
        at += size
    return list(zip(parts[::2], parts[1::2], strict=True))


def _cancels(copy: Copy) -> bool:
    return copy.is_chase or (copy.is_first and copy.timer.request in {"cancel", "reschedule"})
