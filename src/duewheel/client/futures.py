"""What a DelayProducer's futures hold: records in a timer topic that Kafka has acknowledged."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field

from duewheel.client.handle import RecallHandle
from duewheel.errors import ConfigError
from duewheel.schemas.header_names import Answer


@dataclass(frozen=True, slots=True)
class AcknowledgedRecord:
    """A record in a timer topic that Kafka has acknowledged.

    Attributes:
        id: the timer's: the given one, else "topic-partition@offset" of its record.
        timer_topic: where the record is.
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
        due_ms: when it is due, epoch ms; a delay counts from the record's timestamp.
    """

    due_ms: int

    @property
    def handle(self) -> str:
        """What `cancel` and `reschedule` find it by: text, safe in URLs."""
        place = self.timer_topic, self.partition, self.offset
        return RecallHandle(*place, self.due_ms, self.id).encode()


class _Answered:
    """What may be answered on the reply topic."""

    __slots__ = ()
    reply: Future[Answer] | None

    def answer(self, timeout_s: float | None = None) -> Answer:
        """Wait for the answer: what became of the timers that were there before.

        - `cancelled`: none of them will be delivered, and one or more were pending.
        - `already_delivered`: it was too late.
        - `unknown`: there is none in this partition, or nobody can tell any more.

        Raises:
            ConfigError: the producer was made without a reply topic.
            TimeoutError: no answer yet.
            KafkaUnavailable: the reply topic could not be read, and the answer was missed.
        """
        if self.reply is None:
            raise ConfigError("there are no answers: the producer was made without reply_topic")
        return self.reply.result(timeout_s)


@dataclass(frozen=True, slots=True)
class Cancel(AcknowledgedRecord, _Answered):
    """A cancel, with the id of the timers that it is for."""

    reply: Future[Answer] | None = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Rescheduled(Timer, _Answered):
    """A timer in the place of earlier ones with its id."""

    reply: Future[Answer] | None = field(repr=False, compare=False)
