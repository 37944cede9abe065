"""Publishes deliveries and progress in Kafka transactions: exactly once, or `PublishDoubt`.

A chunk of deliveries takes three steps, and goes one way:

    prepare    encode the rows by cached metadata: it decides the target of each row, and the
               batches (wheel/dequeue/encoder.py); any thread, no request
    renew      fetch expired metadata; encode again if that was not done, or the metadata changed
    publish    one transaction of ready batches

`publish`:

    1. the attempt (attempt.py), with held copies (held_queue.py): read from the state topic those
       whose timer partition is open again; turn new copies for closed timer partitions into records
       of the state topic
    2. begin; queue moved copies, messages, records of the state topic and, last, the progress
    3. check the result of every batch: kafka-python commits even after it has lost one
    4. commit; its acknowledgement makes messages and progress visible together

A failure in `renew` or 1 writes nothing. A failure from 2 on leaves a doubt: the transaction may be
committed. Either drops the producer and raises `PublishDoubt`; `start` opens another one,
whose `init_transactions` ends the doubtful transaction, and reads the committed progress.

Every call has a deadline: one for the whole of `start`; one for `renew`, and one for 1, which grow
with the number of topics; one for 2 to 4. A transaction that exceeds it raises
`TransactionTooSlow`, and the next one is smaller: a chunk too large for its deadline would fail for
ever. A longer deadline is no remedy: until a transaction ends, read_committed consumers of its
partitions wait.

Threads: any one thread may call `prepare`; the dequeue loop's calls everything else.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import structlog
from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from duewheel.checkpoints.obstacles import Obstacles
from duewheel.checkpoints.pauses import NONE_PAUSED, PausedTimers
from duewheel.checkpoints.progress import Progress, record_key
from duewheel.clock import Clock
from duewheel.errors import (
    ConfigError,
    DuewheelError,
    Fenced,
    KafkaUnavailable,
    PublishDoubt,
    TransactionTooSlow,
)
from duewheel.kafka.connect.clients import ClientSettings, close
from duewheel.kafka.connect.deadline import Deadline, DeadlineExceeded
from duewheel.kafka.ledger import producer_internals as internals
from duewheel.kafka.ledger.transactional_producer import (
    TransactionalProducer,
    blocked,
    doubt_of,
    preparation_deadline,
)
from duewheel.kafka.limits import PublisherLimits
from duewheel.kafka.log.compression import Compression, compressed
from duewheel.kafka.log.ends import LATEST
from duewheel.kafka.log.reader import LogReader
from duewheel.kafka.progress.shard_progress import ShardProgress
from duewheel.kafka.progress.state_topic import broker_now_ms, place_of
from duewheel.kafka.publish.attempt import AttemptMaker, PublishAttempt
from duewheel.kafka.publish.held_queue import log_held
from duewheel.kafka.publish.record_clock import RecordClock
from duewheel.kafka.targets.catalog import NO_VERDICT, TargetCatalog
from duewheel.schemas.batches import Deliveries
from duewheel.schemas.batches import TopicPartition as Place
from duewheel.wheel.dequeue.encoder import Encoder
from duewheel.wheel.dequeue.receipt_rows import NO_RECEIPTS, Receipts
from duewheel.wheel.encoded import Aside, Part, Target
from duewheel.wheel.publisher_protocol import Prepared

_ASK_S = 5.0  # for the reason why the transactional id cannot be taken
_EXPECTED = (KafkaError, DeadlineExceeded, DuewheelError, internals.NoAnswer)

log = structlog.get_logger(__name__)


class KafkaPublisher:
    """The Publisher (wheel/publisher_protocol.py) of one shard. Not thread-safe: one loop owns it;
    only `prepare` may be called by another thread.

    Example:
        publisher = KafkaPublisher({"bootstrap_servers": "kafka:9092"}, ...)
        progress = publisher.start()
        prepared = publisher.prepare(deliveries)
        publisher.publish(publisher.renew(prepared, next_progress), next_progress)
    """

    def __init__(
        self,
        client: Mapping[str, Any],
        *,
        transactional_id: str,
        state_topic: str,
        dead_letter_topic: str,
        shard: int,
        clock: Clock,
        limits: PublisherLimits | None = None,
        compression: Compression | None = None,
        receipts: Receipts | None = None,
        stopping: threading.Event | None = None,
        note: Callable[[Obstacles], None] = lambda _: None,
        paused: Callable[[], PausedTimers] = lambda: NONE_PAUSED,
    ) -> None:
        """Check the settings; connects nothing.

        Args:
            client: kafka-python settings of every client: address, security.
            transactional_id: the last instance to start with it owns the shard.
            stopping: once set, no call waits longer than a moment for Kafka.
            note: gets the known obstacles of deliveries at every change.
            paused: returns the topics whose due timers wait now.

        Raises:
            ConfigError: a client setting is unknown or decided by duewheel.
        """
        self._settings = ClientSettings(client)
        self._transactional_id = transactional_id
        self._state_partition = place_of(state_topic, shard)
        self._key = record_key(shard)
        self._clock = clock
        self._limits = limits or PublisherLimits()
        self._stopping = stopping
        self._obstacles, self._on_obstacles = Obstacles(), note
        self._catalog = TargetCatalog(
            self._settings, self._limits, lambda topics: self._note(targets=topics), compression
        )
        self._encoder = Encoder(
            self._catalog,
            dead_letter_topic,
            random.Random(),
            compressed,
            receipts or NO_RECEIPTS,
            paused,
        )
        self._producer = TransactionalProducer(
            self._settings, transactional_id, self._limits, stopping
        )
        self._admin: KafkaAdminClient | None = None
        self._log = LogReader(self._settings, [state_topic])
        self._was_started = False
        self._progress = ShardProgress(self._settings, self._state_partition, record_key(shard))
        self._record_clock = RecordClock(clock)
        self._attempts = AttemptMaker(
            self._state_partition, self._catalog, self._log, self._producer, self._preparing
        )
        self._aside = Aside()

    @property
    def aside(self) -> Aside:
        return self._aside

    @property
    def letters_wait(self) -> bool:
        return self._encoder.letters_wait

    def peek(self) -> Progress | None:
        """The newest committed progress, read without taking the transactional id.

        Raises:
            ConfigError: the state topic is missing.
            RecoveryRefused: the record there cannot be read.
        """
        deadline = self._starting()
        with self._settings.opened(KafkaAdminClient, deadline) as admin:
            self._require_topics(admin, deadline)
        with LogReader(self._settings, [self._state_partition.topic], deadline=deadline) as log:
            return self._progress.read(log, past_open=False)

    def age_ms(self) -> int:
        """See ShardProgress; KafkaUnavailable without an answer in time."""
        return self._progress.age_ms(self._starting())

    def broker_now_ms(self) -> int:
        """The brokers' clock; KafkaUnavailable without an answer in time."""
        return broker_now_ms(self._settings, self._state_partition, self._starting())

    def start(self) -> Progress | None:
        """Take the transactional id and read the newest committed progress; None without any.

        Raises:
            KafkaUnavailable: no answer in time; or, after a first successful start, any
                ConfigError: a topic or a right that existed once may come back.
            ConfigError: a topic is missing, or kafka-python or the broker does not fit.
            RecoveryRefused: the record there cannot be read.
            Fenced: once there was a successful start: partitions are being reassigned.
        """
        self.close()
        deadline = self._starting()
        try:
            self._admin = self._settings.open(KafkaAdminClient, deadline)
            self._require_topics(self._admin, deadline)
            # Before the read: a predecessor's transaction may still commit a newer progress.
            self._take(self._admin, deadline)
            # The reader stays connected: later calls do not wait for brokers that are away.
            self._log.deadline = deadline
            found = self._progress.read(self._log, past_open=True)
            if self._was_started and self._progress.is_to_yield:
                raise Fenced("the partitions are being reassigned: `duewheel reshard` was run")
        except ConfigError as error:
            self.close()
            if not self._was_started:
                raise
            log.error(  # noqa: TRY400 - its text says it all
                "kafka no longer has a topic, or no longer grants a right",
                transactional_id=self._transactional_id,
                reason=str(error),
            )
            raise KafkaUnavailable(str(error)) from error
        except DuewheelError:
            self.close()
            raise
        self._was_started = True
        log.info("publisher started", transactional_id=self._transactional_id)
        return found

    def _take(self, admin: KafkaAdminClient, deadline: Deadline) -> None:
        """Take the transactional id; the error says why, if Kafka cannot end its transaction."""
        try:
            self._producer.open([self._state_partition.topic], deadline)
        except KafkaUnavailable as error:
            short = Deadline(_ASK_S, self._stopping)
            why = blocked(self._settings, admin, self._transactional_id, short)
            self._note(transaction=why)
            raise KafkaUnavailable(f"{error}; {why}") if why else error from None
        self._note(transaction="")

    def _note(self, **changed: Any) -> None:
        found = self._obstacles._replace(**changed)
        if found != self._obstacles:
            self._obstacles = found
            self._on_obstacles(found)

    def log_ends(self, partitions: Sequence[Place]) -> Mapping[Place, int]:
        """See Publisher.

        Raises:
            KafkaUnavailable: no answer in time, or the publisher is not started.
        """
        if self._admin is None:
            raise KafkaUnavailable("the publisher is not started")
        self._log.deadline = Deadline(self._limits.quiet_s, self._stopping)
        return self._log.present(partitions, LATEST, committed=False)

    def prepare(self, deliveries: Deliveries) -> Prepared:
        return self._encoder.prepare(deliveries, self._record_clock.waits_from_ms())

    def renew(self, prepared: Prepared, progress: Progress) -> Prepared:
        """See Publisher.

        Raises:
            PublishDoubt, TransactionTooSlow: as `publish`; nothing was begun.
        """
        self._aside = Aside(held=progress.held)
        admin, deliveries = self._require_started(), prepared.deliveries
        if not len(deliveries):
            return prepared
        self._encoder.copy_key = progress.epochs.newest.signing_key
        needed = self._encoder.needed_topics(deliveries)
        deadline = self._preparing(len(deliveries.targets))

        def lookup(topics: Sequence[str]) -> Mapping[str, Target]:
            return self._catalog.resolve(admin, topics, deadline, needed)

        try:
            return self._encoder.renew(prepared, lookup, self._record_clock.waits_from_ms())
        except Exception as error:  # noqa: BLE001 - kafka-python raises any
            doubt = self._doubt(error)
            self._drop(error, doubt)
            raise doubt from None

    def publish(self, prepared: Prepared | None, progress: Progress) -> int | None:
        """One transaction: all deliveries in their order, and the progress record.

        Returns:
            The brokers' clock when they took the progress record, in ms since the epoch; None
            for a batch sent twice, or without LogAppendTime.

        Raises:
            PublishDoubt: the outcome is unknown or the transaction failed. The producer is
                stopped: call `start`.
            TransactionTooSlow: the same, because it ran out of time.
            Displaced: the same, because another producer has taken the transactional id.
            RecoveryRefused: the progress is too large; nothing was begun.
        """
        self._aside = Aside(held=progress.held)
        admin = self._require_started()
        progress.require_publishable()
        deliveries = None if prepared is None else prepared.deliveries
        encoded = None if prepared is None else prepared.encoded
        assert encoded or deliveries is None or not len(deliveries), "`renew` comes before"
        try:
            attempt = self._attempts.make(admin, deliveries, encoded, progress)
            self._aside = attempt.aside
            stamp_ms = self._transact(attempt)
            self._catalog.settle(deliveries, {(p.topic, p.partition) for p in attempt.parts})
            log_held(progress.held.keys(), attempt.aside.held.keys())
            self._attempts.succeeded()
            return stamp_ms
        except Exception as error:  # noqa: BLE001 - kafka-python raises any
            doubt = self._doubt(error)
            self._drop(error, doubt)
            raise doubt from None

    def _transact(self, attempt: PublishAttempt) -> int | None:
        """Steps 2 to 4 of the module's head; returns the brokers' clock, if it is in the reply."""
        batches = attempt.batches(self._state_partition, self._key)
        began_ms, now_ms = self._clock.boottime_ms(), self._record_clock.now_ms(attempt.due_ms)
        note = partial(self._note_refusals, attempt.parts)
        stamp_ms = self._producer.transact("publish", batches, now_ms, self._limits.quiet_s, note)
        if stamp_ms is not None:
            self._record_clock.took(stamp_ms, began_ms)
        return stamp_ms

    def _doubt(self, error: Exception) -> PublishDoubt:
        """The doubt to raise for an error."""
        reason = self._settings.explain(error)
        return doubt_of(error, f"transaction of {self._transactional_id!r}: {reason}")

    def _drop(self, error: Exception, doubt: PublishDoubt) -> None:
        """Drop the clients after a failure, and log it. The next attempts avoid partitions without
        an answer, and move fewer held copies after a time-out.
        """
        self.close()
        log.warning(
            "publish in doubt",
            transactional_id=self._transactional_id,
            reason=self._settings.explain(error),
            exc_info=False if isinstance(error, _EXPECTED) else error,
        )
        if isinstance(error, internals.NoAnswer):
            for late in error.partitions:
                self._catalog.mark_unavailable((late.topic, late.partition), "no answer")
        if isinstance(doubt, TransactionTooSlow):
            self._attempts.ran_out_of_time()

    def close(self) -> None:
        """Drop the clients; an open transaction is left to the next `start` or its time-out."""
        self._producer.stop()
        admin, self._admin = self._admin, None
        if admin is not None:
            close(admin)
        self._log.close()
        self._catalog.forget()

    def _require_topics(self, admin: KafkaAdminClient, deadline: Deadline) -> None:
        topic, number = self._state_partition
        target = self._catalog.resolve(admin, [topic], deadline)[topic]
        if target.refusal:
            raise ConfigError(
                f"Kafka at {self._settings.address}: topic {topic!r}: "
                f"{target.refusal.name.lower()}: `duewheel init` creates what is missing"
            )
        if target.partitions <= number:
            raise ConfigError(
                f"state topic {topic!r} has {target.partitions} partitions, shard {number} "
                f"needs {number + 1}: `duewheel init` adds them"
            )

    def _require_started(self) -> KafkaAdminClient:
        if self._admin is None or not self._producer.is_open:
            raise PublishDoubt("the publisher is not started")
        return self._admin

    def _starting(self) -> Deadline:
        return Deadline(self._limits.start_deadline_s, self._stopping)

    def _preparing(self, topics: int) -> Deadline:
        return preparation_deadline(self._limits.publish_deadline_s, topics, self._stopping)

    def _note_refusals(self, parts: Sequence[Part], outcomes: Sequence[internals.Outcome]) -> None:
        """Has the catalog note every batch that was refused."""
        progress = outcomes[-1]
        # The batches of the state topic come last.
        for part, outcome in zip(parts, outcomes, strict=False):
            error = outcome.error
            if error is None or not outcome.failed_itself:
                continue
            was_aborted = not progress.failed_itself and not isinstance(error, NO_VERDICT)
            alone = progress.error is None or was_aborted
            self._catalog.note_refusal(part, error, alone=alone)
