"""What the dequeue loop asks of a publisher; Kafka's is in kafka/publisher.py.

Publishing has two halves. `prepare` does what needs no transaction, so that it can be done for the
next chunk while one is in flight; `publish` is the transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from duewheel.checkpoints.progress import Progress
from duewheel.schemas.batches import Deliveries, TopicPartition
from duewheel.wheel.encoded import Aside, Encoded


@dataclass(frozen=True, slots=True)
class Prepared:
    """Deliveries on their way into a transaction.

    Attributes:
        deliveries: the rows, in the order in which they must leave.
        encoded: what has been made of them, and under which assumptions about their targets; None
            if nothing has. It may be out of date by the time it is published: `deliveries` are
            what counts.
    """

    deliveries: Deliveries
    encoded: Encoded | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """A progress as it was found in Kafka.

    Attributes:
        progress: of the shard.
        written_ms: when, by the brokers' clock.
    """

    progress: Progress
    written_ms: int


class ProgressReader(Protocol):
    """Reads a shard's progress again and again, without taking the shard. Not thread-safe."""

    def newest(self) -> Seen | None:
        """The newest committed progress, None if there is none.

        Raises:
            KafkaUnavailable: no answer in time; the next call tries again.
            ConfigError: no right to read it.
            RecoveryRefused: the record there cannot be read.
        """
        ...

    def require_coordinator(self) -> None:
        """Ask the coordinator of the shard's transactions for a sign of life: while it does not
        answer no owner can write.

        Raises:
            KafkaUnavailable: no answer in a few seconds.
            ConfigError: no right to ask.
        """
        ...


class Publisher(Protocol):
    """Publishes deliveries and progress atomically, for one shard.

    Not thread-safe, `prepare` excepted: one loop owns it. Every call has a deadline of the
    publisher's own.
    """

    @property
    def aside(self) -> Aside:
        """Which of the rows last given to `publish` did not go where they were addressed. Means
        something once it is known that they were committed.
        """
        ...

    @property
    def letters_wait(self) -> bool:
        """Whether the dead-letter topic took nothing when a dead letter was last to leave."""
        ...

    def peek(self) -> Progress | None:
        """The newest committed progress, read without taking the shard; None if there is none.

        Raises:
            KafkaUnavailable: no answer in time.
            ConfigError: the state topic is missing, or there is no right to read it.
            RecoveryRefused: the record there cannot be read.
        """
        ...

    def age_ms(self) -> int:
        """How long ago the owner wrote last, by the brokers' clock: the progress that was last
        read, or what open transactions hide.

        Raises:
            KafkaUnavailable: no answer in time.
            ConfigError: no right to ask.
        """
        ...

    def start(self) -> Progress | None:
        """Take the shard's transactional id (which ends any open transaction of a predecessor) and
        read the newest committed progress; None if there is none.

        May be called again after PublishDoubt: the old producer is dropped, a new one built.

        Raises:
            KafkaUnavailable: no answer in time; or, once there was a successful start, whatever
                would be a ConfigError: what Kafka had and granted once may come back.
            ConfigError: a topic or a right is missing, or the client or the broker does not fit.
            RecoveryRefused: the record there cannot be read.
            Fenced: once there was a successful start: the partitions are being reassigned, the
                shard is not to be taken back.
        """
        ...

    def prepare(self, deliveries: Deliveries) -> Prepared:
        """Do as much as can be done before the transaction, from what is known by now.

        Changes nothing, loads nothing, refuses nothing: `publish` handles every obstacle. May run
        in another thread, at any time, also during `start` and `publish`.
        """
        ...

    def log_ends(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """The ends of timer partitions, open transactions included; those that do not exist are
        left out.

        Raises:
            KafkaUnavailable: no answer in time, or the publisher is not started.
            ConfigError: no right to ask.
        """
        ...

    def publish(self, prepared: Prepared | None, progress: Progress) -> int | None:
        """One transaction: all deliveries in their order, and the progress record.

        Args:
            prepared: the deliveries, perhaps no rows; None: the record is written as it is, and
                nothing else.
            progress: how far the shard is then.

        Returns:
            The brokers' clock when they took the progress record, in ms since the epoch; None if
            they did not say: of a batch sent twice they do not, nor without LogAppendTime.

        Rows that can never be published (no such topic or partition, too large) leave as dead
        letters in the same transaction, those whose target takes no writes for now as parked copies
        (requeue.py); answers as dead letters then, too. Where the dead-letter topic takes nothing
        dead letters of all kinds wait in their timer topics. Copies whose timer partition takes no
        writes are held (checkpoints/held_copies.py); `aside` says what is held then. The same
        `prepared` may be given again after PublishDoubt.

        Raises:
            PublishDoubt: the outcome is unknown or the transaction failed: call `start`.
            TransactionTooSlow: the same, because it ran out of time: rows that are not committed
                are to be given again in smaller transactions.
            RecoveryRefused: the progress is too large for a record; nothing was begun.
        """
        ...

    def close(self) -> None:
        """Drop the producer; an open transaction is left to the next `start` or its time-out."""
        ...
