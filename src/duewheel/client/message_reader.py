"""Reads a timer's message back from the timer topic, by its recall handle, to write it again.

A handle names an acknowledged record outside any transaction. The reader never waits: the record is
at its offset, or deleted. Its bytes were serialized when they were first sent; `RawBytes` marks
them, so that the producer's serializers (`Untouching`) do not serialize them again.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from kafka import KafkaConsumer
from kafka.serializer import Serializer, SerializeWrapper
from kafka.structs import TopicPartition

from duewheel.client.due_time import NonNullHeader
from duewheel.client.handle import RecallHandle
from duewheel.errors import InvalidTimer
from duewheel.kafka.clients import ClientSettings, close, open_reader
from duewheel.kafka.deadline import Deadline
from duewheel.kafka.polling import next_records
from duewheel.schemas.header_names import REQUEST, Request

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
    Request.CANCEL_OFFSET,
}


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

    def __init__(self, client: ClientSettings) -> None:
        """Connects nothing."""
        self._client = client
        self._lock = threading.Lock()
        self._consumer: KafkaConsumer | None = None

    def read(self, handle: RecallHandle) -> Message:
        """The message of a timer. Blocks until Kafka has answered.

        Raises:
            InvalidTimer: the record is no longer there, or is another timer's.
            KafkaUnavailable: no answer in time.
        """
        deadline = Deadline(_DEADLINE_S)
        with self._lock:
            try:
                if self._consumer is None:
                    self._consumer = open_reader(
                        self._client,
                        deadline,
                        isolation_level="read_uncommitted",
                        max_poll_records=1,
                    )
                consumer = self._consumer
                record = self._client.call(
                    deadline, f"read {handle.place}", lambda: _record(consumer, handle, deadline)
                )
            except BaseException:
                self._drop()
                raise
        _require_same(record, handle)
        kept = [header for header in record.headers if REQUEST.get(header[0]) not in _REPLACED]
        if any(value is None for _, value in kept):
            raise InvalidTimer(
                f"the timer at {handle.place} has a null header: give the message again"
            )
        return Message(_raw(record.key), _raw(record.value), kept)

    def close(self) -> None:
        """Drop the client."""
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            close(consumer)


def _record(consumer: KafkaConsumer, handle: RecallHandle, deadline: Deadline) -> Any:
    where = TopicPartition(handle.timer_topic, handle.partition)
    (start,) = consumer.beginning_offsets([where], timeout_ms=deadline.remaining_ms()).values()
    (end,) = consumer.end_offsets([where], timeout_ms=deadline.remaining_ms()).values()
    if not start <= handle.offset < end:
        raise _not_in_kafka(handle, f"the topic has offsets {start} to {end - 1} there")
    consumer.assign([where])
    consumer.seek(where, handle.offset)
    bounds = {where: (handle.offset, handle.offset + 1)}
    records, reached = next_records(consumer, bounds, deadline)
    if not records or records[0].offset != handle.offset:
        raise _not_in_kafka(handle, f"there is none before {reached[where]}")
    return records[0]


def _not_in_kafka(handle: RecallHandle, why: str) -> InvalidTimer:
    return InvalidTimer(
        f"the timer's message cannot be read back: {handle.place} is no longer in Kafka ({why}): "
        "give the message again"
    )


def _require_same(record: Any, handle: RecallHandle) -> None:
    """Refuse another record: a recreated topic has other records at the same offsets.

    A delay is checked by the record's timestamp too. A level is not: its delay is a setting.
    """
    requests = {REQUEST[name]: value for name, value in record.headers if name in REQUEST}
    timer_id = requests.get(Request.TIMER_ID, handle.place.encode())
    due_ms = {
        Request.DELIVER_AT: handle.due_ms,
        Request.DELAY_MS: handle.due_ms - record.timestamp,
    }
    same = timer_id == handle.id.encode() and all(
        requests.get(request, b"%d" % value) == b"%d" % value for request, value in due_ms.items()
    )
    if not same:
        raise InvalidTimer(
            f"the record at {handle.place} is not the timer of the recall handle: was the topic "
            "recreated? Give the message again"
        )


def _raw(data: bytes | None) -> RawBytes | None:
    return None if data is None else RawBytes(data)
