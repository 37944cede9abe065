"""`DelayProducer`: a Kafka producer with due times.

    with DelayProducer("orders.delayed", bootstrap_servers="localhost:9092") as producer:
        asked = producer.schedule("orders", b"pay your order", key=b"order-42", delay="15m")
        timer = asked.result(timeout=10)
        producer.cancel(timer.handle)

A timer is one record in the timer topic, with request headers for due time and target
(header_names.py). Its partition there keeps the order of related timers:

    requested partition    the same one (modulo the number of partitions); it also becomes REAL_QID
    key                    Kafka's usual hash of it, murmur2, as the Java client computes it
    neither                one partition until a batch is full, then another (KIP-480, "sticky")

A cancel or reschedule matches timers of its own partition only. It is routed by the same key or
partition as they were, or by the timer's recall handle (handle.py).

All replicas acknowledge each record, and a retry by the client never doubles it. This module
imports only the standard library and kafka-python.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from datetime import datetime, timedelta
from typing import Any, Final, Self, TypeVar

from kafka import KafkaProducer
from kafka.partitioner import StickyPartitioner
from kafka.producer.future import FutureRecordMetadata

from duewheel.client.due_time import DueTime, NonNullHeader, whole, window_headers
from duewheel.client.futures import Cancel, Rescheduled, Timer
from duewheel.client.handle import RecallHandle, id_bytes
from duewheel.client.message_reader import MessageReader, RawBytes, Untouching
from duewheel.client.replies import AnswerReader
from duewheel.errors import ConfigError, InvalidTimer
from duewheel.kafka.clients import ClientSettings
from duewheel.schemas.header_names import (
    ANSWER,
    DUE_MS,
    LEVELS_MS,
    NAME_OF,
    REQUEST,
    ROLL_TIMES,
    SOURCE,
    TIMER_ID,
    Answer,
    Request,
)

__all__ = ["SAME", "Answer", "Cancel", "DelayProducer", "Rescheduled", "Timer"]

T = TypeVar("T")

SAME: Final = object()
"""The value of a message that is read back."""

_OWNED = {
    "acks": "a timer that one broker alone holds may be lost",
    "enable_idempotence": "without it a retry may double a timer",
    "partitioner": "timers with the same key must lie in the same partition",
    "transactional_id": "there are no transactions here",
}
_ROUTED = {
    Request.DELAY_SEC,
    Request.DELAY_MS,
    Request.DELIVER_AT,
    Request.DELIVER_AFTER,
    Request.CANCEL,
    Request.RESCHEDULE,
}
_TARGET = {NAME_OF[Request.TARGET_TOPIC], NAME_OF[Request.TARGET_PARTITION]}
# By an earlier delivery: all but the id mean nothing in a request.
_ADDED = {SOURCE, DUE_MS, TIMER_ID, ROLL_TIMES, ANSWER}


class DelayProducer:
    """Schedules messages, and sends others straight through. Thread-safe.

    Errors of Kafka are kafka-python's own (`kafka.errors.KafkaError`): after one it is open whether
    the record was written. What is not acknowledged yet is kept in memory without bound: wait for
    results now and then, or `flush`.
    """

    def __init__(
        self,
        timer_topic: str,
        *,
        levels_ms: Sequence[int] = LEVELS_MS,
        reply_topic: str | None = None,
        **options: Any,
    ) -> None:
        """Connect; blocks until a broker answers, at most `bootstrap_timeout_ms` (30 s).

        Args:
            timer_topic: one of the topics in duewheel's `timer.topics`.
            levels_ms: duewheel's `timer.levels`; only to tell when a level is due.
            reply_topic: duewheel's `timer.reply_topic`; without it nobody tells what cancels met.
            options: settings of `kafka.KafkaProducer`, under its names.

        Raises:
            ConfigError: one of `options` is decided here.
        """
        for name in sorted(options.keys() & _OWNED.keys()):
            raise ConfigError(f"{name} is set by DelayProducer: {_OWNED[name]}")
        self.timer_topic = timer_topic
        self._levels_ms = tuple(levels_ms)
        own: dict[str, Any] = {
            "acks": "all",
            "enable_idempotence": True,
            "partitioner": StickyPartitioner(),
        }
        for name in ("key_serializer", "value_serializer"):
            own[name] = Untouching(options.pop(name, None))
        client = ClientSettings.of_producer(options)
        self._messages = MessageReader(client)
        self._answers = None if reply_topic is None else AnswerReader(client, reply_topic)
        self._producer = KafkaProducer(**options, **own)

    def schedule(
        self,
        topic: str,
        value: Any,
        *,
        key: Any = None,
        headers: Iterable[NonNullHeader] = (),
        deliver_at: datetime | int | None = None,
        delay: timedelta | str | None = None,
        level: int | None = None,
        window: timedelta | str | None = None,
        id: str | None = None,
        partition: int | None = None,
    ) -> Future[Timer]:
        """Have a message delivered to `topic` later. One in the past is due at once.

        Args:
            topic: where it goes when it is due.
            value: bytes, or what the option `value_serializer` takes.
            key: bytes, or what the option `key_serializer` takes; None for no key.
            headers: delivered as they are, before those that duewheel adds. Those of a delivered
                message may be given as they came: what its delivery added (TIMER_SOURCE,
                TIMER_DUE_MS, UNIQ_KEY, …) is taken out; the new timer has an id of its own.
            deliver_at: a datetime with a zone, or epoch ms.
            delay: a timedelta, or text such as "90s", "15m" or "1h30m"; counts from the timestamp
                of the record in the timer topic, so from the broker's clock.
            level: 1, 2, …: one of the configured delays; above the highest counts as the highest.
            window: deliver it within so long after that time, at a moment that follows from its
                key, or else its id; `due_ms` of the result is the time without it.
            id: the timer's id, for consumers and for cancelling; by default where its record lies.
            partition: of `topic`; by default Kafka's usual choice at delivery.

        Returns:
            The timer, once Kafka has acknowledged it. Cancelling this future has no effect.

        Raises:
            InvalidTimer: the arguments contradict each other or cannot be read; nothing was sent.
        """
        when = DueTime.of(deliver_at, delay, level)
        request = [*_users(headers), when.header, *window_headers(window)]
        if id is not None:
            request.append((NAME_OF[Request.TIMER_ID], id_bytes(id)))
        sent = self._write(topic, value, key, request, partition, None)
        return _future(sent, lambda at: Timer(*self._timer(id, when, at)))

    def cancel(
        self,
        timer: str,
        *,
        key: Any = None,
        partition: int | None = None,
        timer_topic: str | None = None,
        headers: Iterable[NonNullHeader] = (),
    ) -> Future[Cancel]:
        """Have timers not delivered: those that have an id, are in its partition, and are pending.

        With a reply topic it blocks while the answers' reader connects, which is once.

        Args:
            timer: a recall handle, of one timer; or an id, of all timers that have it, and with it
                the key or the partition that `schedule` was given. A timer that was given neither
                is found by its handle only; where a topic says that keys are ids, one without an id
                is found by its key only.
            key, partition: see there; `Timer.partition` will do, too.
            timer_topic: by default the producer's. A handle of another one is refused.
            headers: of your own, for the answer.

        Returns:
            The cancel, once Kafka has acknowledged it; whether it came in time its `answer` says.

        Raises:
            InvalidTimer: the handle is none, or was changed; or the arguments contradict each
                other; nothing was sent.
            KafkaUnavailable, ConfigError: the reply topic cannot be read; nothing was sent.
        """
        topic = timer_topic or self.timer_topic
        handle = self._handle(timer, topic)
        if handle is not None and (key is not None or partition is not None):
            raise InvalidTimer(
                "a recall handle names its partition: give neither key nor partition"
            )
        timer_id = timer if handle is None else handle.id
        number = self._number(timer, handle, key, partition, topic)
        request = [
            *_users(headers),
            (NAME_OF[Request.CANCEL], id_bytes(timer_id)),
            *_only(handle),
        ]
        return self._ask(
            lambda: self._producer.send(topic, RawBytes(), key, request, number),
            lambda at, reply: Cancel(timer_id, at.topic, at.partition, at.offset, reply),
        )

    def reschedule(
        self,
        timer: str,
        *,
        deliver_at: datetime | int | None = None,
        delay: timedelta | str | None = None,
        level: int | None = None,
        window: timedelta | str | None = None,
        topic: str | None = None,
        value: Any = SAME,
        key: Any = None,
        headers: Iterable[NonNullHeader] = (),
        partition: int | None = None,
        timer_topic: str | None = None,
    ) -> Future[Rescheduled]:
        """Put a new timer in the place of those with an id, or of one: cancel these, deliver it.

        It is delivered, too, where there was nothing to cancel, or it was too late to: the answer
        tells.

        Args:
            timer, timer_topic: as for `cancel`.
            deliver_at, delay, level, window: when, as for `schedule`; a delay counts from now.
            topic, value, key, headers, partition: the message, as for `schedule`. With a handle
                they may be left out: the message is then read back from the timer topic, blocking,
                and a `value` takes the place of its own.

        Returns:
            The new timer, once Kafka has acknowledged it.

        Raises:
            InvalidTimer: as for `cancel`, or the message to be read back is no longer in Kafka;
                nothing was sent.
            KafkaUnavailable, ConfigError: Kafka, or the reply topic, cannot be read; nothing was
                sent.
        """
        when = DueTime.of(deliver_at, delay, level)
        timer_topic = timer_topic or self.timer_topic
        handle = self._handle(timer, timer_topic)
        timer_id = timer if handle is None else handle.id
        given = _users(headers)
        if topic is None:
            alone = key is None and partition is None and not given
            key, value, given = self._read_message(handle, value, alone=alone)
        elif value is SAME:
            raise InvalidTimer("give the value, too: with a topic no message is read back")
        else:
            given += _target(topic, partition, timer_topic)
        number = self._number(timer, handle, key, partition, timer_topic)
        request = [
            *given,
            when.header,
            *window_headers(window),
            (NAME_OF[Request.TIMER_ID], id_bytes(timer_id)),
            (NAME_OF[Request.RESCHEDULE], b"true"),
            *_only(handle),
        ]
        return self._ask(
            lambda: self._producer.send(timer_topic, value, key, request, number),
            lambda at, reply: Rescheduled(*self._timer(timer_id, when, at), reply),
        )

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Iterable[NonNullHeader] | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> FutureRecordMetadata:
        """`KafkaProducer.send`, for programs that set the request headers themselves.

        A record with a header that gives a due time (or cancels a timer) goes to the timer topic,
        and `topic` and `partition` into its headers. Any other one goes straight to `topic`, and so
        does one that is for the timer topic already.

        Returns:
            kafka-python's future of where the record was written.

        Raises:
            InvalidTimer: a timer's headers name a target besides `topic`; nothing was sent.
        """
        given = list(headers or ())
        if topic == self.timer_topic or not has_due_time(given):
            return self._producer.send(topic, value, key, given, partition, timestamp_ms)
        _refuse(given, _TARGET)
        return self._write(topic, value, key, given, partition, timestamp_ms)

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until all that was sent is acknowledged or has failed."""
        self._producer.flush(timeout_s)

    def close(self, timeout_s: float | None = None) -> None:
        """Flush, and disconnect."""
        self._producer.close(timeout_s)
        if self._answers is not None:
            self._answers.close()
        self._messages.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(
        self,
        target: str,
        value: Any,
        key: Any,
        headers: list[NonNullHeader],
        partition: int | None,
        timestamp_ms: int | None,
    ) -> FutureRecordMetadata:
        """A record into the timer topic."""
        headers = [*headers, *_target(target, partition, self.timer_topic)]
        number = None if partition is None else self._modulo(partition, self.timer_topic)
        return self._producer.send(self.timer_topic, value, key, headers, number, timestamp_ms)

    def _timer(self, id: str | None, when: DueTime, at: Any) -> tuple[str, str, int, int, int]:
        """The attributes of the timer whose record is there."""
        due_ms = when.due_ms(at.timestamp, self._levels_ms)
        return _source(at) if id is None else id, at.topic, at.partition, at.offset, due_ms

    def _read_message(
        self, handle: RecallHandle | None, value: Any, *, alone: bool
    ) -> tuple[Any, Any, list[NonNullHeader]]:
        """Key, value and headers of a timer's message, or this value in the place of its own.

        Args:
            handle: of the timer.
            value: a value, or SAME.
            alone: nothing else of the message was given.
        """
        if handle is None:
            raise InvalidTimer("an id does not tell the message: give topic and value")
        if not alone:
            raise InvalidTimer("without topic the message is read back: give no more than a value")
        message = self._messages.read(handle)
        return message.key, message.value if value is SAME else value, message.kept

    def _modulo(self, partition: int, timer_topic: str) -> int:
        return partition % len(self._producer.partitions_for(timer_topic))

    def _handle(self, timer: str, timer_topic: str) -> RecallHandle | None:
        """The handle that it is; None: then it can only be an id."""
        if not RecallHandle.is_one(timer):
            return None
        handle = RecallHandle.decode(timer)
        if handle.timer_topic != timer_topic:
            raise InvalidTimer(
                f'the recall handle is of the timer topic "{handle.timer_topic}", '
                f'not of "{timer_topic}"'
            )
        if handle.partition not in self._producer.partitions_for(timer_topic):
            raise InvalidTimer(f'"{timer_topic}" has no partition {handle.partition}')
        return handle

    def _number(
        self,
        timer: str,
        handle: RecallHandle | None,
        key: Any,
        partition: int | None,
        timer_topic: str,
    ) -> int | None:
        """The partition in which the timer lies; None: its key tells."""
        if handle is not None:
            return handle.partition
        if key is None and partition is None:
            raise InvalidTimer(
                f"{timer!r} is no recall handle, or was changed or cut short; "
                "and an id needs the timer's key or partition"
            )
        return None if partition is None else self._modulo(_checked(partition), timer_topic)

    def _ask(
        self,
        write: Callable[[], FutureRecordMetadata],
        made: Callable[[Any, Future[Answer] | None], T],
    ) -> Future[T]:
        """Expect the answer first, then write: an answer may come before `write` returns."""
        answers = self._answers
        if answers is None:
            return _future(write(), lambda at: made(at, None))
        request = answers.expect()
        try:
            sent = write()
        except BaseException:
            answers.failed(request)
            raise
        sent.add_errback(lambda _: answers.failed(request))
        return _future(sent, lambda at: made(at, answers.written(request, _source(at))))


def has_due_time(headers: Iterable[NonNullHeader]) -> bool:
    """Whether a record with these headers belongs into the timer topic.

    As at ingest, the last of several levels counts, and a level of 0 or below is none.
    """
    requests = {REQUEST[name]: value for name, value in headers if name in REQUEST}
    level = requests.get(Request.LEVEL)
    given = level is not None and not re.fullmatch(rb"[+-]?0+|-[0-9]+", level)
    return given or not _ROUTED.isdisjoint(requests)


def _future(sent: FutureRecordMetadata, made: Callable[[Any], T]) -> Future[T]:
    """The result of `made` once Kafka has acknowledged the record."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()  # Kafka's thread could not answer a cancelled one

    def acknowledged(at: Any) -> None:
        try:
            result = made(at)
        except Exception as error:  # noqa: BLE001 - kafka-python would log it, and the future stay
            future.set_exception(error)
        else:
            future.set_result(result)

    sent.add_callback(acknowledged)
    sent.add_errback(future.set_exception)
    return future


def _source(at: Any) -> str:
    """An acknowledged record, as headers name it."""
    return f"{at.topic}-{at.partition}@{at.offset}"


def _users(headers: Iterable[NonNullHeader]) -> list[NonNullHeader]:
    """The headers that a user gives, none of them a request; without what a delivery added."""
    given = list(headers)
    if any(name == SOURCE for name, _ in given):
        given = [header for header in given if header[0] not in _ADDED]
    _refuse(given, REQUEST.keys() - _ADDED | {TIMER_ID})
    return given


def _only(handle: RecallHandle | None) -> list[NonNullHeader]:
    """The header that says which of the timers with an id is meant; none: all of them."""
    return [] if handle is None else [(NAME_OF[Request.CANCEL_OFFSET], b"%d" % handle.offset)]


def _target(topic: str, partition: int | None, timer_topic: str) -> list[NonNullHeader]:
    """The headers that say where to."""
    if topic == timer_topic:
        raise InvalidTimer(f'the target "{topic}" is the timer topic itself')
    aimed = [(NAME_OF[Request.TARGET_TOPIC], topic.encode())]
    if partition is not None:
        aimed.append((NAME_OF[Request.TARGET_PARTITION], b"%d" % _checked(partition)))
    return aimed


def _checked(partition: int) -> int:
    if not whole(partition) or partition < 0:
        raise InvalidTimer(f"partition {partition!r} is not a whole number from 0 up")
    return partition


def _refuse(headers: Iterable[NonNullHeader], reserved: set[str]) -> None:
    for name, _ in headers:
        if name in reserved:
            raise InvalidTimer(f"the header {name} is reserved: give the argument it stands for")
