"""`DelayProducer`: a Kafka producer that can also say when.

    with DelayProducer("orders.delayed", bootstrap_servers="localhost:9092") as producer:
        asked = producer.schedule("orders", b"pay your order", key=b"order-42", delay="15m")
        print(asked.result(timeout=10).due_ms)

What is due later is one record in the timer topic, with request headers that say when and where to
(header_names.py). Its partition there, so that what must keep its order stays together:

    partition asked for    the same one (modulo the number of partitions); it also becomes REAL_QID
    key                    Kafka's usual hash of it, murmur2, as the Java client computes it
    neither                one partition until a batch is full, then another (KIP-480, "sticky")

Everything is acknowledged by all replicas, and a retry by the client never doubles it. Imported
here are the standard library and kafka-python.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Self, TypeGuard

from kafka import KafkaProducer
from kafka.partitioner import StickyPartitioner
from kafka.producer.future import FutureRecordMetadata

from duewheel.durations import parse_duration_ms
from duewheel.errors import ConfigError, InvalidTimer
from duewheel.schemas.header_names import (
    DUE_MS,
    LEVELS_MS,
    NATIVE,
    REQUEST,
    ROLL_TIMES,
    SOURCE,
    Request,
)

Header = tuple[str, bytes]

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
_TARGET = {NATIVE[Request.TARGET_TOPIC], NATIVE[Request.TARGET_PARTITION]}
_ADDED = {SOURCE, DUE_MS, ROLL_TIMES}  # by an earlier delivery: ingest passes them over
_MILLISECOND = timedelta(milliseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Timer:
    """A timer that Kafka has acknowledged.

    Attributes:
        id: the given one, else "topic-partition@offset" of its record.
        timer_topic: where the record is.
        partition: of the timer topic.
        offset: in that partition.
        due_ms: when it is due, epoch ms; a delay counts from the record's timestamp.
    """

    id: str
    timer_topic: str
    partition: int
    offset: int
    due_ms: int


@dataclass(frozen=True, slots=True)
class DueTime:
    """One way to say when, as a request header: of epoch ms, a delay in ms, or a level."""

    request: Request
    number: int

    @classmethod
    def asked(
        cls,
        deliver_at: datetime | int | None = None,
        delay: timedelta | str | None = None,
        level: int | None = None,
    ) -> DueTime:
        """Exactly one of the three, as `DelayProducer.schedule` describes them.

        Raises:
            InvalidTimer: none or several are given, or one that cannot be read.
        """
        if [deliver_at, delay, level].count(None) != 2:
            raise InvalidTimer("give exactly one of deliver_at, delay and level")
        if deliver_at is not None:
            return cls(Request.DELIVER_AT, _instant_ms(deliver_at))
        if delay is not None:
            return cls(Request.DELAY_MS, _delay_ms(delay))
        if not _whole(level) or level < 1:
            raise InvalidTimer(f"level {level!r} is not a whole number from 1 up")
        return cls(Request.LEVEL, level)

    @property
    def header(self) -> Header:
        """The request header."""
        return NATIVE[self.request], b"%d" % self.number

    def due_ms(self, timestamp_ms: int, levels_ms: Sequence[int]) -> int:
        """When a record with this header and timestamp is due, in epoch ms."""
        if self.request is Request.DELIVER_AT:
            return self.number
        if self.request is Request.DELAY_MS:
            return timestamp_ms + self.number
        return timestamp_ms + levels_ms[min(self.number, len(levels_ms)) - 1]


class DelayProducer:
    """Schedules messages, and sends others straight through. Thread-safe.

    Errors of Kafka are kafka-python's own (`kafka.errors.KafkaError`): after one it is open whether
    the record was written. What is not acknowledged yet is kept in memory without bound: wait for
    results now and then, or `flush`.
    """

    def __init__(
        self, timer_topic: str, *, levels_ms: Sequence[int] = LEVELS_MS, **options: Any
    ) -> None:
        """Connect; blocks until a broker answers, at most `bootstrap_timeout_ms` (30 s).

        Args:
            timer_topic: one of the topics in duewheel's `timer.topics`.
            levels_ms: duewheel's `timer.levels`; only to tell when a level is due.
            options: settings of `kafka.KafkaProducer`, under its names.

        Raises:
            ConfigError: one of `options` is decided here.
        """
        for name in sorted(options.keys() & _OWNED.keys()):
            raise ConfigError(f"{name} is set by DelayProducer: {_OWNED[name]}")
        self.timer_topic = timer_topic
        self._levels_ms = tuple(levels_ms)
        own = {"acks": "all", "enable_idempotence": True, "partitioner": StickyPartitioner()}
        self._producer = KafkaProducer(**options, **own)

    def schedule(
        self,
        topic: str,
        value: Any,
        *,
        key: Any = None,
        headers: Iterable[Header] = (),
        deliver_at: datetime | int | None = None,
        delay: timedelta | str | None = None,
        level: int | None = None,
        id: str | None = None,
        partition: int | None = None,
    ) -> Future[Timer]:
        """Have a message delivered to `topic` later. One in the past is due at once.

        Args:
            topic: where it goes when it is due.
            value: bytes, or what the option `value_serializer` takes.
            key: bytes, or what the option `key_serializer` takes; None for no key.
            headers: delivered as they are, before those that duewheel adds. Those that an earlier
                delivery added (TIMER_SOURCE, TIMER_DUE_MS, …) may be among them: they are replaced.
            deliver_at: a datetime with a zone, or epoch ms.
            delay: a timedelta, or text such as "90s", "15m" or "1h30m"; counts from the timestamp
                of the record in the timer topic, so from the broker's clock.
            level: 1, 2, …: one of the configured delays; above the highest counts as the highest.
            id: the timer's id, for consumers; by default where its record lies.
            partition: of `topic`; by default Kafka's usual choice at delivery.

        Returns:
            The timer, once Kafka has acknowledged it. Cancelling this future has no effect.

        Raises:
            InvalidTimer: the arguments contradict each other or cannot be read; nothing was sent.
        """
        when = DueTime.asked(deliver_at, delay, level)
        given = list(headers)
        _refuse(given, REQUEST.keys() - _ADDED)
        request = [when.header]
        if id is not None:
            request.append((NATIVE[Request.TIMER_ID], id.encode()))
        sent = self._write(topic, value, key, [*given, *request], partition, None)
        timer: Future[Timer] = Future()
        timer.set_running_or_notify_cancel()  # Kafka's thread could not answer a cancelled one
        sent.add_callback(lambda written: timer.set_result(self._timer(id, when, written)))
        sent.add_errback(timer.set_exception)
        return timer

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Iterable[Header] | None = None,
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
        if topic == self.timer_topic or not asks_for_time(given):
            return self._producer.send(topic, value, key, given, partition, timestamp_ms)
        _refuse(given, _TARGET)
        return self._write(topic, value, key, given, partition, timestamp_ms)

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until all that was sent is acknowledged or has failed."""
        self._producer.flush(timeout_s)

    def close(self, timeout_s: float | None = None) -> None:
        """Flush, and disconnect."""
        self._producer.close(timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _write(
        self,
        target: str,
        value: Any,
        key: Any,
        headers: list[Header],
        partition: int | None,
        timestamp_ms: int | None,
    ) -> FutureRecordMetadata:
        """A record into the timer topic."""
        if target == self.timer_topic:
            raise InvalidTimer(f'the target "{target}" is the timer topic itself')
        headers = [*headers, (NATIVE[Request.TARGET_TOPIC], target.encode())]
        if partition is not None:
            if not _whole(partition) or partition < 0:
                raise InvalidTimer(f"partition {partition!r} is not a whole number from 0 up")
            headers.append((NATIVE[Request.TARGET_PARTITION], b"%d" % partition))
            partition %= len(self._producer.partitions_for(self.timer_topic))
        return self._producer.send(self.timer_topic, value, key, headers, partition, timestamp_ms)

    def _timer(self, id: str | None, when: DueTime, written: Any) -> Timer:
        place = f"{written.topic}-{written.partition}@{written.offset}"
        due_ms = when.due_ms(written.timestamp, self._levels_ms)
        timer_id = place if id is None else id
        return Timer(timer_id, written.topic, written.partition, written.offset, due_ms)


def asks_for_time(headers: Iterable[Header]) -> bool:
    """Whether a record with these headers belongs into the timer topic.

    As at ingest, the last of several levels counts, and a level of 0 or below is none.
    """
    asked = {REQUEST[name]: value for name, value in headers if name in REQUEST}
    level = asked.get(Request.LEVEL)
    given = level is not None and not re.fullmatch(rb"[+-]?0+|-[0-9]+", level)
    return given or not _ROUTED.isdisjoint(asked)


def _refuse(headers: Iterable[Header], reserved: set[str]) -> None:
    for name, _ in headers:
        if name in reserved:
            raise InvalidTimer(f"the header {name} is reserved: give the argument it stands for")


def _instant_ms(deliver_at: datetime | int) -> int:
    """Epoch ms, rounded up: a timer is never early."""
    if _whole(deliver_at):
        return deliver_at
    if not isinstance(deliver_at, datetime):
        raise InvalidTimer(f"deliver_at {deliver_at!r} is neither a datetime nor epoch ms")
    if deliver_at.utcoffset() is None:
        raise InvalidTimer(f"deliver_at {deliver_at.isoformat()} has no zone: it could be any hour")
    return -((_EPOCH - deliver_at) // _MILLISECOND)


def _delay_ms(delay: timedelta | str) -> int:
    """Milliseconds, rounded up."""
    if isinstance(delay, timedelta):
        return -(-delay // _MILLISECOND)
    if not isinstance(delay, str):
        raise InvalidTimer(f'delay {delay!r} has no unit: give a timedelta, or text such as "15m"')
    try:
        return parse_duration_ms(delay)
    except ValueError as error:
        raise InvalidTimer(f"delay: {error}") from error


def _whole(number: object) -> TypeGuard[int]:
    return isinstance(number, int) and not isinstance(number, bool)
