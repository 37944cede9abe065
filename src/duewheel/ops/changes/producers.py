"""The DelayProducers of a command, or of `duewheel serve`, which keeps them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import TypeVar

import structlog
from kafka.errors import KafkaError, MessageSizeTooLargeError

from duewheel.client import Answer, Cancel, DelayProducer, Rescheduled
from duewheel.config.settings import Settings
from duewheel.errors import DuewheelError, InvalidTimer, Unacknowledged
from duewheel.kafka.connect.bootstrap import require_connection

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
        """Flushes for CLOSE_S at most in all, and disconnects. A longer call, such as the opening
        of a producer, ends with the process: all threads are daemons.
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
