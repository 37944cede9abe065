"""The results of a DelayProducer's futures: acknowledged records in a timer topic."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from dataclasses import dataclass, field

from duewheel.client.handle import RecallHandle
from duewheel.errors import ConfigError
from duewheel.schemas.header_names import Answer


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
    reply: Future[Answer] | None

    def answer(self, timeout_s: float | None = None) -> Answer:
        """Waits for the reply: the outcome of the earlier timers with the id.

        - `cancelled`: none of them will be delivered, and one or more were pending.
        - `already_delivered`: the request came too late.
        - `unknown`: the partition has no such timer, or no longer has a record of it.

        Raises:
            ConfigError: the producer was made without a reply topic, or the request without
                `reply`.
            TimeoutError: no reply yet.
            KafkaUnavailable: the reply topic could not be read, so a reply may have been missed.
        """
        return self._expected().result(timeout_s)

    async def answer_async(self, timeout_s: float | None = None) -> Answer:
        """`answer` for asyncio: the loop runs meanwhile. After a TimeoutError, or a cancelled task,
        it can be awaited once more.
        """
        return await asyncio.wait_for(asyncio.wrap_future(self._expected()), timeout_s)

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
