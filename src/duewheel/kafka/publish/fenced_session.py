"""A shard's clients, from the start that takes its transactional id: that fences an earlier owner.

The last instance to start owns the shard: Kafka refuses transactions of every other one, and ends
the one that is open. `peek`, `age_ms` and `broker_now_ms`, which a standby calls, take no id; the
last two write a record to the state topic for its timestamp, outside of transactions.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import structlog
from kafka import KafkaAdminClient

from duewheel.checkpoints.progress import Progress, record_key
from duewheel.errors import ConfigError, DuewheelError, Fenced, KafkaUnavailable, PublishDoubt
from duewheel.kafka.connect.clients import KafkaClients, close
from duewheel.kafka.connect.deadline import Deadline
from duewheel.kafka.ledger.transactional_producer import TransactionalProducer, blocked
from duewheel.kafka.log.list_offsets_times import LATEST
from duewheel.kafka.log.reader import LogReader
from duewheel.kafka.progress.broker_clock import broker_now_ms
from duewheel.kafka.progress.shard_progress import ShardProgress
from duewheel.kafka.progress.state_topic import place_of
from duewheel.kafka.targets.catalog import TargetCatalog
from duewheel.kafka.transaction_limits import TransactionLimits
from duewheel.schemas.batches import TopicPartition

_ASK_S = 5.0  # for the reason why the transactional id cannot be taken

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ShardNames:
    """The names of a shard in Kafka."""

    transactional_id: str  # the last instance to start with it owns the shard
    state_topic: str
    dead_letter_topic: str
    shard: int


class FencedSession:
    """See the module's head. Not thread-safe.

    Attributes:
        progress: the shard's, in its partition of the state topic.
        producer: owns the transactional id while it is open.
        log: stays connected from the start on, so that later calls do not wait for brokers that
            are away.
    """

    def __init__(
        self,
        clients: KafkaClients,
        names: ShardNames,
        catalog: TargetCatalog,
        limits: TransactionLimits,
        stopping: threading.Event | None,
        note: Callable[[str], None],
    ) -> None:
        """Connects nothing. `note` gets the reason why Kafka does not give the transactional id;
        empty if it does.
        """
        self._clients, self._limits, self._stopping = clients, limits, stopping
        self._catalog, self._note = catalog, note
        place = place_of(names.state_topic, names.shard)
        self.progress = ShardProgress(clients, place, record_key(names.shard))
        self.producer = TransactionalProducer(clients, names.transactional_id, limits, stopping)
        self.log = LogReader(clients, [names.state_topic])
        self._admin: KafkaAdminClient | None = None
        self._was_started = False

    def peek(self) -> Progress | None:
        """See Publisher (wheel/publisher_protocol.py)."""
        deadline = self._limits.starting(self._stopping)
        with self._clients.opened(KafkaAdminClient, deadline) as admin:
            self._require_state_topic(admin, deadline)
        topic = self.progress.place.topic
        with LogReader(self._clients, [topic], lambda: deadline) as reader:
            return self.progress.read(reader, past_open=False)

    def age_ms(self) -> int:
        """See Publisher."""
        return self.progress.age_ms(self._limits.starting(self._stopping))

    def broker_now_ms(self) -> int:
        """The brokers' clock."""
        deadline = self._limits.starting(self._stopping)
        return broker_now_ms(self._clients, self.progress.place, deadline)

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
        # Before the read: a predecessor's transaction may still commit a newer progress.
        self._take(self._admin, deadline)
        with self.log.within(deadline):
            found = self.progress.read(self.log, past_open=True)
        if self._was_started and self.progress.is_to_yield:
            raise Fenced("the partitions are being reassigned: `duewheel reshard` was run")
        return found

    def _take(self, admin: KafkaAdminClient, deadline: Deadline) -> None:
        """Takes the transactional id; the error says why, if Kafka cannot end its transaction."""
        try:
            self.producer.open([self.progress.place.topic], deadline)
        except KafkaUnavailable as error:
            short = Deadline(_ASK_S, self._stopping)
            why = blocked(self._clients, admin, self.producer.transactional_id, short)
            self._note(why)
            raise KafkaUnavailable(f"{error}; {why}") if why else error from None
        self._note("")

    def require_started(self) -> KafkaAdminClient:
        """The admin client; PublishDoubt before a start, or after an error."""
        if self._admin is None or not self.producer.is_open:
            raise PublishDoubt("the publisher is not started")
        return self._admin

    def preparing(self, topics: int) -> Deadline:
        """The deadline for preparing a transaction with so many topics."""
        return self._limits.preparing(topics, self._stopping)

    def log_ends(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """See Publisher."""
        if self._admin is None:
            raise KafkaUnavailable("the publisher is not started")
        with self.log.within(Deadline(self._limits.quiet_s, self._stopping)):
            return self.log.present(partitions, LATEST, committed=False)

    def close(self) -> None:
        """Drops clients and metadata; an open transaction is left to the next `start` or its
        time-out.
        """
        self.producer.stop()
        admin, self._admin = self._admin, None
        if admin is not None:
            close(admin)
        self.log.close()
        self._catalog.forget()

    def _require_state_topic(self, admin: KafkaAdminClient, deadline: Deadline) -> None:
        topic, number = self.progress.place
        target = self._catalog.existing(admin, [topic], deadline)[topic]
        if target.partitions <= number:
            raise ConfigError(
                f"state topic {topic!r} has {target.partitions} partitions, shard {number} "
                f"needs {number + 1}: `duewheel init` adds them"
            )
