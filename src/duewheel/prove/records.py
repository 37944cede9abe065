"""Rows of the records that a proof has written and read.

A value is kept as length and hash: a row takes some 600 bytes, so that a million timers fit in
memory. The rows share the names of headers with duewheel, and nothing else: its own parser could
hide its own mistakes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from duewheel.prove.cancel_judge import Source

CANCEL, RESCHEDULE = "TIMER_DEL_UNIQKEY", "TIMER_RESCHEDULE"
NUMBER = "n"  # a user's header with the record's number; a record may have several, or none
LEVELS_MS = {1: 1_000, 2: 5_000, 3: 10_000, 4: 30_000}
_CHASE = "TIMER_CANCEL_SLOT"  # a header of cancels that duewheel has written again

Headers = tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class RecordContent:
    """Must arrive as it was written; the user's headers come first."""

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
    """A timer, a cancel or both (a reschedule), as the timer topic has it."""

    source: Source
    topic: str
    number: int
    stamp_ms: int
    content: RecordContent
    due_ms: int | None  # None: a timer must be rejected
    expires_ms: int | None  # the last instant at which it may be delivered
    timer_id: bytes | None  # its own, or that of the timers that it cancels
    is_timer: bool
    cancels: bool
    is_rolled: bool = False


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
            written._take(record)
        return written

    def _take(self, record: Any) -> None:
        headers, source = dict(record.headers), (record.partition, record.offset)
        if _CHASE in headers:
            request = (record.partition, int(headers["TIMER_ORIGIN"]))
            self.chases.append(Chase(source, request, headers[CANCEL]))
        elif "TIMER_ORIGIN" in headers:
            self.requests[record.partition, int(headers["TIMER_ORIGIN"])].is_rolled = True
        else:
            self.requests[source] = WrittenRequest(
                source=source,
                topic=record.topic,
                number=_number_of(record),
                stamp_ms=record.timestamp,
                content=RecordContent.of(record),
                due_ms=_due_ms(headers, record.timestamp),
                expires_ms=_instant_ms(headers, "TIMER_EXPIRES_MS"),
                timer_id=headers.get(CANCEL) or headers.get("UNIQ_KEY"),
                is_timer=CANCEL not in headers,
                cancels=bool(headers.keys() & {CANCEL, RESCHEDULE}),
            )


@dataclass(frozen=True, slots=True)
class ArrivedTimer:
    """A delivery or a dead letter; source and number are the timer's."""

    topic: str
    partition: int
    offset: int
    source: Source
    number: int
    stamp_ms: int  # in a LogAppendTime topic by the broker's clock
    received_ms: int  # by this host's clock
    content: RecordContent
    due_ms: int | None
    error_code: bytes | None

    @classmethod
    def of(cls, record: Any, received_ms: int) -> ArrivedTimer:
        headers = dict(record.headers)
        return cls(
            record.topic,
            record.partition,
            record.offset,
            _source_of(headers),
            _number_of(record),
            record.timestamp,
            received_ms,
            RecordContent.of(record),
            _instant_ms(headers, "TIMER_DUE_MS"),
            headers.get("TIMER_ERROR_CODE"),
        )


@dataclass(frozen=True, slots=True)
class ArrivedReply:
    """A reply to a cancel or reschedule."""

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
            _source_of(headers),
            record.timestamp,
            headers["TIMER_ANSWER"].decode(),
            record.key,
            record.value,
            tuple(record.headers),
        )


def _source_of(headers: Mapping[str, bytes]) -> Source:
    """The source of the request that a record of duewheel's names."""
    partition, offset = headers["TIMER_SOURCE"].decode().rsplit("-", 1)[1].split("@")
    return int(partition), int(offset)


def _number_of(record: Any) -> int:
    return int(record.value.split(b" ", 1)[0])


def _instant_ms(headers: Mapping[str, bytes], name: str) -> int | None:
    return int(headers[name]) if name in headers else None


def _due_ms(headers: Mapping[str, bytes], stamp_ms: int) -> int | None:
    if "TIMER_DELIVER_MS" in headers:
        return int(headers["TIMER_DELIVER_MS"])
    if "TIMER_DELAY_MS" in headers:
        return stamp_ms + int(headers["TIMER_DELAY_MS"])
    if "TIMER_DELAY_SEC" in headers:
        return stamp_ms + 1_000 * int(headers["TIMER_DELAY_SEC"])
    if "DELAY" in headers:
        return stamp_ms + LEVELS_MS[int(headers["DELAY"])]
    return None
