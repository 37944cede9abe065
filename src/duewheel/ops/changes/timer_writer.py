"""Writes to timer topics as any client does, with a DelayProducer for each."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress

from kafka.errors import KafkaError, MessageSizeTooLargeError

from duewheel.client import DelayProducer
from duewheel.clock import Clock
from duewheel.config.settings import Settings
from duewheel.deadline import Deadline
from duewheel.errors import InvalidTimer, Unacknowledged
from duewheel.kafka.connect.bootstrap import require_connection

CLOSE_S = 1.0
ACKNOWLEDGED_S = 15.0  # the longest wait for Kafka to acknowledge a record
REQUESTS_AT_ONCE = 1_000  # records that wait for their acknowledgement


def connect_producer(settings: Settings, timer_topic: str) -> DelayProducer:
    """Connects a producer of a timer topic, which can read replies.

    Raises:
        KafkaUnavailable: no server logs a client in.
    """
    require_connection(settings)
    return DelayProducer(
        timer_topic,
        levels_ms=settings.timer.levels_ms,
        max_delay=settings.timer.max_delay,
        reply_topic=settings.timer.reply_topic,
        **{"max_block_ms": int(ACKNOWLEDGED_S * 1000)} | settings.kafka.client_options("producer"),
    )


class TimerWriter:
    """The producers of a command, or of `duewheel serve`: each is opened when it is first used.
    Thread-safe.
    """

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        open_producer: Callable[[Settings, str], DelayProducer] = connect_producer,
    ) -> None:
        """Connects nothing."""
        self.settings, self.clock = settings, clock
        self._open = open_producer
        self._lock = threading.Lock()
        self._by_topic: dict[str, Future[DelayProducer]] = {}  # not done while it connects

    @contextmanager
    def producer(self, timer_topic: str) -> Iterator[DelayProducer]:
        """Yields the producer of a timer topic; closes it after an error: an idempotent one may
        never send again.

        Raises:
            KafkaUnavailable: no server logs a client in.
            InvalidTimer, Unacknowledged: as `acknowledging`.
        """
        with self.acknowledging():
            producer = self._producer_of(timer_topic)
            try:
                yield producer
            except KafkaError as error:
                if not isinstance(error, MessageSizeTooLargeError):
                    self._drop(timer_topic, producer)
                raise

    @contextmanager
    def acknowledging(self) -> Iterator[None]:
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
            servers = self.settings.kafka.servers
            text = f"Kafka at {servers}: {reason}; it may or may not be written"
            raise Unacknowledged(text) from error

    def _producer_of(self, timer_topic: str) -> DelayProducer:
        attempt: Future[DelayProducer] = Future()
        with self._lock:
            opened = self._by_topic.setdefault(timer_topic, attempt)
        # Connecting takes long while Kafka is away: requests for other topics must not wait, and
        # those for this topic fail together: attempts one after the other would add up.
        if opened is attempt:
            try:
                producer = self._open(self.settings, timer_topic)
            except BaseException as error:  # noqa: BLE001 - handed on to all callers
                with self._lock:
                    self._by_topic.pop(timer_topic, None)
                attempt.set_exception(error)
            else:
                attempt.set_result(producer)
        return opened.result()

    def _drop(self, timer_topic: str, failed: DelayProducer) -> None:
        with self._lock:
            # Of several requests that fail with it the first closes it; others have a new one.
            opened = self._by_topic.get(timer_topic)
            if opened is None or not opened.done() or opened.result() is not failed:
                return
            del self._by_topic[timer_topic]
        with suppress(KafkaError):  # of other records; the caller has the cause of its own
            failed.close(1)

    def close(self) -> None:
        """Flushes for CLOSE_S at most in all, and disconnects. A longer call, such as the opening
        of a producer, ends with the process: all threads are daemons.
        """
        deadline = Deadline(CLOSE_S)
        if not self._lock.acquire(timeout=CLOSE_S):
            return
        try:
            for opened in self._by_topic.values():
                if opened.done():
                    with suppress(KafkaError):
                        opened.result().close(deadline.remaining_s())
            self._by_topic.clear()
        finally:
            self._lock.release()
