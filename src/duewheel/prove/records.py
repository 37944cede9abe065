"""Rows of the records that a proof has written and read; of a value only its length and hash.

They are made from the records alone: with duewheel they share the names of headers, and nothing
else. A row takes some 600 bytes, so that a million timers fit in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

CANCEL, RESCHEDULE = "TIMER_DEL_UNIQKEY", "TIMER_RESCHEDULE"
NUMBER = "n"  # a user's header with the number of the record; a record may have several, or none
LEVELS_MS = {1: 1_000, 2: 5_000, 3: 10_000, 4: 30_000}
_CHASE = "TIMER_CANCEL_SLOT"  # a header of cancels that duewheel has written again

Source = tuple[int, int]  # partition and offset in the timer topic
Headers = tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class RecordContent:
    """What must arrive as it was written: the user's headers come first."""

    key: bytes | None
    value_bytes: int
    value_hash: int
    own: Headers

    @classmethod
    def of(cls, record: Any) -> RecordContent:
        own = tuple(takewhile(lambda header: header[0] == NUMBER, record.headers))
        return cls(record.key, len(record.value), hash(record.value), own)


@dataclass(slots=True)
class WrittenRequest:
    """A timer, a cancel or both (a reschedule), as the timer topic has it.

    Attributes:
        topic: the timer topic.
        number: of the record, as its producer counts.
        due_ms: None: a timer must be rejected.
        last_offset: of its newest copy.
        timer_id: its own, or that of the timers that it matches.
    """

    source: Source
    topic: str
    number: int
    stamp_ms: int
    content: RecordContent
    due_ms: int | None
    last_offset: int
    timer_id: bytes | None
    is_timer: bool
    cancels: bool

    @property
    def is_rolled(self) -> bool:
        """Whether it was written again."""
        return self.last_offset != self.source[1]


@dataclass(frozen=True, slots=True)
class Chase:
    """A cancel that duewheel has written again."""

    source: Source
    request: Source
    timer_id: bytes


@dataclass(slots=True)
class WrittenTopic:
    """The content of a timer topic, by the source of each request's first copy."""

    requests: dict[Source, WrittenRequest] = field(default_factory=dict)
    chases: list[Chase] = field(default_factory=list)

    @classmethod
    def of(cls, records: Iterable[Any]) -> WrittenTopic:
        """Reads the records of a timer topic, those of each partition in their order."""
        written = cls()
        for record in records:
            written.take(record)
        return written

    def take(self, record: Any) -> None:
        """Adds a record behind those of its partition."""
        headers, source = dict(record.headers), (record.partition, record.offset)
        if _CHASE in headers:
            request = (record.partition, int(headers["TIMER_ORIGIN"]))
            self.chases.append(Chase(source, request, headers[CANCEL]))
        elif "TIMER_ORIGIN" in headers:
            first = self.requests[record.partition, int(headers["TIMER_ORIGIN"])]
            first.last_offset = record.offset
        else:
            self.requests[source] = WrittenRequest(
                source=source,
                topic=record.topic,
                number=number_of(record),
                stamp_ms=record.timestamp,
                content=RecordContent.of(record),
                due_ms=_due_ms(headers, record.timestamp),
                last_offset=record.offset,
                timer_id=headers.get(CANCEL) or headers.get("UNIQ_KEY"),
                is_timer=CANCEL not in headers,
                cancels=bool(headers.keys() & {CANCEL, RESCHEDULE}),
            )


@dataclass(frozen=True, slots=True)
class ArrivedTimer:
    """A delivery or a dead letter.

    Attributes:
        source: of the timer.
        number: of the timer, as its producer counts.
        stamp_ms: the record's timestamp; that of a LogAppendTime topic is the broker's.
        received_ms: by this host's clock.
        due_ms: as the delivery has it.
    """

    topic: str
    partition: int
    offset: int
    source: Source
    number: int
    stamp_ms: int
    received_ms: int
    content: RecordContent
    due_ms: int | None
    error_code: bytes | None

    @classmethod
    def of(cls, record: Any, received_ms: int) -> ArrivedTimer:
        headers = dict(record.headers)
        due_ms = headers.get("TIMER_DUE_MS")
        return cls(
            record.topic,
            record.partition,
            record.offset,
            source_of(headers),
            number_of(record),
            record.timestamp,
            received_ms,
            RecordContent.of(record),
            None if due_ms is None else int(due_ms),
            headers.get("TIMER_ERROR_CODE"),
        )


@dataclass(frozen=True, slots=True)
class ArrivedReply:
    """A reply to a cancel or reschedule, as a whole."""

    source: Source
    stamp_ms: int
    reply: str
    key: bytes | None
    value: bytes
    headers: Headers

    @classmethod
    def of(cls, record: Any) -> ArrivedReply:
        headers = dict(record.headers)
        return cls(
            source_of(headers),
            record.timestamp,
            headers["TIMER_ANSWER"].decode(),
            record.key,
            record.value,
            tuple(record.headers),
        )


def source_of(headers: Mapping[str, bytes]) -> Source:
    """Partition and offset of the request that a record of duewheel's names."""
    partition, offset = headers["TIMER_SOURCE"].decode().rsplit("-", 1)[1].split("@")
    return int(partition), int(offset)


def number_of(record: Any) -> int:
    """The number with which a value begins."""
    return int(record.value.split(b" ", 1)[0])


def _due_ms(headers: Mapping[str, bytes], stamp_ms: int) -> int | None:
    return next(_due_times(headers, stamp_ms), None)


def _due_times(headers: Mapping[str, bytes], stamp_ms: int) -> Iterator[int]:
    if "TIMER_DELIVER_MS" in headers:
        yield int(headers["TIMER_DELIVER_MS"])
    if "TIMER_DELAY_MS" in headers:
        yield stamp_ms + int(headers["TIMER_DELAY_MS"])
    if "TIMER_DELAY_SEC" in headers:
        yield stamp_ms + 1_000 * int(headers["TIMER_DELAY_SEC"])
    if "DELAY" in headers:
        yield stamp_ms + LEVELS_MS[int(headers["DELAY"])]
