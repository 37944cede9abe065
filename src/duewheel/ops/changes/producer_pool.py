"""Producers of topics, each opened when it is first used, and the errors of their client."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any, Generic, Protocol, TypeVar

from kafka import KafkaProducer
from kafka.errors import KafkaError, MessageSizeTooLargeError

from duewheel import factory
from duewheel.config.settings import Settings
from duewheel.deadline import Deadline
from duewheel.errors import InvalidTimer, Unacknowledged
from duewheel.kafka.connect.bootstrap import require_connection

CLOSE_S = 1.0
ACKNOWLEDGED_S = 15.0  # the longest wait for Kafka to acknowledge a record
# Of the producers, unless the settings have others. A leader that hangs is replaced within 9 s,
# unless Kafka is set otherwise; kafka-python would go on waiting for its answer, 30 s in all.
BOUNDS_MS = {"max_block_ms": int(ACKNOWLEDGED_S * 1000), "request_timeout_ms": 10_000}


class Closable(Protocol):
    """A producer that can be closed."""

    def close(self, timeout_s: float | None = None, /) -> None:
        """Flushes, and disconnects."""


Pooled = TypeVar("Pooled", bound=Closable)


def connect_plain(settings: Settings, _: str = "") -> KafkaProducer:
    """Connects a producer of records that are no timers.

    Raises:
        KafkaUnavailable: no server logs a client in.
    """
    require_connection(settings)
    clients = factory.kafka_clients(settings, "producer")
    own: dict[str, Any] = {**BOUNDS_MS, **clients.options.values}
    own |= {"acks": "all", "enable_idempotence": True, "allow_auto_create_topics": False}
    return clients.open(KafkaProducer, Deadline(ACKNOWLEDGED_S), **own)


class ProducerPool(Generic[Pooled]):
    """See the module's head. Thread-safe."""

    def __init__(
        self, settings: Settings, open_producer: Callable[[Settings, str], Pooled]
    ) -> None:
        """Connects nothing; `open_producer` gets a topic."""
        self.settings = settings
        self._open = open_producer
        self._lock = threading.Lock()
        self._by_topic: dict[str, Future[Pooled]] = {}  # not done while it connects

    @contextmanager
    def producer(self, topic: str) -> Iterator[Pooled]:
        """Yields the producer of a topic; closes it after an error: an idempotent one may
        never send again.

        Raises:
            KafkaUnavailable: no server logs a client in.
            InvalidTimer, Unacknowledged: as `acknowledging`.
        """
        with self.acknowledging():
            producer = self._producer_of(topic)
            try:
                yield producer
            except KafkaError as error:
                if not isinstance(error, MessageSizeTooLargeError):
                    self._drop(topic, producer)
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

    def _producer_of(self, topic: str) -> Pooled:
        attempt: Future[Pooled] = Future()
        with self._lock:
            opened = self._by_topic.setdefault(topic, attempt)
        # Connecting takes long while Kafka is away: requests for other topics must not wait, and
        # those for this topic fail together: attempts one after the other would add up.
        if opened is attempt:
            try:
                producer = self._open(self.settings, topic)
            except BaseException as error:  # noqa: BLE001 - handed on to all callers
                with self._lock:
                    self._by_topic.pop(topic, None)
                attempt.set_exception(error)
            else:
                attempt.set_result(producer)
        return opened.result()

    def _drop(self, topic: str, failed: Pooled) -> None:
        with self._lock:
            # Of several requests that fail with it the first closes it; others have a new one.
            opened = self._by_topic.get(topic)
            if opened is None or not opened.done() or opened.result() is not failed:
                return
            del self._by_topic[topic]
        with suppress(KafkaError):  # of other records; the caller has the cause of its own
            failed.close(1)

    def close(self, deadline: Deadline | None = None) -> None:
        """Flushes until the deadline, by default for CLOSE_S in all, and disconnects. A longer
        call, such as the opening of a producer, ends with the process: all threads are daemons.
        """
        deadline = deadline or Deadline(CLOSE_S)
        if not self._lock.acquire(timeout=deadline.remaining_s()):
            return
        try:
            for opened in self._by_topic.values():
                if opened.done():
                    with suppress(KafkaError):
                        opened.result().close(deadline.remaining_s())
            self._by_topic.clear()
        finally:
            self._lock.release()
