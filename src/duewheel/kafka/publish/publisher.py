"""Publishes deliveries and progress in Kafka transactions: exactly once, or `PublishDoubt`.

A chunk of deliveries takes three steps, and goes one way:

    prepare    encode the rows by cached metadata: who gets what, as which batches, is decided there
               (wheel/dequeue/encoder.py); any thread, no request
    renew      fetch expired metadata; encode again if that was not done, or the metadata changed
    publish    one transaction of ready batches

`publish`:

    1. held copies (held_queue.py): read from the state topic those whose timer partition is open
       again; turn new copies for closed timer partitions into records of the state topic
    2. begin; queue moved copies, messages, records of the state topic and, last, the progress
    3. check the result of every batch: kafka-python commits even after it has lost one
    4. commit; its acknowledgement makes messages and progress visible together

A failure in `renew` or 1 writes nothing. A failure from 2 on leaves a doubt: the transaction may be
committed. Either drops the producer and raises `PublishDoubt`; `start` opens another one,
whose `init_transactions` ends the doubtful transaction, and reads what was committed.

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import structlog
from kafka import KafkaAdminClient
from kafka.errors import KafkaError
from kafka.structs import TopicPartition

from duewheel.checkpoints.obstacles import Obstacles
from duewheel.checkpoints.progress import Progress, record_key
from duewheel.checkpoints.reshard_records import NOTICE_KEY, is_unfinished_notice
from duewheel.clock import Clock
from duewheel.errors import (
    ConfigError,
    DuewheelError,
    Fenced,
    KafkaUnavailable,
    PublishDoubt,
    TransactionTooSlow,
)
from duewheel.kafka.connect.clients import ClientSettings, close, open_admin
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
from duewheel.kafka.progress.state_topic import (
    StateRecord,
    broker_now_ms,
    last_write_ms,
    newest_of,
    place_of,
)
from duewheel.kafka.publish.held_queue import (
    BATCHES_AT_ONCE,
    Bounds,
    Moved,
    closed_to_copies,
    log_held,
    moved,
    split,
)
from duewheel.kafka.targets.catalog import NO_VERDICT, SentBatch, TargetCatalog
from duewheel.schemas.batches import Deliveries
from duewheel.schemas.batches import TopicPartition as Place
from duewheel.schemas.wire.batch_header import HEADER_BYTES
from duewheel.schemas.wire.record_batch import Batch
from duewheel.schemas.wire.single_record import single
from duewheel.wheel.dequeue.encoder import Encoder
from duewheel.wheel.dequeue.receipt_rows import NO_RECEIPTS, Receipts
from duewheel.wheel.encoded import Aside, Encoded, Part, Target
from duewheel.wheel.publisher_protocol import Prepared

# How far records' timestamps, which this host's clock gives, may be from the brokers' clock. Topics
# may refuse others (message.timestamp.before.max.ms, message.timestamp.after.max.ms).
_OFF_MAX_MS = 1_000
# A killed `reshard` leaves its notice behind. Once the progress is newer by this, the notice is
# ignored: otherwise the shard could never start again.
_NOTICE_AGE_MS = 60_000
_ASK_S = 5.0  # for the reason why the transactional id cannot be taken
_EXPECTED = (KafkaError, DeadlineExceeded, DuewheelError, internals.NoAnswer)

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Stamp:
    """The brokers' clock in a transaction, between two readings of this host's boottime.

    Attributes:
        brokers_ms: the brokers' clock.
        began_ms, ended_ms: boottime before and after it.
    """

    brokers_ms: int
    began_ms: int
    ended_ms: int

    def bounded(self, wanted_ms: int, boottime_ms: int) -> int:
        """A time within `_OFF_MAX_MS` of the brokers' clock, which a slow transaction shows only
        as a span: below its end the time could be seconds early, and records would precede their
        due time.
        """
        least_ms = self.brokers_ms + boottime_ms - self.ended_ms - _OFF_MAX_MS
        most_ms = self.brokers_ms + boottime_ms - self.began_ms + _OFF_MAX_MS
        return min(max(wanted_ms, least_ms), most_ms)


@dataclass(frozen=True, slots=True)
class PublishAttempt:
    """What one transaction writes: the result of step 1 of the module's head.

    Attributes:
        progress: with the held copies after the commit.
        parts: go to partitions of topics.
        records: of the state topic, beside the progress.
        aside: the rows that do not go where they were addressed.
        due_ms: the latest due time of the timers that are delivered.
    """

    progress: Progress
    parts: Sequence[Part] = ()
    records: Sequence[Batch] = ()
    aside: Aside = field(default_factory=Aside)
    due_ms: int = 0

    def batches(self, state: TopicPartition, key: bytes) -> Iterator[tuple[Place, Batch]]:
        """The batches in order; the progress, under this key, is last."""
        for part in self.parts:
            yield (part.topic, part.partition), part.batch
        for record in (*self.records, single(key, self.progress.encode())):
            yield state, record


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
        chance: random.Random | None = None,
        stopping: threading.Event | None = None,
        note: Callable[[Obstacles], None] = lambda _: None,
    ) -> None:
        """Check the settings; connects nothing.

        Args:
            client: kafka-python settings of every client: address, security.
            transactional_id: the shard's; the last instance to start with it owns the shard.
            state_topic: a partition for each shard, compacted, LogAppendTime.
            dead_letter_topic: where unpublishable rows go.
            shard: index of the shard.
            clock: gives the records' timestamps.
            limits: bounds on time and size.
            compression: of deliveries; none by default.
            receipts: which deliveries have one; none by default.
            chance: chooses partitions for rows without key and request.
            stopping: once set, no call waits longer than a moment for Kafka.
            note: gets the known obstacles of deliveries at every change.

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
            chance or random.Random(),
            compressed,
            receipts or NO_RECEIPTS,
        )
        self._producer = TransactionalProducer(
            self._settings, transactional_id, self._limits, stopping
        )
        self._admin: KafkaAdminClient | None = None
        self._log = LogReader(self._settings, [state_topic])
        self._was_started = False
        self._last_read: StateRecord | None = None  # of the progress
        self._stamp: Stamp | None = None  # of the last commit that has one
        self._aside = Aside()
        self._moves_max = BATCHES_AT_ONCE  # in one transaction; halved after a time-out

    @property
    def aside(self) -> Aside:
        """See Publisher."""
        return self._aside

    @property
    def letters_wait(self) -> bool:
        """See Publisher."""
        return self._encoder.letters_wait

    def peek(self) -> Progress | None:
        """The newest committed progress, read without taking the transactional id.

        Raises:
            KafkaUnavailable: no answer in time.
            ConfigError: the state topic is missing.
            RecoveryRefused: the record there cannot be read.
        """
        deadline = Deadline(self._limits.start_deadline_s, self._stopping)
        admin = open_admin(self._settings, deadline)
        try:
            self._require_topics(admin, deadline)
            with LogReader(self._settings, [self._state_partition.topic], deadline=deadline) as log:
                return self._read_progress(log, past_open=False)
        finally:
            close(admin)

    def age_ms(self) -> int:
        """How long ago the owner wrote last, by the broker's clock: the progress that was last
        read, or a newer record in an open transaction.

        Raises:
            KafkaUnavailable: no answer in time.
        """
        deadline = Deadline(self._limits.start_deadline_s, self._stopping)
        hidden_ms = last_write_ms(self._settings, self._state_partition, self._key, deadline)
        read_ms = self._last_read.timestamp_ms if self._last_read else 0
        return self.broker_now_ms() - max(read_ms, hidden_ms)

    def broker_now_ms(self) -> int:
        """The brokers' clock, in ms since the epoch.

        Raises:
            KafkaUnavailable: no answer in time.
        """
        deadline = Deadline(self._limits.start_deadline_s, self._stopping)
        return broker_now_ms(self._settings, self._state_partition, deadline)

    def _read_progress(self, reader: LogReader, *, past_open: bool = True) -> Progress | None:
        found = self._last_read = newest_of(
            reader, self._state_partition, self._key, past_open=past_open
        )
        return Progress.decode(found.value) if found else None

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
        deadline = Deadline(self._limits.start_deadline_s, self._stopping)
        try:
            self._admin = open_admin(self._settings, deadline)
            self._require_topics(self._admin, deadline)
            self._take(self._admin, deadline)
            # The reader stays connected: later calls do not wait for brokers that are away.
            self._log.deadline = deadline
            found = self._read_progress(self._log)
            if self._was_started and self._last_read and is_yield_requested(self._last_read):
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
        return self._log_ends(partitions, Deadline(self._limits.quiet_s, self._stopping))

    def _log_ends(self, partitions: Sequence[Place], deadline: Deadline) -> Mapping[Place, int]:
        self._log.deadline = deadline
        return self._log.present(partitions, LATEST, committed=False)

    def prepare(self, deliveries: Deliveries) -> Prepared:
        """See Publisher."""
        return self._encoder.prepare(deliveries, self._waits_from_ms())

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
            return self._encoder.renew(prepared, lookup, self._waits_from_ms())
        except Exception as error:  # noqa: BLE001 - kafka-python raises what it likes
            self.close()
            raise self._doubt(error) from None

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
            attempt = self._attempt(admin, deliveries, encoded, progress)
            self._aside = attempt.aside
            stamp_ms = self._transact(attempt)
            self._catalog.settle(deliveries, {(p.topic, p.partition) for p in attempt.parts})
            log_held(progress.held.keys(), attempt.aside.held.keys())
            self._moves_max = min(2 * self._moves_max, BATCHES_AT_ONCE)
            return stamp_ms
        except Exception as error:  # noqa: BLE001 - kafka-python raises what it likes
            self.close()
            raise self._doubt(error) from None

    def _transact(self, attempt: PublishAttempt) -> int | None:
        """Steps 2 to 4 of the module's head; returns the brokers' clock, if it is in the reply."""
        batches = attempt.batches(self._state_partition, self._key)
        began_ms, now_ms = self._clock.boottime_ms(), self._now_ms(attempt.due_ms)
        note = partial(self._note_refusals, attempt.parts)
        stamp_ms = self._producer.transact("publish", batches, now_ms, self._limits.quiet_s, note)
        if stamp_ms is not None:
            self._stamp = Stamp(stamp_ms, began_ms, self._clock.boottime_ms())
        return stamp_ms

    def _doubt(self, error: Exception) -> PublishDoubt:
        """The error to raise. Marks partitions without an answer; moves less after a time-out."""
        if isinstance(error, internals.NoAnswer):
            for late in error.partitions:
                self._catalog.mark_unavailable((late.topic, late.partition), "no answer")
        reason = self._settings.explain(error)
        log.warning(
            "publish in doubt",
            transactional_id=self._transactional_id,
            reason=reason,
            exc_info=False if isinstance(error, _EXPECTED) else error,
        )
        doubt = doubt_of(error, f"transaction of {self._transactional_id!r}: {reason}")
        if isinstance(doubt, TransactionTooSlow):
            self._moves_max = max(self._moves_max // 2, 1)
        return doubt

    def _now_ms(self, due_ms: int = 0) -> int:
        """The records' timestamp, near the brokers' clock once a commit has shown that: topics then
        accept it however wrong this host's clock is. `due_ms`: the latest due time of the timers;
        a clock that was set back since their slot was closed could be below it.
        """
        now_ms = self._clock.now_ms()
        if self._stamp is None:
            return now_ms
        return self._stamp.bounded(max(now_ms, due_ms), self._clock.boottime_ms())

    def _waits_from_ms(self) -> int:
        """When parked rows begin to wait. This host's clock closes their slot, but not while it is
        ahead of the brokers' clock: so the earlier of the two counts.
        """
        return min(self._clock.now_ms(), self._now_ms())

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

    def _preparing(self, topics: int) -> Deadline:
        return preparation_deadline(self._limits.publish_deadline_s, topics, self._stopping)

    def _attempt(
        self,
        admin: KafkaAdminClient,
        deliveries: Deliveries | None,
        encoded: Encoded | None,
        progress: Progress,
    ) -> PublishAttempt:
        """Step 1 of the module's head; without deliveries the progress leaves alone."""
        if deliveries is None:
            return PublishAttempt(progress, aside=Aside(held=progress.held))
        parts, aside = (encoded.parts, encoded.aside) if encoded else ([], Aside())
        places = {(part.topic, part.partition) for part in parts}
        returning = places.intersection(deliveries.source_partitions)
        moves, closed = Moved(held=progress.held), set[Place]()
        topics = {part.topic for part in parts} | {topic for topic, _ in progress.held}
        deadline = self._preparing(len(topics))
        if progress.held or returning:
            moves, closed = self._moved(admin, parts, returning, progress, deadline)

        def end() -> int:
            where, self._log.deadline = self._state_partition, deadline
            return self._log.offsets([where], LATEST, committed=False)[where]

        batches = split(parts, closed, moves.held, progress.topic_ids, end)
        parts = [*moves.parts, *batches.now]
        self._producer.warm_metadata(dict.fromkeys(part.topic for part in parts), deadline)
        is_unchanged = batches.held == progress.held
        return PublishAttempt(
            progress if is_unchanged else replace(progress, held=batches.held),
            parts,
            [*moves.deletions, *batches.records],
            replace(aside, held=batches.held, moved=moves.held != progress.held),
            latest_due_ms(deliveries),
        )

    def _moved(
        self,
        admin: KafkaAdminClient,
        parts: Sequence[Part],
        returning: set[Place],
        progress: Progress,
        deadline: Deadline,
    ) -> tuple[Moved, set[Place]]:
        """The held copies that are moved, and the timer partitions that are closed to copies:
        among those with held copies, and those that get some now.
        """
        partitions = returning.union(progress.held)
        targets = self._catalog.resolve(admin, {topic for topic, _ in partitions}, deadline)

        def ends(partitions: Sequence[Place]) -> Mapping[Place, int]:
            return self._log_ends(partitions, deadline)

        closed = closed_to_copies(partitions, targets, progress, ends)
        bounds, self._log.deadline = Bounds.beside(parts, self._moves_max), deadline
        free = progress.held.keys() - closed
        return moved(self._log, self._state_partition, progress, free, bounds), closed

    def _note_refusals(self, parts: Sequence[Part], outcomes: Sequence[internals.Outcome]) -> None:
        """Has the catalog note every batch that was refused."""
        progress = outcomes[-1]
        # The batches of the state topic come last.
        for part, outcome in zip(parts, outcomes, strict=False):
            error = outcome.error
            if error is None or not outcome.failed_itself:
                continue
            size = HEADER_BYTES + part.batch.plain_bytes
            sent = SentBatch(part.topic, part.partition, size, part.source, part.is_whole)
            was_aborted = not progress.failed_itself and not isinstance(error, NO_VERDICT)
            alone = progress.error is None or was_aborted
            self._catalog.note_refusal(sent, error, alone=alone)


def latest_due_ms(deliveries: Deliveries) -> int:
    """The latest due time of the rows that are timers and no copies; 0 without one."""
    others = deliveries.dead_letter | deliveries.is_copy | deliveries.answer
    return int(np.max(deliveries.due_ms, where=~others, initial=0))


def is_yield_requested(progress: StateRecord) -> bool:
    """Whether `duewheel reshard` asks this shard to yield: its notice lies beside the progress, and
    the progress is not newer than it by `_NOTICE_AGE_MS`.
    """
    notice = progress.beside.get(NOTICE_KEY)
    if notice is None or progress.timestamp_ms - notice.timestamp_ms > _NOTICE_AGE_MS:
        return False
    return is_unfinished_notice(notice.value)
