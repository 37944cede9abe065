"""`RetryLater`: a consumer's failed message returns later, by way of a timer topic.

    retry_later = RetryLater(producer, "orders.delayed", dead_letter_topic="orders.failed")

    @retry_later
    def handle(record): ...

    retry_later.send(record, error)     # the same without the decorator

The message is written to the timer topic with its key, value, headers and number of attempts, due
after the policy's wait; the service delivers it to its topic again. After the last attempt, or
where the next one would begin beyond the deadline, it goes to the dead-letter topic, with the
history of its attempts in headers (retry_headers.py). Of a message too large for its retry or its
dead letter there is a pointer: a dead letter with these headers alone, among them RETRY_FIRST, the
place of the original. What holds depends on the producer:

    DelayProducer             `send` returns once Kafka has acknowledged the record. Commit the
                              offset after it: at least once. A consumer that is killed between the
                              two handles the message again, and may write its retry twice.
    transactional producer    `send` writes into the open transaction, and returns once Kafka has
                              acknowledged the record there. With the offsets in the same one:
                              exactly once. `in_transactions` makes it so for each message;
                              transactions over many messages need `transaction` (transactions.py).

Not thread-safe beyond its producer: a consumer has one.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Iterator
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from types import SimpleNamespace
from typing import Any, TypeVar

from kafka.errors import CommitFailedError, IllegalStateError
from kafka.structs import OffsetAndMetadata
from kafka.structs import TopicPartition as KafkaPartition

from duewheel.api.due_time import DueTime, NonNullHeader
from duewheel.client import request_headers
from duewheel.client.message_reader import RawBytes
from duewheel.client.producer import DelayProducer
from duewheel.client.retry_headers import (
    Attempts,
    Failure,
    error_text,
    own_headers,
    place_of,
)
from duewheel.client.retry_policy import RetryPolicy
from duewheel.client.transactions import transaction
from duewheel.clock import Clock, SystemClock
from duewheel.errors import ConfigError, InvalidTimer
from duewheel.kafka.transaction_errors import TOO_LARGE
from duewheel.schemas.header_names import ID_BYTES_MAX, RETRY_ERROR, RETRY_ERROR_TEXT, RETRY_REASON
from duewheel.schemas.name_patterns import may_name_topic

T = TypeVar("T")

log = logging.getLogger(__name__)

_NO_CONTENT = SimpleNamespace(key=None, value=None, headers=())  # of a pointer


class RetryEnd(StrEnum):
    """Why a message is not tried again."""

    ATTEMPTS = "attempts"  # the last one has failed
    DEADLINE = "deadline"  # the next one would begin beyond it
    REFUSED = "refused"  # the consumer has called `dead_letter`
    TOO_LARGE = "too_large"  # for its retry or dead letter, which is a pointer


@dataclass(frozen=True, slots=True)
class Retry:
    """The outcome of a failed attempt.

    Attributes:
        attempt: the one that failed: 1, 2, …
        wait_ms: until the next one; None for a dead letter.
        end: why the message is a dead letter; None for a retry.
    """

    attempt: int
    wait_ms: int | None
    end: RetryEnd | None


class _HandlerError(Exception):
    """The handler has failed; its own error is the cause. Kafka's errors are raised as they are."""


class RetryLater:
    """See the module's head."""

    def __init__(
        self,
        producer: Any,
        timer_topic: str,
        *,
        dead_letter_topic: str,
        policy: RetryPolicy | None = None,
        target: str | None = None,
        describe: Callable[[Exception], str] = error_text,
        timeout_s: float = 30.0,
        chance: random.Random | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Connects nothing.

        Args:
            producer: a DelayProducer of the timer topic, or a transactional KafkaProducer.
            timer_topic: one without header mode.
            dead_letter_topic: of messages that are not tried again. It must exist.
            policy: by default 5 attempts, waits from 10 s to 1 h, no deadline.
            target: where retries are delivered; by default to the topic and partition of the
                message. Where several groups read that topic, give each group a topic of its own:
                a retry in the shared one would reach all of them.
            describe: makes the text of an error for the headers; by default `str`, with passwords
                and the like left out where their form shows them.
            timeout_s: for the acknowledgement of a retry or dead letter.
            chance: draws the waits.
            clock: for deadlines.

        Raises:
            ConfigError: no retry could keep the guarantee with this producer, or a topic's name is
                none.
        """
        self._transactional = _is_transactional(producer, timer_topic)
        for topic in (timer_topic, dead_letter_topic, *([] if target is None else [target])):
            if not may_name_topic(topic):
                raise ConfigError(f"{topic!r} is no topic name")
        if timer_topic in {dead_letter_topic, target}:
            raise ConfigError(f'"{timer_topic}" is the timer topic itself')
        self._producer = producer
        self._timer_topic, self._dead_letter_topic = timer_topic, dead_letter_topic
        self._policy = RetryPolicy() if policy is None else policy
        self._target = target
        self._describe = describe
        self._timeout_s = timeout_s
        self._chance = random.Random() if chance is None else chance
        self._clock = SystemClock() if clock is None else clock
        self._failure: BaseException | None = None  # of a transaction of `in_transactions`

    def __call__(self, handler: Callable[[Any], T]) -> Callable[[Any], T | Retry]:
        """Decorates a function of a record: an exception of its becomes a retry, or a dead letter.

        Returns:
            A function that returns what the decorated one returns, or else the outcome.
        """
        _require_plain(handler)

        @functools.wraps(handler)
        def handle(record: Any) -> T | Retry:
            try:
                result = handler(record)
            except Exception as error:  # noqa: BLE001 - whatever it is, the message is tried again
                return self.send(record, error)
            return _handled(handler, result)

        return handle

    def in_transactions(
        self, consumer: Any
    ) -> Callable[[Callable[[Any], T]], Callable[[Any], T | Retry]]:
        """Decorates a function of a record: each call is one transaction.

        It contains what the function has sent with the producer, and the record's offset. If the
        function fails, that transaction is aborted, and another one contains the retry and the
        offset. It is committed once Kafka has acknowledged each record of it. Otherwise Kafka's
        error is raised, and every later call raises too, so that the record is not skipped: close
        both clients, and begin again at the committed offsets. So it is if the function raises no
        Exception but what ends programs, such as KeyboardInterrupt, and (CommitFailedError) after
        the group has evicted the consumer, whose handler took longer than `max_poll_interval_ms`.

        Args:
            consumer: of the records; with a group, `enable_auto_commit=False` and
                `isolation_level="read_committed"`.

        Raises:
            ConfigError: the producer is not transactional, or the consumer has other settings; of
                the decorator: the function is a coroutine or generator function.
        """
        if not self._transactional:
            raise ConfigError("in_transactions needs a producer with a transactional_id")
        if consumer.config["enable_auto_commit"]:
            raise ConfigError("the consumer needs enable_auto_commit=False")
        if consumer.config["isolation_level"] != "read_committed":
            raise ConfigError('the consumer needs isolation_level="read_committed"')

        def decorate(handler: Callable[[Any], T]) -> Callable[[Any], T | Retry]:
            _require_plain(handler)

            @functools.wraps(handler)
            def handle(record: Any) -> T | Retry:
                if self._failure is not None:
                    raise IllegalStateError(
                        f"an earlier message has no committed outcome ({self._failure!r}): close "
                        "producer and consumer, and begin again at the committed offsets"
                    )
                try:
                    return self._in_transaction(handler, record, consumer)
                except BaseException as error:  # of a Ctrl-C, too: the caller may go on after it
                    self._failure = error
                    raise

            return handle

        return decorate

    def _in_transaction(self, handler: Callable[[Any], T], record: Any, consumer: Any) -> T | Retry:
        """Handles a record in a transaction; after a failure, writes its retry in another one."""
        try:
            with self._transaction(record, consumer):
                try:
                    result = handler(record)
                except Exception as error:
                    raise _HandlerError from error
                _handled(handler, result)
        except _HandlerError as failed:
            cause = failed.__cause__
            assert isinstance(cause, Exception)
        else:
            return result
        try:
            with self._transaction(record, consumer):
                return self.send(record, cause)
        except TOO_LARGE:  # that transaction takes no other record
            with self._transaction(record, consumer):
                return self.dead_letter(record, cause, content=False)

    @contextlib.contextmanager
    def _transaction(self, record: Any, consumer: Any) -> Iterator[None]:
        with transaction(self._producer):
            yield
            self._send_offset(record, consumer)

    def _send_offset(self, record: Any, consumer: Any) -> None:
        """Adds the offset after the record to the open transaction."""
        partition = KafkaPartition(record.topic, record.partition)
        offsets = {partition: OffsetAndMetadata(record.offset + 1, "", -1)}
        member = consumer.group_metadata()
        # Kafka takes offsets without a generation unchecked, as those of a consumer without a group
        # subscription. One that its group has evicted has none either: it would commit a message
        # that its successor has handled, and take the offset back.
        if consumer.subscription() is not None and (
            member.generation_id < 0 or partition not in consumer.assignment()
        ):
            raise CommitFailedError
        self._producer.send_offsets_to_transaction(offsets, member)

    def send(self, record: Any, error: Exception, deadline_ms: int | None = None) -> Retry:
        """Writes the retry of a failed message, or its dead letter.

        Args:
            record: as the consumer returned it, key and value as bytes.
            error: of the attempt.
            deadline_ms: of this message, epoch ms; by default that of its earlier attempts, else
                the policy's.

        Raises:
            InvalidTimer: the consumer has deserialized the record; nothing was sent.
            KafkaError: Kafka has not acknowledged the record: do not commit its offset, and abort
                an open transaction. After a MessageSizeTooLargeError in one of your own, call
                `dead_letter` without content in the next: otherwise the message comes for ever.
        """
        attempts, now_ms = Attempts.of(record), self._clock.now_ms()
        if deadline_ms is None:
            deadline_ms = attempts.deadline_ms or self._policy.deadline_ms(now_ms)
        wait_ms = self._policy.wait_ms(attempts.attempt, self._chance)
        failure = Failure.of(attempts.attempt, now_ms, error, self._describe)
        after = attempts.after(failure, deadline_ms)
        if attempts.attempt >= self._policy.attempts:
            return self._end(record, error, after, failure, RetryEnd.ATTEMPTS)
        if deadline_ms is not None and now_ms + wait_ms > deadline_ms:
            return self._end(record, error, after, failure, RetryEnd.DEADLINE)
        target = record.topic if self._target is None else self._target
        # Of this record's own place, because any producer may write a RETRY_FIRST. The last bytes
        # have the offset and the attempt, however long the topic's name is.
        retry_id = f"{place_of(record)}/{after.attempt}"[-ID_BYTES_MAX:]
        request = request_headers.timer_headers(
            *(target, DueTime.of(delay=timedelta(milliseconds=wait_ms)), self._timer_topic),
            headers=[*own_headers(record), *after.headers(after.attempt)],
            id=retry_id,
            partition=record.partition if target == record.topic else None,
        )
        try:
            self._write(self._timer_topic, record, request)
        except TOO_LARGE:
            if self._transactional:
                raise
            return self._pointer(error, after, failure)
        log.warning(
            "attempt %d of %s has failed with %s: the next one, %s, is due in %d ms",
            *(attempts.attempt, attempts.first, failure.error, retry_id, wait_ms),
            exc_info=error,
        )
        return Retry(attempts.attempt, wait_ms, None)

    def dead_letter(self, record: Any, error: Exception, *, content: bool = True) -> Retry:
        """Writes a dead letter at once, of a message that no other attempt could save.

        Args:
            record, error: as for `send`.
            content: False: a pointer, for a message that is too large.

        Raises:
            InvalidTimer, KafkaError: as `send`.
        """
        attempts = Attempts.of(record)
        failure = Failure.of(attempts.attempt, self._clock.now_ms(), error, self._describe)
        after = attempts.after(failure, attempts.deadline_ms)
        if not content:
            return self._pointer(error, after, failure)
        return self._end(record, error, after, failure, RetryEnd.REFUSED)

    def _pointer(self, error: Exception, after: Attempts, failure: Failure) -> Retry:
        return self._end(_NO_CONTENT, error, after, failure, RetryEnd.TOO_LARGE)

    def _end(
        self, record: Any, error: Exception, after: Attempts, failure: Failure, end: RetryEnd
    ) -> Retry:
        added = [
            *after.headers(failure.attempt),
            (RETRY_REASON, end.encode()),
            (RETRY_ERROR, failure.error.encode()),
            (RETRY_ERROR_TEXT, failure.text.encode()),
        ]
        try:
            self._write(self._dead_letter_topic, record, [*own_headers(record), *added])
        except TOO_LARGE:
            if self._transactional or end is RetryEnd.TOO_LARGE:
                raise
            return self._pointer(error, after, failure)
        log.error(
            "attempt %d of %s has failed with %s: it is a dead letter (%s)",
            *(failure.attempt, after.first, failure.error, end),
            exc_info=error,
        )
        return Retry(failure.attempt, None, end)

    def _write(self, topic: str, record: Any, headers: list[NonNullHeader]) -> None:
        key, value = _octets(record.key, "key"), _octets(record.value, "value")
        if key is None and value is None:
            value = b""  # kafka-python writes no record without both
        if not self._transactional:  # a DelayProducer may have serializers
            key = None if key is None else RawBytes(key)
            value = None if value is None else RawBytes(value)
        self._producer.send(topic, value, key, headers).get(self._timeout_s)


def _handled(handler: Callable[[Any], T], result: T) -> T:
    """The result, unless it is a coroutine or generator that has done nothing yet.

    Raises:
        ConfigError: it is one: such a handler hides behind a wrapper or a callable object.
    """
    if isinstance(result, Coroutine | Generator):
        result.close()  # otherwise Python warns of a coroutine that nobody awaits
    if isinstance(result, Awaitable | Generator | AsyncGenerator):
        raise ConfigError(f"{handler!r} returns a {type(result).__name__}: it handles no record")
    return result


def _require_plain(handler: Callable[[Any], Any]) -> None:
    """Refuses a function whose call does nothing yet: its offset would be committed unhandled.

    Raises:
        ConfigError: it is a coroutine or generator function.
    """
    kinds = inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction
    if any(is_kind(handler) for is_kind in kinds):
        raise ConfigError(f"{handler!r} is no plain function: its call would not handle a record")


def _is_transactional(producer: Any, timer_topic: str) -> bool:
    """Returns whether a producer writes in transactions; refuses one without any guarantee."""
    if isinstance(producer, DelayProducer):
        if producer.timer_topic != timer_topic:
            raise ConfigError(f'the producer is one of the timer topic "{producer.timer_topic}"')
        return False
    if not producer.config["transactional_id"]:
        raise ConfigError("the producer is neither a DelayProducer nor transactional")
    for name in ("key_serializer", "value_serializer"):
        if producer.config[name] is not None:
            raise ConfigError(f"the producer has a {name}: a retry is written byte for byte")
    return True


def _octets(data: Any, name: str) -> bytes | None:
    if data is not None and not isinstance(data, bytes):
        raise InvalidTimer(
            f"the record's {name} is {type(data).__name__}, not bytes: use no {name}_deserializer "
            "and decode in the handler, where a malformed message gets its dead letter"
        )
    return data
