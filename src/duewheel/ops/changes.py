"""Writes timers, cancels and reschedules with a DelayProducer: for the commands of these names, and
for `duewheel serve`, which keeps its producers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import TypeVar

import structlog
from kafka.errors import KafkaError, MessageSizeTooLargeError

from duewheel.api.changes import Answered, RescheduledTimer, Scheduled
from duewheel.api.due_time import NonNullHeader
from duewheel.api.requests import DueTimeFields, NamedTimers, NewTimer, Replacement, octets
from duewheel.client import SAME, Answer, Cancel, DelayProducer, Rescheduled, Timer
from duewheel.client.handle import RecallHandle
from duewheel.client.request_headers import timer_headers
from duewheel.clock import SystemClock
from duewheel.config.settings import Settings
from duewheel.config.topic_contradictions import nearest
from duewheel.config.values import as_millis
from duewheel.errors import ConfigError, DuewheelError, InvalidTimer, Unacknowledged
from duewheel.kafka.bootstrap import require_connection
from duewheel.ops.acceptance import require_accepted

log = structlog.get_logger(__name__)

Written = TypeVar("Written", Cancel, Rescheduled)

CLOSE_S = 1.0
ACKNOWLEDGED_S = 15.0  # the longest wait for Kafka to acknowledge a record
REQUESTS_AT_ONCE = 1_000  # records that wait for their acknowledgement


class KeptProducers:
    """One producer for each timer topic, opened when it is first used. Thread-safe."""

    def __init__(self, settings: Settings) -> None:
        """Connects nothing."""
        self._settings = settings
        self._lock = threading.Lock()
        self._opening: dict[str, threading.Lock] = {}
        self._by_topic: dict[str, DelayProducer] = {}

    @contextmanager
    def using(self, timer_topic: str) -> Iterator[DelayProducer]:
        """Yields the producer of a timer topic, which reads replies; closes it after an error: an
        idempotent one may never send again.

        Raises:
            KafkaUnavailable: no server takes connections.
        """
        producer = self._of(timer_topic)
        try:
            yield producer
        except KafkaError as error:
            if not isinstance(error, MessageSizeTooLargeError):
                self._drop(timer_topic, producer)
            raise

    def _of(self, timer_topic: str) -> DelayProducer:
        with self._lock:
            opening = self._opening.setdefault(timer_topic, threading.Lock())
        # Connecting takes long while Kafka is away: requests for other topics must not wait.
        with opening:
            with self._lock:
                if producer := self._by_topic.get(timer_topic):
                    return producer
            producer = self._opened(timer_topic)
            with self._lock:
                self._by_topic[timer_topic] = producer
            return producer

    def _opened(self, timer_topic: str) -> DelayProducer:
        require_connection(self._settings)
        return _opened(self._settings, timer_topic, self._settings.timer.reply_topic)

    def _drop(self, timer_topic: str, failed: DelayProducer) -> None:
        with self._lock:
            # Of several requests that fail with it the first closes it; others have a new one.
            if self._by_topic.get(timer_topic) is not failed:
                return
            del self._by_topic[timer_topic]
        failed.close(1)

    def close(self) -> None:
        """Flushes for CLOSE_S at most in all, and disconnects. What lasts longer, such as opening a
        producer, ends with the process: all threads are daemons.
        """
        end_s = time.monotonic() + CLOSE_S
        if not self._lock.acquire(timeout=CLOSE_S):
            return
        try:
            for producer in self._by_topic.values():
                with suppress(KafkaError):
                    producer.close(max(0.0, end_s - time.monotonic()))
            self._by_topic.clear()
        finally:
            self._lock.release()


def _opened(settings: Settings, timer_topic: str, reply_topic: str | None) -> DelayProducer:
    return DelayProducer(
        timer_topic,
        levels_ms=settings.timer.levels_ms,
        max_delay=settings.timer.max_delay,
        reply_topic=reply_topic,
        **{"max_block_ms": int(ACKNOWLEDGED_S * 1000)} | settings.kafka.client_options("producer"),
    )


def send(settings: Settings, timer: NewTimer, producers: KeptProducers | None = None) -> Scheduled:
    """Writes the timer and waits for Kafka's acknowledgement.

    Raises:
        ConfigError: ingest would refuse it, or a header is reserved.
        KafkaUnavailable: no broker answers; nothing was written.
        Unacknowledged: the timer may or may not have been written.
    """
    to, write = prepared(settings, timer)
    with producer_of(settings, to, None, producers) as producer:
        return scheduled(write(producer).result(ACKNOWLEDGED_S))


def prepared(
    settings: Settings, timer: NewTimer
) -> tuple[str, Callable[[DelayProducer], Future[Timer]]]:
    """Checks a new timer, as `send`; returns its timer topic, and what writes it.

    Raises:
        ConfigError: as `send`.
    """
    to, record = record_headers(settings, timer)
    key, value, headers = timer.key_octets, timer.value_octets, timer.header_octets
    require_accepted(settings, to, key, value, record)
    return to, lambda producer: producer.schedule(
        timer.topic,
        value,
        key=key,
        headers=headers,
        window=timer.window,
        id=timer.id,
        partition=timer.partition,
        **timer.due.arguments,
    )


def record_headers(settings: Settings, timer: NewTimer) -> tuple[str, list[NonNullHeader]]:
    """Returns a new timer's topic, and the headers of its record.

    Raises:
        ConfigError: as `send`.
    """
    to = timer_topic_of(settings, timer.timer_topic)
    require_due(settings, timer)
    return to, timer_headers(
        timer.topic,
        timer.due,
        to,
        headers=timer.header_octets,
        window=timer.window,
        id=timer.id,
        partition=timer.partition,
    )


def scheduled(timer: Timer) -> Scheduled:
    """Returns the result of `send`."""
    return Scheduled(**asdict(timer), handle=timer.handle)


def cancel(
    settings: Settings,
    timer: NamedTimers,
    wait_s: float | None,
    waits_on: Callable[[], bool] = lambda: False,
    producers: KeptProducers | None = None,
) -> Answered:
    """Writes the cancel, and waits for the reply if a reply topic is configured.

    Args:
        settings: of the shard.
        timer: which timers.
        wait_s: the longest wait for the reply; None: do not wait.
        waits_on: called at its end: whether to wait for as long once more.
        producers: of a process that keeps them.

    Raises:
        ConfigError: the handle does not fit these settings.
        KafkaUnavailable: no broker answers, or the reply topic cannot be read; nothing was written.
        Unacknowledged: the cancel may or may not have been written.
    """
    with producer_of(settings, topic_of(settings, timer), wait_s, producers) as producer:
        request = producer.cancel(
            timer.name, key=timer.key_octets, partition=timer.partition, reply=wait_s is not None
        )
        written, answer = answered(request, wait_s, waits_on)
    return Answered(
        id=written.id,
        timer_topic=written.timer_topic,
        partition=written.partition,
        offset=written.offset,
        answer=answer,
    )


def reschedule(
    settings: Settings,
    timer: NamedTimers,
    new: Replacement,
    wait_s: float | None,
    waits_on: Callable[[], bool] = lambda: False,
) -> RescheduledTimer:
    """Writes the new timer, and waits for the reply as `cancel` does.

    Raises:
        ConfigError: as `cancel`, or the message cannot be read back.
        KafkaUnavailable, Unacknowledged: as `cancel`.
    """
    require_due(settings, new)
    to, headers = topic_of(settings, timer), new.header_octets
    value, key = octets("value", new.value, None), timer.key_octets
    if new.topic is not None:
        record = timer_headers(new.topic, new.due, to, headers=headers)
        require_accepted(settings, to, key, value, record)
    with producer_of(settings, to, wait_s) as producer:
        request = producer.reschedule(
            timer.name,
            topic=new.topic,
            value=SAME if value is None else value,
            key=key,
            headers=headers,
            reply=wait_s is not None,
            **new.due.arguments,
        )
        return rescheduled(*answered(request, wait_s, waits_on))


def topic_of(settings: Settings, timer: NamedTimers) -> str:
    """Returns the topic of named timers.

    Raises:
        ConfigError: the handle does not parse, or its topic is no timer topic of these settings.
    """
    if timer.handle is None or timer.timer_topic is not None:
        return timer_topic_of(settings, timer.timer_topic)
    topic = RecallHandle.decode(timer.handle).timer_topic
    if topic not in settings.timer_topics:
        raise ConfigError(f'the recall handle names "{topic}", which is no timer topic')
    return topic


def timer_topic_of(settings: Settings, given: str | None) -> str:
    """The timer topic that a caller names; by default the first.

    Raises:
        ConfigError: there is none, or no such one.
    """
    if given is None and not settings.timer.topics:
        raise ConfigError("timer.topics names none: name the timer topic")
    if given is not None and given not in settings.timer_topics:
        hint = nearest(given, settings.timer.topics)
        raise ConfigError(f'"{given}" is no timer topic of these settings{hint}')
    return given or settings.timer.topics[0]


def require_due(settings: Settings, fields: DueTimeFields) -> None:
    """Refuses a due time that ingest would refuse, before a broker is contacted."""
    timer, now_ms = settings.timer, SystemClock().now_ms()
    fields.due.require_within(timer.levels_ms, as_millis(timer.max_delay), now_ms)


@contextmanager
def producer_of(
    settings: Settings,
    timer_topic: str,
    wait_s: float | None = None,
    kept: KeptProducers | None = None,
) -> Iterator[DelayProducer]:
    """Yields a producer, which reads replies if one is awaited."""
    with acknowledging(settings):
        if kept is not None:
            with kept.using(timer_topic) as producer:
                yield producer
            return
        reply_topic = None if wait_s is None else settings.timer.reply_topic
        producer = _opened(settings, timer_topic, reply_topic)
        try:
            yield producer
        finally:
            producer.close(1)


@contextmanager
def acknowledging(settings: Settings) -> Iterator[None]:
    """Translates the errors of Kafka's client.

    Raises:
        InvalidTimer: the record is larger than the client's max_request_size.
        Unacknowledged: with the client's reason.
    """
    try:
        yield
    except MessageSizeTooLargeError as error:
        raise InvalidTimer(f"the message is too large for Kafka: {error}") from error
    except (KafkaError, TimeoutError) as error:
        reason = str(error) or "no acknowledgement in time"
        text = f"Kafka at {settings.kafka.servers}: {reason}; it may or may not be written"
        raise Unacknowledged(text) from error


def answered(
    request: Future[Written], wait_s: float | None, waits_on: Callable[[], bool] = lambda: False
) -> tuple[Written, Answer | None]:
    """Waits for the acknowledgement, then for the reply; None: there is none in time, or it cannot
    be read. The request is written then, and is no failure: another one would act twice.
    """
    written = request.result(ACKNOWLEDGED_S)
    if wait_s is None or written.reply is None:
        return written, None
    while True:
        try:
            return written, written.answer(wait_s)
        except TimeoutError:
            if not waits_on():
                return written, None
        except DuewheelError as error:
            log.warning("a reply cannot be read", reason=str(error))
            return written, None


def rescheduled(written: Rescheduled, answer: Answer | None) -> RescheduledTimer:
    """Returns the result of `reschedule`."""
    return RescheduledTimer(
        id=written.id,
        timer_topic=written.timer_topic,
        partition=written.partition,
        offset=written.offset,
        due_ms=written.due_ms,
        handle=written.handle,
        answer=answer,
    )
