"""The results of a DelayProducer's futures: acknowledged records in a timer topic."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import TypeVar

from duewheel.client.handle import RecallHandle
from duewheel.errors import ConfigError
from duewheel.schemas.header_names import Answer

T = TypeVar("T")


class Acknowledgement(Future[T]):
    """The result of a record, once Kafka has acknowledged it. A time-out says what was awaited."""

    def __init__(self, what: str) -> None:
        """
        Args:
            what: names the record in the text of a time-out.
        """
        super().__init__()
        self._what = what

    def result(self, timeout: float | None = None) -> T:
        """As Future; the text of its TimeoutError names the record and the seconds."""
        try:
            return super().result(timeout)
        except TimeoutError:
            self._require_done(timeout)
            return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """As Future; the text of its TimeoutError names the record and the seconds."""
        try:
            return super().exception(timeout)
        except TimeoutError:
            self._require_done(timeout)
            return super().exception(0)

    def _require_done(self, timeout: float | None) -> None:
        if not self.done():  # or its own result is a TimeoutError, or came a moment ago
            raise TimeoutError(
                f"{self._what}: Kafka has not acknowledged the record within {timeout:g} s; it may "
                "still be written"
            )


@dataclass(frozen=True, slots=True)
class AcknowledgedRecord:
    """A record in a timer topic that Kafka has acknowledged.

    Attributes:
        id: of the timer: the given id, else "topic-partition@offset" of its record.
        timer_topic: the topic of the record.
        partition: of the timer topic.
        offset: in that partition.
    """

    id: str
    timer_topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Timer(AcknowledgedRecord):
    """A timer.

    >>> timer = Timer("order 8821", "orders.delayed", 3, 17, due_ms=1_800_000_000_000)
    >>> RecallHandle.decode(timer.handle).place
    'orders.delayed-3@17'

    Attributes:
        due_ms: due time, epoch ms; a delay counts from the record's timestamp.
    """

    due_ms: int

    @property
    def handle(self) -> str:
        """The recall handle for `cancel` and `reschedule`: text, safe in URLs."""
        place = self.timer_topic, self.partition, self.offset
        return RecallHandle(*place, self.due_ms, self.id).encode()


class _Answered:
    """A request that gets a reply on the reply topic."""

    __slots__ = ()
    timer_topic: str
    partition: int
    offset: int
    reply: Future[Answer] | None

    def answer(self, timeout_s: float | None = None) -> Answer:
        """Waits for the reply: the outcome of the earlier timers with the id.

        - `cancelled`: none of them will be delivered, and one or more were pending.
        - `already_delivered`: the request came too late.
        - `unknown`: the partition has no such timer, or no longer has a record of it.

        `kept` and `taken` are replies to timers with `if_pending="keep"`, which await none.

        Raises:
            ConfigError: the producer was made without a reply topic, or the request without
                `reply`.
            TimeoutError: no reply yet.
            KafkaUnavailable: the reply topic could not be read, so a reply may have been missed.
        """
        reply = self._expected()
        if not wait([reply], timeout_s).done:
            raise self._no_reply(timeout_s)
        return reply.result(0)

    async def answer_async(self, timeout_s: float | None = None) -> Answer:
        """`answer` for asyncio: the loop runs meanwhile. After a TimeoutError, or a cancelled task,
        it can be awaited once more.
        """
        reply = asyncio.wrap_future(self._expected())
        try:
            return await asyncio.wait_for(reply, timeout_s)
        except TimeoutError:
            raise self._no_reply(timeout_s) from None

    def _no_reply(self, timeout_s: float | None) -> TimeoutError:
        return TimeoutError(
            f"no reply to {self.timer_topic}-{self.partition}@{self.offset} within {timeout_s:g} s:"
            " the service replies once its ingest and dequeue have taken the request"
        )

    def _expected(self) -> Future[Answer]:
        if self.reply is None:
            raise ConfigError(
                "there are no replies: the producer was made without reply_topic, or the request "
                "with reply=False"
            )
        return self.reply


@dataclass(frozen=True, slots=True)
class Cancel(AcknowledgedRecord, _Answered):
    """A cancel, with the id of the timers that it matches."""

    reply: Future[Answer] | None = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Rescheduled(Timer, _Answered):
    """A timer that replaces earlier timers with its id."""

    reply: Future[Answer] | None = field(repr=False, compare=False)
