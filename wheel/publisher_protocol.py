"""The seam between the dequeue loop and Kafka: the protocol of a publisher.

Publishing has four steps. `prepare` encodes the next chunk while a transaction is in flight;
`renew` encodes outdated rows again; `compose` adds the progress, and copies that wait; `publish`
is the transaction. kafka/publish implements the protocol, tests/harness/publishers.py has the fake.

Invariant: a transaction has its messages and the progress after them, or neither. If `publish`
raises PublishDoubt, `start` reads from Kafka which.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Protocol

import numpy as np

from duewheel.checkpoints.progress import Progress
from duewheel.schemas.arrays import Int64
from duewheel.schemas.batches import Deliveries, TopicPartition
from duewheel.schemas.wire.record_batch import Batch
from duewheel.wheel.encoded import Aside, Encoded, Part

TRANSACTIONS_IN_FLIGHT = 1  # Kafka has no second one open under a transactional id


@dataclass(frozen=True, slots=True)
class Prepared:
    """Deliveries for a transaction."""

    deliveries: Deliveries  # in the order of their delivery
    # The rows as batches, for the metadata that was loaded then; None before encoding. If the
    # metadata has changed since, `renew` encodes `deliveries` again.
    encoded: Encoded | None = None
    # Of each delivery, the row of the chunk that it comes from, for a cut between rows; None: they
    # are not divided, as they are few.
    row: Int64 | None = None

    @property
    def parts(self) -> Sequence[Part]:
        return self.encoded.parts if self.encoded else ()

    def timer_topics_of(self, parts: Collection[Part]) -> frozenset[str]:
        """The timer topics whose timers these parts deliver: not of copies, letters and replies."""
        if self.encoded is None or not parts:
            return frozenset()
        given, names = self.deliveries, {part.topic for part in parts}
        rows = self.encoded.rows_of(parts)
        delivered = np.array([topic in names for topic in given.targets], np.bool_)[given.target]
        delivered &= ~(given.dead_letter | given.is_copy | given.answer)
        source = np.unique(given.source_partition[rows[delivered[rows]]])
        return frozenset(given.source_partitions[number][0] for number in source.tolist())


@cache
def no_rows() -> Prepared:
    """Those of a progress alone. Not made when this module is imported: that would load pandas."""
    return Prepared(Deliveries.none())


@dataclass(frozen=True, slots=True)
class PublishAttempt:
    """The content of one transaction. `aside` and `moved` count once it is certainly committed."""

    progress: Progress  # as it is written: with the held copies after the commit
    prepared: Prepared | None = None  # the rows that leave; None: the progress alone
    parts: Sequence[Part] = ()  # with moved copies, and without those that are held
    records: Sequence[Batch] = ()  # go to the state topic, before the progress
    aside: Aside = field(default_factory=Aside)  # the rows that do not go to their target
    moved: bool = False  # whether held copies are moved to their partition
    held_before: Collection[TopicPartition] = ()  # the timer partitions with held copies until then
    due_ms: int = 0  # the latest due time of the timers that are delivered

    @property
    def rows(self) -> Prepared:
        return self.prepared or no_rows()


@dataclass(frozen=True, slots=True)
class Seen:
    """A progress read from Kafka."""

    progress: Progress
    written_ms: int  # time of the write, by the brokers' clock


class ProgressReader(Protocol):
    """Reads a shard's progress repeatedly, without taking the shard. Not thread-safe."""

    def newest(self) -> Seen | None:
        """Reads the newest committed progress; None before the first.

        Raises:
            KafkaUnavailable: no answer in time; the next call tries again.
            ConfigError: no right to read it.
            RecoveryRefused: the record cannot be decoded.
        """
        ...

    def require_coordinator(self) -> None:
        """Requires an answer of the transaction coordinator: without one no owner can write,
        so its silence proves nothing.

        Raises:
            KafkaUnavailable: no answer in a few seconds.
            ConfigError: no right to ask.
        """
        ...


class Publisher(Protocol):
    """Publishes deliveries and progress atomically, for one shard.

    One loop owns it: only `prepare` is thread-safe. Every call has a deadline of the publisher's
    own.
    """

    @property
    def letters_wait(self) -> bool:
        """Whether the dead-letter topic took no writes when a dead letter was last due."""
        ...

    def peek(self) -> Progress | None:
        """Reads the newest committed progress without taking the shard; None before the first.

        Raises:
            KafkaUnavailable: no answer in time.
            ConfigError: the state topic is missing, or this client has no right to read it.
            RecoveryRefused: the record cannot be decoded.
        """
        ...

    def age_ms(self) -> int:
        """Returns the age of the owner's last write, by the brokers' clock: the progress that was
        read last, or a record in an open transaction.

        Raises:
            KafkaUnavailable: no answer in time.
            ConfigError: no right to ask.
        """
        ...

    def start(self) -> Progress | None:
        """Takes the shard's transactional id, which ends any open transaction of a predecessor, and
        reads the newest committed progress; None before the first.

        May be called again after PublishDoubt: it drops the old producer, and builds a new one.

        Raises:
            KafkaUnavailable: no answer in time. After a successful start also in place of a
                ConfigError: a topic or right that existed once may come back.
            ConfigError: a topic or a right is missing, or client and broker do not fit together.
            RecoveryRefused: the record cannot be decoded.
            Fenced: after a successful start: the partitions are being reassigned, and taking the
                shard back would disturb that.
        """
        ...

    def prepare(self, deliveries: Deliveries) -> Prepared:
        """Encodes the deliveries before the transaction, with the metadata that is loaded.

        Changes nothing, loads nothing, refuses nothing: `renew` handles every obstacle. May run
        in another thread, at any time, also during `start` and `publish`.
        """
        ...

    def renew(self, prepared: Prepared, progress: Progress) -> Prepared:
        """Returns the deliveries as they must be published now, with this progress: encoded, by
        current metadata. No transaction is begun.

        Rows that can never be published (no such topic or partition, too large) become dead
        letters. Rows whose target takes no writes for now become parked copies (requeue.py),
        replies dead letters. If the dead-letter topic takes no writes, dead letters of all kinds
        wait in their timer topics.

        Raises:
            PublishDoubt, TransactionTooSlow: as `publish`.
        """
        ...

    def compose(self, prepared: Prepared | None, progress: Progress) -> PublishAttempt:
        """Returns the content of a transaction: renewed deliveries in their order, and the progress
        after them; None: the progress alone. No transaction is begun.

        Copies whose timer partition takes no writes are held (checkpoints/held_copies.py), and held
        ones are moved if it takes them again: the progress of the attempt names those that wait.

        Raises:
            PublishDoubt, TransactionTooSlow: as `publish`.
            RecoveryRefused: the progress is too large for a record.
        """
        ...

    def log_ends(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Reads the ends of existing timer partitions, open transactions included.

        Raises:
            KafkaUnavailable: no answer in time, or the publisher is not started.
            ConfigError: no right to ask.
        """
        ...

    def publish(self, attempt: PublishAttempt) -> int | None:
        """Writes one transaction, as `compose` has made it. Returns the brokers' timestamp of the
        progress record, in ms since the epoch; None for a batch that was sent twice, and for a
        topic without LogAppendTime. After PublishDoubt the same deliveries are renewed again.

        Raises:
            PublishDoubt: the outcome is unknown or the transaction failed: call `start`.
            TransactionTooSlow: the same, because time ran out: the caller splits the rows that are
                not committed into smaller transactions.
            Displaced: the same, because another producer has taken the transactional id.
        """
        ...

    def close(self) -> None:
        """Drops the producer; the next `start`, or its time-out, aborts an open transaction."""
        ...


def publish_progress(publisher: Publisher, progress: Progress) -> int | None:
    """Writes the progress alone. Returns and raises as `compose` and `publish`."""
    return publisher.publish(publisher.compose(None, progress))
