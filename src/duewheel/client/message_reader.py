"""Reads a timer's message back from the timer topic, by its recall handle, to write it again.

A handle names an acknowledged record outside any transaction. The reader never waits: the record is
at its offset, or deleted. Its bytes were serialized when they were first sent; `RawBytes` marks
them, so that the producer's serializers (`Untouching`) do not serialize them again.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from kafka.serializer import Serializer, SerializeWrapper

from duewheel.api.due_time import NonNullHeader
from duewheel.client.handle import RecallHandle
from duewheel.deadline import Deadline
from duewheel.errors import InvalidTimer
from duewheel.kafka.connect.clients import KafkaClients
from duewheel.kafka.log.reader import LogReader
from duewheel.kafka.log.records import Record, is_no_utf8
from duewheel.schemas.header_names import DROP_IN, NAME_OF, RECURRENCE, REQUEST, Request

_DEADLINE_S = 30.0
_REPLACED = {  # by those of the new record
    Request.LEVEL,
    Request.DELAY_SEC,
    Request.DELAY_MS,
    Request.DELIVER_AT,
    Request.DELIVER_AFTER,
    Request.WINDOW_MS,
    Request.TIMER_ID,
    Request.RESCHEDULE,
    Request.IF_PENDING,
    Request.CANCEL_OFFSET,
}


_OF_MODES = {
    name
    for headers in DROP_IN.values()
    for name, request in headers.items()
    if request is not Request.IGNORED
}
CHANGE_RECURRING = (
    "a recurring one: to change it, write its record again "
    f"with {NAME_OF[Request.RESCHEDULE]}: true"
)


def is_recurring(names: Iterable[str]) -> bool:
    """Whether headers of these names make a recurring timer."""
    return any(REQUEST.get(name) in RECURRENCE for name in names)


class RawBytes(bytes):
    """Bytes that are written as they are."""


class Untouching(Serializer):  # type: ignore[misc]  # kafka-python brings no types
    """A serializer, or none, that leaves RawBytes alone."""

    def __init__(self, inner: Any) -> None:
        """`inner`: what KafkaProducer accepts as a serializer: a Serializer, a function, None."""
        plain = inner is None or isinstance(inner, Serializer)
        self._inner = inner if plain else SerializeWrapper(inner)

    def serialize(self, topic: str, *rest: Any) -> Any:
        data = rest[-1]  # older serializers have no headers before it
        if isinstance(data, RawBytes):
            return bytes(data)
        return data if self._inner is None else self._inner.serialize(topic, *rest)

    def close(self) -> None:
        if self._inner is not None:
            self._inner.close()


@dataclass(frozen=True, slots=True)
class Message:
    """The part of a timer's record that a reschedule keeps.

    Attributes:
        key, value: None for null.
        kept: the headers, without those of due time and id.
    """

    key: RawBytes | None
    value: RawBytes | None
    kept: list[NonNullHeader]


class MessageReader:
    """See the module's head. Thread-safe; one record is read at a time."""

    def __init__(self, client: KafkaClients) -> None:
        """Connects nothing."""
        self._lock = threading.Lock()
        self._reader = LogReader(client, (), partial(Deadline, _DEADLINE_S), committed=False)

    def read(self, handle: RecallHandle) -> Message:
        """The message of a timer. Blocks until Kafka has answered.

        Raises:
            InvalidTimer: the record is no longer there, or is another timer's.
            KafkaUnavailable: no answer in time.
        """
        with self._lock:
            record = _record(self._reader, handle)
        _require_same(record, handle)
        return Message(_raw(record.key), _raw(record.value), _kept(record, handle))

    def close(self) -> None:
        """Drop the connections."""
        with self._lock:
            self._reader.close()


def _record(reader: LogReader, handle: RecallHandle) -> Record:
    where = handle.timer_topic, handle.partition
    ((start, end),) = reader.bounds(partitions=[where], committed=False).values()
    if not start <= handle.offset < end:
        raise _not_in_kafka(handle, f"the topic has offsets {start} to {end - 1} there")
    for records, reached in reader.records({where: (handle.offset, handle.offset + 1)}):
        for record in records:
            return record
        raise _not_in_kafka(handle, f"there is none before {reached[where]}")
    raise AssertionError("a range of one offset has a part")


def _not_in_kafka(handle: RecallHandle, why: str) -> InvalidTimer:
    return InvalidTimer(
        f"the timer's message cannot be read back: {handle.place} is no longer in Kafka ({why}): "
        "give the message again"
    )


def _require_same(record: Record, handle: RecallHandle) -> None:
    """Refuse another record: a recreated topic has other records at the same offsets.

    A delay is checked by the record's timestamp too. A level is not: its delay is a setting.
    """
    requests = {REQUEST[name]: value for name, value in record.headers if name in REQUEST}
    timer_id = requests.get(Request.TIMER_ID, handle.place.encode())
    due_ms = {
        Request.DELIVER_AT: handle.due_ms,
        Request.DELAY_MS: handle.due_ms - record.timestamp_ms,
    }
    same = timer_id == handle.id.encode() and all(
        requests.get(request, b"%d" % value) == b"%d" % value for request, value in due_ms.items()
    )
    if not same:
        raise InvalidTimer(
            f"the record at {handle.place} is not the timer of the recall handle: was the topic "
            "recreated? Give the message again"
        )


def _kept(record: Record, handle: RecallHandle) -> list[NonNullHeader]:
    """The headers that the new record repeats; kafka-python cannot write all that a record has."""
    if is_recurring(name for name, _ in record.headers):
        raise InvalidTimer(f"the timer at {handle.place} is {CHANGE_RECURRING}")
    kept = list[NonNullHeader]()
    for name, value in record.headers:
        if name in _OF_MODES:
            # Its due time would count, and not the new one: in a topic of that mode it comes first.
            raise InvalidTimer(
                f"the timer at {handle.place} has {name!r}, a header of another service: "
                "give the message again"
            )
        if REQUEST.get(name) in _REPLACED:
            continue
        if value is None or is_no_utf8(name):
            why = "a null header" if value is None else "a header whose name is no UTF-8"
            raise InvalidTimer(f"the timer at {handle.place} has {why}: give the message again")
        kept.append((name, value))
    return kept


def _raw(data: bytes | None) -> RawBytes | None:
    return None if data is None else RawBytes(data)
