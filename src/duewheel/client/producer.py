"""`DelayProducer`: a Kafka producer with due times.

    with DelayProducer("orders.delayed", bootstrap_servers="localhost:9092") as producer:
        future = producer.schedule("orders", b"pay your order", key=b"order-42", delay="15m")
        timer = future.result(timeout=10)
        producer.cancel(timer.handle)

A timer is one record in the timer topic, with request headers for due time and target
(header_names.py). Its partition there keeps the order of related timers:

    requested partition    the same one (modulo the number of partitions); it also becomes REAL_QID
    key                    Kafka's usual hash of it, murmur2, as the Java client computes it
    neither                one partition until a batch is full, then another (KIP-480, "sticky");
                           of a recurring timer that of its id

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
from functools import partial
from typing import Any, Final, Self, TypeVar, Unpack

from kafka import KafkaProducer
from kafka.partitioner import StickyPartitioner, murmur2
from kafka.producer.future import FutureRecordMetadata

from duewheel.api.due_time import MAX_DELAY, DueTime, NonNullHeader, span_ms, window_headers
from duewheel.api.recurring_time import RecurringArguments, RecurringTime
from duewheel.client import request_headers
from duewheel.client.futures import Acknowledgement, Cancel, Rescheduled, Timer
from duewheel.client.handle import RecallHandle, id_bytes
from duewheel.client.message_reader import MessageReader, RawBytes, Untouching
from duewheel.client.replies import ReplyReader
from duewheel.clock import SystemClock
from duewheel.deadline import Deadline
from duewheel.errors import ConfigError, InvalidTimer, KafkaUnavailable
from duewheel.kafka.connect.client_options import shared_out_of
from duewheel.kafka.connect.clients import KafkaClients
from duewheel.kafka.log.reader import LogReader
from duewheel.schemas.header_names import (
    LEVELS_MS,
    NAME_OF,
    REQUEST,
    Answer,
    IfPending,
    Request,
)
from duewheel.schemas.name_patterns import may_name_topic

__all__ = ["SAME", "Answer", "Cancel", "DelayProducer", "Rescheduled", "Timer"]

T = TypeVar("T")

_BOOTSTRAP_MS = 30_000
_MAX_BLOCK_MS = int(KafkaProducer.DEFAULT_CONFIG["max_block_ms"])
_TOPIC_S = 5.0  # a broker that answers describes a topic within milliseconds

SAME: Final = object()
"""The value of a message that is read back."""

_OWNED = {
    "acks": "a timer that one broker alone holds may be lost",
    "enable_idempotence": "without it a retry may double a timer",
    "partitioner": "timers with the same key must lie in the same partition",
    "transactional_id": "there are no transactions here",
}
# The headers by which `send` routes a record to the timer topic.
_ROUTED = {
    Request.DELAY_SEC,
    Request.DELAY_MS,
    Request.DELIVER_AT,
    Request.DELIVER_AFTER,
    Request.CANCEL,
    Request.RESCHEDULE,
    Request.CRON,
    Request.EVERY,
}


class DelayProducer:
    """Schedules messages, and sends others directly to their topic. Thread-safe.

    Errors of Kafka are kafka-python's own (`kafka.errors.KafkaError`): after one, the record may or
    may not have been written. Records that are not acknowledged yet stay in memory without bound:
    wait for results regularly, or `flush`.
    """

    def __init__(
        self,
        timer_topic: str,
        *,
        levels_ms: Sequence[int] = LEVELS_MS,
        max_delay: timedelta | str = MAX_DELAY,
        reply_topic: str | None = None,
        **options: Any,
    ) -> None:
        """Connects; blocks until a broker answers, at most `bootstrap_timeout_ms` (30 s). A refused
        login ends it within seconds.

        Args:
            timer_topic: one of the topics in duewheel's `timer.topics`.
            levels_ms: duewheel's `timer.levels`: a higher level is refused.
            max_delay: duewheel's `timer.max_delay`: a longer delay, window included, is refused.
            reply_topic: duewheel's `timer.reply_topic`; without it a cancel has no `answer`.
            options: settings of `kafka.KafkaProducer`, under its names.

        Raises:
            ConfigError: `options` has one that this class sets itself, the brokers refuse the
                login, or `timer_topic` is no name of a topic.
            KafkaUnavailable: no broker answers in time.
        """
        for name in sorted(options.keys() & _OWNED.keys()):
            raise ConfigError(f"{name} is set by DelayProducer: {_OWNED[name]}")
        if not may_name_topic(timer_topic):
            raise ConfigError(f"the timer topic {timer_topic!r} is no topic name")
        self.timer_topic = timer_topic
        self._levels_ms = tuple(levels_ms)
        self._max_delay_ms = span_ms(max_delay, "max_delay")
        own: dict[str, Any] = {"acks": "all", "enable_idempotence": True}
        own["partitioner"] = StickyPartitioner()
        for name in ("key_serializer", "value_serializer"):
            own[name] = Untouching(options.pop(name, None))
        # A topic made by a mistaken name would take timers that nobody reads.
        options.setdefault("allow_auto_create_topics", False)
        self._topic_s = min(_TOPIC_S, options.get("max_block_ms", _MAX_BLOCK_MS) / 1000)
        self._described: set[str] = set()  # timer topics that exist
        self._client = client = KafkaClients(shared_out_of(options))
        self._messages = MessageReader(client)
        self.replies = None if reply_topic is None else ReplyReader(client, reply_topic)
        timeout_ms = options.pop("bootstrap_timeout_ms", None) or _BOOTSTRAP_MS
        self._producer = client.open(KafkaProducer, Deadline(timeout_ms / 1000), **options, **own)

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
        tag: str | None = None,
        expires_at: datetime | int | None = None,
        id: str | None = None,
        partition: int | None = None,
        if_pending: IfPending | None = None,
        **recurring: Unpack[RecurringArguments],
    ) -> Future[Timer]:
        """Schedules a message for delivery to `topic`. A due time in the past is due at once.

        Args:
            topic: the target.
            value, key: bytes, or what the options `value_serializer` and `key_serializer` take.
            headers: delivered unchanged, before those that duewheel adds. The headers of a
                delivered message are accepted: those that its delivery added (TIMER_SOURCE,
                TIMER_DUE_MS, UNIQ_KEY, …) are removed, and the new timer has an id of its own.
            deliver_at: a datetime with a zone, or epoch ms.
            delay: a timedelta, or text such as "90s", "15m" or "1h30m"; counts from the timestamp
                of the record in the timer topic, so from the broker's clock.
            level: 1, 2, …: one of the configured delays.
            window: deliver it within this time after the due time, at a moment derived from its
                key, or else its id; `due_ms` of the result is the due time without the window.
            tag: a word of 64 bytes at most, by which timers are listed, cancelled and paused; a
                header of the delivery, too.
            expires_at: as `deliver_at`, and not before the due time: after it the message becomes a
                dead letter (`expired`). A header of the delivery, too.
            id: the timer's id, for consumers and for cancels; by default its record's position.
            partition: of `topic`; by default Kafka's usual choice at delivery.
            if_pending: its fate while an earlier timer with its `id` is pending in its partition.
                "keep": the earlier one stays, and this one is not delivered; "replace": this one
                takes its place. The reply says which it was; it is not awaited.
            recurring: in place of a due time: `cron` or `every`, and others (RecurringArguments).
                It fires at each instant until it is cancelled, and needs an `id`, its name.
                `due_ms` of the result is its record's timestamp, from which an interval counts.

        Returns:
            The timer, once Kafka has acknowledged it. Cancelling this future has no effect.

        Raises:
            InvalidTimer: the arguments contradict each other, cannot be read, or exceed a maximum;
                nothing was sent.
            ConfigError, KafkaUnavailable: there is no such timer topic, or Kafka does not describe
                it in time; nothing was sent.
        """
        when = self._when("schedule", deliver_at, delay, level, recurring, window)
        now_ms = SystemClock().now_ms()
        request = request_headers.timer_headers(
            *(topic, when, self.timer_topic),
            headers=headers,
            window=window,
            tag=tag,
            expires_at=expires_at,
            id=id,
            partition=partition,
            if_pending=if_pending,
            due_ms=None if expires_at is None else when.due_ms(now_ms, self._levels_ms),
        )
        sent = self._write(value, key, request, self._routed(when, id, key, partition), None)
        what = f'timer for "{topic}"' if id is None else f'timer "{id}" for "{topic}"'
        return future_of(what, sent, lambda at: Timer(*self._timer(id, when, at)))

    def cancel(
        self,
        timer: str,
        *,
        key: Any = None,
        partition: int | None = None,
        timer_topic: str | None = None,
        headers: Iterable[NonNullHeader] = (),
        reply: bool = True,
    ) -> Future[Cancel]:
        """Cancels pending timers: one by its handle, or those of an id in one partition.

        With a reply topic, the first call blocks while the reader of the replies connects.

        Args:
            timer: the recall handle of one timer; or the id of timers, together with the key or
                the partition that `schedule` was given. A timer that was given neither can be
                cancelled by its handle only; in a topic whose keys are ids, a timer without an id
                by its key only.
            key, partition: of the timers; `Timer.partition` serves, too.
            timer_topic: by default the producer's. A handle of another one is refused.
            headers: your own headers, which the reply repeats, up to 2 KiB of them.
            reply: False: no reply is awaited, so the reply topic is not read, and there is no
                `answer`.

        Returns:
            The cancel, once Kafka has acknowledged it; its `answer` is the outcome.

        Raises:
            InvalidTimer: the handle does not parse, or the arguments contradict each other;
                nothing was sent.
            KafkaUnavailable, ConfigError: the reply topic cannot be read; nothing was sent.
        """
        topic = timer_topic or self.timer_topic
        self._require_topic(topic)
        handle = self._handle(timer, topic)
        if handle is not None and (key is not None or partition is not None):
            raise InvalidTimer(
                "a recall handle contains its partition: give neither key nor partition"
            )
        timer_id = timer if handle is None else handle.id
        number = self._number(timer, handle, key, partition, topic)
        request = [
            *request_headers.users(headers),
            (NAME_OF[Request.CANCEL], id_bytes(timer_id)),
            *request_headers.only(handle),
        ]
        return self._ask(
            *(f"cancel of {timer_id!r}", topic),
            lambda: self._producer.send(topic, RawBytes(), key, request, number),
            lambda at, reply: Cancel(timer_id, at.topic, at.partition, at.offset, reply),
            reply=reply,
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
        reply: bool = True,
        **recurring: Unpack[RecurringArguments],
    ) -> Future[Rescheduled]:
        """Replaces timers by a new one: cancels them as `cancel` does, and schedules the new one.

        The new timer is delivered even if there was nothing to cancel, or the request came too
        late; `answer` has that outcome.

        Args:
            timer, timer_topic, reply: as for `cancel`.
            deliver_at, delay, level, window, recurring: the due time, or the instants, as for
                `schedule`; a delay counts from now.
            topic, value, key, headers, partition: the message, as for `schedule`. With a handle
                they may be omitted: the call then reads the message back from the timer topic,
                blocking, and a `value` replaces its own.

        Returns:
            The new timer, once Kafka has acknowledged it.

        Raises:
            InvalidTimer: as for `cancel`, or the message is no longer in Kafka; nothing was sent.
            KafkaUnavailable, ConfigError: Kafka, or the reply topic, cannot be read; nothing was
                sent.
        """
        when = self._when("reschedule", deliver_at, delay, level, recurring, window)
        timer_topic = timer_topic or self.timer_topic
        self._require_topic(timer_topic)
        handle = self._handle(timer, timer_topic)
        timer_id = timer if handle is None else handle.id
        request_headers.require_consistent(when, timer_id, window)
        given = request_headers.users(headers)
        if topic is None:
            alone = key is None and partition is None and not given
            key, value, given = self._read_message(handle, value, alone=alone)
        elif value is SAME:
            raise InvalidTimer("give the value, too: with a topic no message is read back")
        else:
            given += request_headers.target(topic, partition, timer_topic)
        routed = self._routed(when, timer_id, key, partition) if handle is None else partition
        number = self._number(timer, handle, key, routed, timer_topic)
        request = [
            *given,
            *when.headers,
            *window_headers(window),
            (NAME_OF[Request.TIMER_ID], id_bytes(timer_id)),
            (NAME_OF[Request.RESCHEDULE], b"true"),
            *request_headers.only(handle),
        ]
        return self._ask(
            *(f"reschedule of {timer_id!r}", timer_topic),
            lambda: self._send(timer_topic, value, key, request, number),
            lambda at, reply: Rescheduled(*self._timer(timer_id, when, at), reply),
            reply=reply,
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
        """Sends as `KafkaProducer.send`, for programs that set the request headers themselves.

        A record with a header for a due time (or for a cancel) goes to the timer topic, with
        `topic` and `partition` in its headers. Any other record goes directly to `topic`, and so
        does a record whose `topic` is the timer topic.

        Returns:
            kafka-python's future of the record's position.

        Raises:
            InvalidTimer: a timer's headers name a target besides `topic`; nothing was sent.
        """
        given = list(headers or ())
        if not self.delays(topic, given):
            return self._producer.send(topic, value, key, given, partition, timestamp_ms)
        request_headers.refuse(given, request_headers.TARGET)
        given += request_headers.target(topic, partition, self.timer_topic)
        return self._write(value, key, given, partition, timestamp_ms)

    def delays(self, topic: str, headers: Iterable[NonNullHeader]) -> bool:
        """Returns whether `send` routes such a record to the timer topic."""
        return topic != self.timer_topic and has_due_time(headers)

    def partitions_for(self, topic: str) -> set[int]:
        """Returns the partitions of a topic, as `KafkaProducer.partitions_for`: blocks until Kafka
        has described the topic, which `send` would do too, at most `max_block_ms`.
        """
        partitions: set[int] = self._producer.partitions_for(topic)
        return partitions

    def partition_of(self, key: bytes) -> int:
        """Returns the partition of the timer topic that a record with this key goes to.

        Raises:
            ConfigError, KafkaUnavailable: as `schedule`.
        """
        self._require_topic(self.timer_topic)
        return self._modulo(murmur2(key) & 0x7FFFFFFF, self.timer_topic)

    def flush(self, timeout_s: float | None = None) -> None:
        """Waits until every sent record is acknowledged or has failed."""
        self._producer.flush(timeout_s)

    def close(self, timeout_s: float | None = None) -> None:
        """Flushes, and disconnects.

        Raises:
            KafkaTimeoutError: some records are not acknowledged within the time.
        """
        try:
            self._producer.close(timeout_s)
        finally:
            if self.replies is not None:
                self.replies.close(timeout_s)
            self._messages.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(
        self,
        value: Any,
        key: Any,
        headers: list[NonNullHeader],
        partition: int | None,
        timestamp_ms: int | None,
    ) -> FutureRecordMetadata:
        """Writes a record into the timer topic."""
        self._require_topic(self.timer_topic)
        number = None if partition is None else self._modulo(partition, self.timer_topic)
        return self._send(self.timer_topic, value, key, headers, number, timestamp_ms)

    def _send(self, topic: str, value: Any, key: Any, *others: Any) -> FutureRecordMetadata:
        try:
            return self._producer.send(topic, value, key, *others)
        except ValueError:
            request_headers.require_message(key, value)  # a serializer may make one of None
            raise

    def _require_topic(self, topic: str) -> None:
        """Refuses a timer topic that Kafka does not describe; kafka-python alone would wait for
        `max_block_ms`, and not name it.

        Raises:
            ConfigError: there is no such topic.
            KafkaUnavailable: Kafka does not answer, or gives the topic no leader yet.
        """
        if topic in self._described:
            return
        deadline, what = Deadline(self._topic_s), f'describe the timer topic "{topic}"'
        try:
            self._client.call(deadline, what, lambda: self._producer.partitions_for(topic))
        except KafkaUnavailable:
            self._refuse_missing(topic)
            raise
        self._described.add(topic)

    def _refuse_missing(self, topic: str) -> None:
        """Raises ConfigError if brokers answer, and have no such topic."""
        with LogReader(self._client, [topic], partial(Deadline, _TOPIC_S)) as reader:
            known = reader.partitions()
        if not known:
            raise ConfigError(
                f'Kafka at {self._client.address} has no timer topic "{topic}", or this client has '
                "no right to describe it: `duewheel init` creates those of the settings"
            )

    def _when(
        self,
        method: str,
        deliver_at: datetime | int | None,
        delay: timedelta | str | None,
        level: int | None,
        recurring: RecurringArguments,
        window: timedelta | str | None,
    ) -> DueTime | RecurringTime:
        """Makes the due time, which ingest must not refuse, or the instants."""
        when = request_headers.requested_time(method, deliver_at, delay, level, recurring)
        if isinstance(when, DueTime):
            now_ms = SystemClock().now_ms()
            when.require_within(self._levels_ms, self._max_delay_ms, now_ms, window)
        return when

    def _routed(
        self, when: DueTime | RecurringTime, id: str | None, key: Any, partition: int | None
    ) -> int | None:
        """The partition; of a recurring timer without one and without a key that of its name."""
        if isinstance(when, RecurringTime) and key is None and partition is None:
            return self.partition_of(id_bytes(str(id)))
        return partition

    def _timer(
        self, id: str | None, when: DueTime | RecurringTime, at: Any
    ) -> tuple[str, str, int, int, int]:
        """Returns the attributes of the timer with this record."""
        due_ms = when.due_ms(at.timestamp, self._levels_ms)
        return _source(at) if id is None else id, at.topic, at.partition, at.offset, due_ms

    def _read_message(
        self, handle: RecallHandle | None, value: Any, *, alone: bool
    ) -> tuple[Any, Any, list[NonNullHeader]]:
        """Reads key, value and headers of a timer's message back; `value` replaces its own.

        Args:
            handle: of the timer.
            value: a value, or SAME.
            alone: whether no other part of the message was given.
        """
        if handle is None:
            raise InvalidTimer("an id names no message: give target (topic) and value")
        if not alone:
            raise InvalidTimer("without topic the message is read back: give at most a value")
        message = self._messages.read(handle)
        return message.key, message.value if value is SAME else value, message.kept

    def _modulo(self, partition: int, timer_topic: str) -> int:
        return partition % len(self.partitions_for(timer_topic))

    def _handle(self, timer: str, timer_topic: str) -> RecallHandle | None:
        """Parses a handle; None if the text can only be an id."""
        if not RecallHandle.is_one(timer):
            return None
        handle = RecallHandle.decode(timer)
        if handle.timer_topic != timer_topic:
            raise InvalidTimer(
                f'the recall handle names the timer topic "{handle.timer_topic}", '
                f'not "{timer_topic}"'
            )
        if handle.partition not in self.partitions_for(timer_topic):
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
        """Returns the timer's partition; None if its key determines it."""
        if handle is not None:
            return handle.partition
        if key is None and partition is None:
            raise InvalidTimer(
                f"{timer!r} is no recall handle, or was changed or cut short; "
                "and an id needs the timer's key or partition"
            )
        if partition is None:
            return None
        return self._modulo(request_headers.checked(partition), timer_topic)

    def _ask(
        self,
        what: str,
        timer_topic: str,
        write: Callable[[], FutureRecordMetadata],
        made: Callable[[Any, Future[Answer] | None], T],
        *,
        reply: bool,
    ) -> Future[T]:
        """Registers for the reply first, then writes: a reply may come before `write` returns."""
        replies = self.replies if reply else None
        if replies is None:
            return future_of(what, write(), lambda at: made(at, None))
        request = replies.expect(timer_topic)
        try:
            sent = write()
        except BaseException:
            replies.failed(request)
            raise
        sent.add_errback(lambda _: replies.failed(request))
        return future_of(what, sent, lambda at: made(at, replies.written(request, _source(at))))


def has_due_time(headers: Iterable[NonNullHeader]) -> bool:
    """Returns whether a record with these headers belongs in the timer topic.

    As at ingest, the last of several levels counts, and a level of 0 or below means none.
    """
    requests = {REQUEST[name]: value for name, value in headers if name in REQUEST}
    level = requests.get(Request.LEVEL)
    given = level is not None and not re.fullmatch(rb"[+-]?0+|-[0-9]+", level)
    return given or not _ROUTED.isdisjoint(requests)


def future_of(what: str, sent: FutureRecordMetadata, made: Callable[[Any], T]) -> Future[T]:
    """Makes a future with the result of `made` once Kafka has acknowledged the record.

    Args:
        what: names the record in the text of a time-out.
        sent: by `KafkaProducer.send`.
        made: called with the record's position.
    """
    future = Acknowledgement[T](what)
    future.set_running_or_notify_cancel()  # a cancelled future would raise in Kafka's thread

    def acknowledged(at: Any) -> None:
        try:
            result = made(at)
        except Exception as error:  # noqa: BLE001 - kafka-python would only log it: no result ever
            future.set_exception(error)
        else:
            future.set_result(result)

    sent.add_callback(acknowledged)
    sent.add_errback(future.set_exception)
    return future


def _source(at: Any) -> str:
    """Names an acknowledged record as topic-partition@offset."""
    return f"{at.topic}-{at.partition}@{at.offset}"
