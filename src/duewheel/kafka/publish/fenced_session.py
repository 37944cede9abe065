"""A start opens a shard's clients and takes its transactional id, which fences an earlier owner.

The last instance to start owns the shard: Kafka refuses transactions of every other one, and ends
the one that is open. `peek`, `age_ms` and `broker_now_ms`, which a standby calls, take no id; the
last two write a record to the state topic for its timestamp, outside of transactions.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import structlog
from kafka import KafkaAdminClient

from duewheel.checkpoints.progress import Progress, record_key
from duewheel.deadline import Deadline
from duewheel.errors import ConfigError, DuewheelError, Fenced, KafkaUnavailable, PublishDoubt
from duewheel.kafka.connect.clients import KafkaClients, close
from duewheel.kafka.ledger.transactional_producer import TransactionalProducer
from duewheel.kafka.log.reader import LogReader
from duewheel.kafka.progress.broker_clock import broker_now_ms
from duewheel.kafka.progress.shard_progress import ShardProgress
from duewheel.kafka.progress.state_topic import state_partition
from duewheel.kafka.publish.transactional_ids import TransactionalIds, settle_ids
from duewheel.kafka.targets.catalog import TargetCatalog
from duewheel.kafka.targets.target_cache import require_usable
from duewheel.kafka.targets.unavailable_partitions import UnavailablePartitions
from duewheel.kafka.transaction_limits import TransactionLimits
from duewheel.schemas.batches import TopicPartition
from duewheel.schemas.wire.record_batch import Batch

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
        shard_progress: in the shard's partition of the state topic.
        ids: own the shard from the start on.
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
        self._catalog = catalog
        partition = state_partition(names.state_topic, names.shard)
        self.shard_progress = ShardProgress(clients, partition, record_key(names.shard))
        self.reader = LogReader(clients, [names.state_topic])
        self.ids = TransactionalIds(
            clients, names.transactional_id, limits, stopping, self.reader, unavailable
        )
        self._admin: KafkaAdminClient | None = None
        self._was_started = False

    def peek(self) -> Progress | None:
        """See Publisher (wheel/publisher_protocol.py)."""
        deadline = self._limits.starting(self._stopping)
        with self._clients.opened(KafkaAdminClient, deadline) as admin:
            self._require_state_topic(admin, deadline)
        topic, _ = self.shard_progress.partition
        with LogReader(self._clients, [topic]) as reader, reader.bounded_by(deadline):
            return self.shard_progress.read(reader, past_open=False)

    def age_ms(self) -> int:
        """See Publisher."""
        return self.shard_progress.age_ms(self._limits.starting(self._stopping))

    def broker_now_ms(self) -> int:
        """The brokers' clock."""
        deadline = self._limits.starting(self._stopping)
        return broker_now_ms(self._clients, self.shard_progress.partition, deadline)

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
        if self._was_started and self.shard_progress.is_to_yield:
            raise Fenced("the partitions are being reassigned: `duewheel reshard` was run")
        return found

    def _take(self, admin: KafkaAdminClient, deadline: Deadline) -> Progress | None:
        """Takes the transactional ids in the order of transactional_ids.py; returns the newest
        progress.
        """
        found = self._read(deadline, past_open=False)

        def take(numbers: tuple[int, ...]) -> tuple[int, ...]:
            return self.ids.take(admin, numbers, [self.shard_progress.partition[0]], deadline)

        def read() -> tuple[int, ...]:
            nonlocal found
            found = self._read(deadline, past_open=True)
            return self.shard_progress.ids

        settle_ids(self.shard_progress.ids, take, read, lambda ids: self._claim(found, ids))
        self.ids.note_settled()
        return found

    def _read(self, deadline: Deadline, *, past_open: bool) -> Progress | None:
        with self.reader.bounded_by(deadline):
            return self.shard_progress.read(self.reader, past_open=past_open)

    def _claim(self, progress: Progress | None, numbers: Sequence[int]) -> None:
        """Writes the progress again, with the ids that are in use now."""
        if progress is None:
            raise KafkaUnavailable("; ".join(map(str, self.ids.blocked)))
        named = (self.shard_progress.partition, self.shard_progress.batch(progress, numbers))
        try:
            self.producer.transact([named], self.shard_progress.read_ms)
        except Exception as error:
            reason = self._clients.explain(error)
            raise KafkaUnavailable(f"the transactional ids are not named: {reason}") from error

    @property
    def producer(self) -> TransactionalProducer:
        """Owns the transactional id while it is open."""
        return self.ids.producer

    def record_of(self, progress: Progress) -> Batch:
        """The record of a progress."""
        return self.shard_progress.batch(progress, self.ids.numbers)

    def require_started(self) -> KafkaAdminClient:
        """The admin client; PublishDoubt before a start, or after an error."""
        if self._admin is None or not self.producer.is_open:
            raise PublishDoubt("the publisher is not started", was_begun=False)
        return self._admin

    def preparing(self, topics: int) -> Deadline:
        """The deadline for preparing a transaction with so many topics."""
        return self._limits.preparing(self._stopping, topics)

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
        topic, number = self.shard_progress.partition
        targets = self._catalog.resolve(admin, [topic], deadline)
        require_usable(targets, self._clients.address)
        target = targets[topic]
        if target.partitions <= number:
            raise ConfigError(
                f"state topic {topic!r} has {target.partitions} partitions, shard {number} "
                f"needs {number + 1}: `duewheel init` adds them"
            )
