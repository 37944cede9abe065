"""A start opens a shard's clients and takes its transactional id, which fences an earlier owner.

The last instance to start owns the shard: Kafka refuses transactions of every other one, and ends
the one that is open. `peek`, `age_ms` and `broker_now_ms`, which a standby calls, take no id; the
last two write a record to the state topic for its timestamp, outside of transactions.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import structlog
from kafka import KafkaAdminClient

from duewheel.checkpoints.progress import Progress, record_key
from duewheel.errors import ConfigError, DuewheelError, Fenced, KafkaUnavailable, PublishDoubt
from duewheel.kafka.connect.clients import KafkaClients, close
from duewheel.kafka.connect.deadline import Deadline
from duewheel.kafka.ledger.transactional_producer import TransactionalProducer
from duewheel.kafka.log.reader import LogReader
from duewheel.kafka.progress.broker_clock import broker_now_ms
from duewheel.kafka.progress.shard_progress import ShardProgress
from duewheel.kafka.progress.state_topic import state_partition
from duewheel.kafka.publish.transactional_ids import Ending, TransactionalIds, settled
from duewheel.kafka.targets.catalog import TargetCatalog
from duewheel.kafka.targets.unavailable_partitions import UnavailablePartitions
from duewheel.kafka.transaction_limits import TransactionLimits
from duewheel.schemas.batches import TopicPartition
from duewheel.schemas.wire.record_batch import Batch

_HASTE_S = 1.0  # how long an id may take that a partition has refused
_RECHECK_S = 30.0  # between looks at the blocked ids

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ShardNames:
    """The names of a shard in Kafka."""

    transactional_id: str  # the first one; the last instance to start with it owns the shard
    state_topic: str
    dead_letter_topic: str
    shard: int


class FencedSession:
    """See the module's head. Not thread-safe.

    Attributes:
        progress: the shard's, in its partition of the state topic.
        reader: stays connected from the start on, so that later calls do not wait for brokers that
            are away.
    """

    def __init__(
        self,
        clients: KafkaClients,
        names: ShardNames,
        catalog: TargetCatalog,
        unavailable: UnavailablePartitions,
        limits: TransactionLimits,
        stopping: threading.Event | None,
    ) -> None:
        """Connects nothing."""
        self._clients, self._limits, self._stopping = clients, limits, stopping
        self._catalog, self._unavailable = catalog, unavailable
        partition = state_partition(names.state_topic, names.shard)
        self.progress = ShardProgress(clients, partition, record_key(names.shard))
        self._ids = TransactionalIds(
            clients,
            names.transactional_id,
            limits,
            stopping,
            refuses=lambda ending: bool(self._unmarked(ending)),
        )
        self._numbers: tuple[int, ...] = self.progress.ids  # of the blocked ids, and the one in use
        self._recheck = Deadline(_RECHECK_S)
        self._refusing: frozenset[str] = frozenset()  # topics that have refused a batch
        self._in_haste = False
        self.reader = LogReader(clients, [names.state_topic])
        self._admin: KafkaAdminClient | None = None
        self._was_started = False

    def peek(self) -> Progress | None:
        """See Publisher (wheel/publisher_protocol.py)."""
        deadline = self._limits.starting(self._stopping)
        with self._clients.opened(KafkaAdminClient, deadline) as admin:
            self._require_state_topic(admin, deadline)
        topic = self.progress.partition.topic
        with LogReader(self._clients, [topic], lambda: deadline) as reader:
            return self.progress.read(reader, past_open=False)

    def age_ms(self) -> int:
        """See Publisher."""
        return self.progress.age_ms(self._limits.starting(self._stopping))

    def broker_now_ms(self) -> int:
        """The brokers' clock."""
        deadline = self._limits.starting(self._stopping)
        return broker_now_ms(self._clients, self.progress.partition, deadline)

    def start(self) -> Progress | None:
        """See Publisher."""
        self.close()
        try:
            found = self._start(self._limits.starting(self._stopping))
        except ConfigError as error:
            self.close()
            if not self._was_started:
                raise
            log.error(  # noqa: TRY400 - its text says it all
                "kafka no longer has a topic, or no longer grants a right",
                transactional_id=self.producer.transactional_id,
                reason=str(error),
            )
            raise KafkaUnavailable(str(error)) from error
        except DuewheelError:
            self.close()
            raise
        self._was_started = True
        log.info("publisher started", transactional_id=self.producer.transactional_id)
        return found

    def _start(self, deadline: Deadline) -> Progress | None:
        self._admin = self._clients.open(KafkaAdminClient, deadline)
        self._require_state_topic(self._admin, deadline)
        found = self._take(self._admin, deadline)
        if self._was_started and self.progress.is_to_yield:
            raise Fenced("the partitions are being reassigned: `duewheel reshard` was run")
        return found

    def _take(self, admin: KafkaAdminClient, deadline: Deadline) -> Progress | None:
        """Takes the transactional ids in the order of transactional_ids.py; returns the newest
        progress.
        """
        ending_s = _HASTE_S if self._in_haste else self._limits.ending_s
        found = self._read(deadline, past_open=False)

        def take(numbers: tuple[int, ...]) -> tuple[int, ...]:
            topics = [self.progress.partition.topic]
            return self._ids.take(admin, numbers, topics, deadline, ending_s)

        def read() -> tuple[int, ...]:
            nonlocal found
            found = self._read(deadline, past_open=True)
            return self.progress.ids

        self._numbers = settled(self.progress.ids, take, read, lambda ids: self._claim(found, ids))
        self._recheck, self._in_haste = Deadline(_RECHECK_S), False
        self._close_topics()
        return found

    def _read(self, deadline: Deadline, *, past_open: bool) -> Progress | None:
        with self.reader.bounded_by(deadline):
            return self.progress.read(self.reader, past_open=past_open)

    def _claim(self, progress: Progress | None, numbers: Sequence[int]) -> None:
        """Writes the progress again, with the ids that are in use now."""
        if progress is None:
            raise KafkaUnavailable("; ".join(map(str, self._ids.blocked)))
        named = (self.progress.partition, self.progress.batch(progress, numbers))
        try:
            self.producer.transact([named], self.progress.read_ms)
        except Exception as error:
            reason = self._clients.explain(error)
            raise KafkaUnavailable(f"the transactional ids are not named: {reason}") from error

    def note_refusing(self, topics: Iterable[str]) -> None:
        """These topics have refused a batch, and may refuse the marker, too: the next start does
        not wait for that for long.
        """
        self._refusing, self._in_haste = self._refusing.union(topics), True

    def refuses_id(self) -> bool:
        """Whether topics have refused the producer, and Kafka is still ending the transaction: so
        no other producer has the id.
        """
        return self._admin is not None and self._in_haste and self._ids.is_ending()

    def _close_topics(self) -> None:
        """Closes the topics that refuse the marker of a blocked id. Others of its transaction have
        their marker, also if the coordinator does not know it.
        """
        closed = dict[str, str]()
        for ending in self._ids.blocked:
            topics = {topic for topic, _ in ending.partitions}
            if len(topics) > 1:
                topics &= self._refusing | self._unmarked(ending)
            closed |= dict.fromkeys(topics, str(ending))
        self._refusing &= closed.keys()
        self._unavailable.close_topics(closed)

    def _unmarked(self, ending: Ending) -> frozenset[str]:
        """The topics with records of a transaction that lack the marker, although the partition's
        leader answers: its last stable offset stays below its end. Another client's transaction may
        be the reason, for now.
        """
        partitions = list(ending.partitions)
        try:
            with self.reader.bounded_by(Deadline(self._limits.quiet_s)):
                # The end first: later records are stable, too, unless a transaction is open.
                ends = self.reader.present_ends(partitions, committed=False)
                stable = self.reader.present_ends(partitions)
        except KafkaUnavailable:
            return frozenset()
        return frozenset(p[0] for p, end in ends.items() if stable.get(p, end) < end)

    @property
    def producer(self) -> TransactionalProducer:
        """Owns the transactional id while it is open."""
        return self._ids.producer

    def record_of(self, progress: Progress) -> Batch:
        """The record of a progress."""
        return self.progress.batch(progress, self._numbers)

    def require_blocked(self) -> None:
        """Looks at the blocked ids, and at the topics that they close, again, now and then.

        Raises:
            PublishDoubt: one can be taken: `start` takes it, and opens the topics that it closed.
        """
        admin, blocked = self.require_started(), self._numbers[:-1]
        if blocked and not self._recheck.remaining_s():
            self._recheck = Deadline(_RECHECK_S)
            if not self._ids.are_blocked(admin, blocked):
                raise PublishDoubt("a blocked transactional id can be taken again")
            self._close_topics()

    def require_started(self) -> KafkaAdminClient:
        """The admin client; PublishDoubt before a start, or after an error."""
        if self._admin is None or not self.producer.is_open:
            raise PublishDoubt("the publisher is not started", was_begun=False)
        return self._admin

    def preparing(self, topics: int) -> Deadline:
        """The deadline for preparing a transaction with so many topics."""
        return self._limits.preparing(topics, self._stopping)

    def log_ends(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """See Publisher."""
        if self._admin is None:
            raise KafkaUnavailable("the publisher is not started")
        with self.reader.bounded_by(Deadline(self._limits.quiet_s, self._stopping)):
            return self.reader.present_ends(partitions, committed=False)

    def close(self) -> None:
        """Drops clients and metadata; an open transaction is left to the next `start` or its
        time-out.
        """
        self.producer.stop()
        admin, self._admin = self._admin, None
        if admin is not None:
            close(admin)
        self.reader.close()
        self._catalog.forget()

    def _require_state_topic(self, admin: KafkaAdminClient, deadline: Deadline) -> None:
        topic, number = self.progress.partition
        target = self._catalog.existing(admin, [topic], deadline)[topic]
        if target.partitions <= number:
            raise ConfigError(
                f"state topic {topic!r} has {target.partitions} partitions, shard {number} "
                f"needs {number + 1}: `duewheel init` adds them"
            )
