"""Publishes deliveries and progress in Kafka transactions: exactly once, or `PublishDoubt`.

A chunk of deliveries takes four steps, and goes one way:

    prepare    encode the rows by cached metadata: it decides the target of each row, and the
               batches (wheel/dequeue/encoder.py); any thread, no request
    renew      fetch expired metadata; encode again if that was not done, or the metadata changed
    compose    the attempt (attempt.py), with held copies (held_queue.py): read from the state topic
               those whose timer partition is open again; turn new copies for closed timer
               partitions into records of the state topic
    publish    one transaction of ready batches

`publish`:

    1. begin; queue moved copies, messages, records of the state topic and, last, the progress
    2. check the result of every batch: kafka-python commits even after it has lost one
    3. commit; its acknowledgement makes messages and progress visible together

A failure before `publish` writes nothing. One in `publish` leaves a doubt: the transaction may be
committed. Both drop the producer, let all metadata expire, and raise `PublishDoubt`; its
`was_begun`, and the log line, show which of the two it was. `start` opens another producer, whose
`init_transactions` ends the doubtful transaction, and reads the committed progress. Batches that
have failed by themselves have more consequences (failed_batches.py).

If a target was deleted after its lookup, Kafka takes neither its partitions nor its batches. The
wait for results (producer_internals.py) ends once the metadata lacks it, and the next attempt
decides the fates of its rows again.

`start`, `renew`, `compose` and `publish` have a deadline each. Those of `renew` and `compose` grow
with the number of topics; headway of reading the state topic renews those of `start` and `compose`.
A transaction that exceeds the deadline of `publish` raises `TransactionTooSlow`, and the next one
is smaller: a chunk that is too large for the deadline would fail for ever. A longer deadline is no
remedy: until a transaction ends, read_committed consumers of its partitions wait.

Any one thread may call `prepare`; the dequeue loop's thread calls everything else.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import structlog
from kafka.errors import KafkaError

from duewheel.checkpoints.obstacles import Obstacles
from duewheel.checkpoints.pauses import NONE_PAUSED, PausedTimers
from duewheel.checkpoints.progress import Progress
from duewheel.clock import Clock
from duewheel.deadline import DeadlineExceeded
from duewheel.errors import DuewheelError, PublishDoubt, TransactionTooSlow
from duewheel.kafka.connect.clients import KafkaClients
from duewheel.kafka.ledger import producer_internals as internals
from duewheel.kafka.log.compression import Compression
from duewheel.kafka.publish.attempt import AttemptMaker, batches_of
from duewheel.kafka.publish.failed_batches import FailedBatches
from duewheel.kafka.publish.fenced_session import FencedSession, ShardNames
from duewheel.kafka.publish.held_queue import log_held
from duewheel.kafka.publish.record_clock import RecordClock
from duewheel.kafka.targets.catalog import TargetCatalog
from duewheel.kafka.targets.refusal_limits import RefusalLimits
from duewheel.kafka.targets.resting_timer_topics import RestingTimerTopics
from duewheel.kafka.targets.target_cache import TargetCache
from duewheel.kafka.targets.unavailable_partitions import UnavailablePartitions
from duewheel.kafka.transaction_errors import doubt_of
from duewheel.kafka.transaction_limits import TransactionLimits
from duewheel.schemas.batches import Deliveries, TopicPartition
from duewheel.wheel.dequeue.encoder import Encoder, Observer
from duewheel.wheel.dequeue.receipt_rows import NO_RECEIPTS, Receipts
from duewheel.wheel.publisher_protocol import Prepared, PublishAttempt, no_rows
from duewheel.wheel.target_rules import Target

_EXPECTED = (KafkaError, DeadlineExceeded, DuewheelError, internals.NoAnswer)

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PublisherHooks:
    """The calls of a publisher into its process."""

    # Gets the known obstacles of deliveries at every change.
    on_obstacles: Callable[[Obstacles], None] = lambda _: None
    # Returns the topics whose due timers wait now.
    paused: Callable[[], PausedTimers] = lambda: NONE_PAUSED
    observer: Observer | None = None  # sees all rows when they are encoded


NO_HOOKS = PublisherHooks()


class KafkaPublisher:
    """The Publisher (wheel/publisher_protocol.py) of one shard. Not thread-safe: one loop owns it;
    only `prepare` may be called by another thread.

    Example:
        publisher = KafkaPublisher({"bootstrap_servers": "kafka:9092"}, ...)
        progress = publisher.start()
        prepared = publisher.prepare(deliveries)
        prepared = publisher.renew(prepared, next_progress)
        publisher.publish(publisher.compose(prepared, next_progress))
    """

    def __init__(
        self,
        client: Mapping[str, Any],
        names: ShardNames,
        clock: Clock,
        *,
        limits: TransactionLimits | None = None,
        compression: Compression | None = None,
        receipts: Receipts = NO_RECEIPTS,
        stopping: threading.Event | None = None,
        hooks: PublisherHooks = NO_HOOKS,
    ) -> None:
        """Checks the settings; connects nothing.

        Args:
            client: kafka-python settings of every client: address, security.
            stopping: once set, no call waits longer than a moment for Kafka.

        Raises:
            ConfigError: a client setting is unknown or decided by duewheel.
        """
        self._clients = KafkaClients(client)
        self._limits = limits or TransactionLimits()
        self._obstacles, self._on_obstacles = Obstacles(), hooks.on_obstacles
        self._unavailable = UnavailablePartitions(
            self._limits.backoff_s,
            on_change=lambda topics: self._report(self._obstacles._replace(targets=topics)),
        )
        self._refusals = RefusalLimits()
        cache = TargetCache(self._clients, self._limits, self._refusals, compression)
        self._catalog = TargetCatalog(cache, self._unavailable)
        self._resting = RestingTimerTopics(
            lambda topics: self._report(self._obstacles._replace(timer_topics=topics))
        )
        self._encoder = Encoder(
            self._catalog.recall,
            lambda: self._refusals.refused,
            names.dead_letter_topic,
            random.Random(),
            receipts,
            lambda: self._resting.beside(hooks.paused()),
            hooks.observer,
        )
        self._session = FencedSession(
            self._clients, names, self._catalog, self._unavailable, self._limits, stopping
        )
        self._record_clock = RecordClock(clock)
        self._attempts = AttemptMaker(self._session, self._catalog)
        self._failed = FailedBatches(
            self._refusals, self._unavailable, self._resting, self._session.ids
        )

    @property
    def letters_wait(self) -> bool:
        return self._encoder.letters_wait

    def peek(self) -> Progress | None:
        return self._session.peek()

    def age_ms(self) -> int:
        return self._session.age_ms()

    def broker_now_ms(self) -> int:
        """The brokers' clock; KafkaUnavailable without an answer in time."""
        return self._session.broker_now_ms()

    def start(self) -> Progress | None:
        return self._session.start()

    def log_ends(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        return self._session.log_ends(partitions)

    def _report(self, obstacles: Obstacles) -> None:
        if obstacles != self._obstacles:
            self._obstacles = obstacles
            self._on_obstacles(obstacles)

    def prepare(self, deliveries: Deliveries) -> Prepared:
        return self._encoder.prepare(deliveries, self._record_clock.waits_from_ms())

    def renew(self, prepared: Prepared, progress: Progress) -> Prepared:
        admin, deliveries = self._session.require_started(), prepared.deliveries
        if not len(deliveries):
            return prepared
        self._encoder.copy_key = progress.epochs.newest.signing_key
        needed = self._encoder.needed_topics(deliveries)
        deadline = self._session.preparing(len(deliveries.targets))

        def lookup(topics: Sequence[str]) -> Mapping[str, Target]:
            return self._catalog.resolve(admin, topics, deadline, needed)

        with self._doubting(prepared, was_begun=False):
            self._session.ids.require_blocked(admin)
            return self._encoder.renew(prepared, lookup, self._record_clock.waits_from_ms())

    def compose(self, prepared: Prepared | None, progress: Progress) -> PublishAttempt:
        admin = self._session.require_started()
        progress.require_publishable()
        rows = prepared or no_rows()
        assert rows.encoded or not len(rows.deliveries), "`renew` comes before"
        with self._doubting(rows, was_begun=False):
            return self._attempts.make(admin, prepared, progress)

    def publish(self, attempt: PublishAttempt) -> int | None:
        self._session.require_started()
        with self._doubting(attempt.rows):
            stamp_ms = self._transact(attempt)
            self._unavailable.note_success({(p.topic, p.partition) for p in attempt.parts})
            self._refusals.note_success(attempt.rows.deliveries)
            self._resting.note_commit()
            log_held(attempt.held_before, attempt.progress.held.keys())
            self._attempts.note_success()
            return stamp_ms

    @contextmanager
    def _doubting(self, rows: Prepared, *, was_begun: bool = True) -> Iterator[None]:
        """Around a step with these rows: an error drops the clients, and leaves a doubt."""
        began_ms = self._record_clock.boottime_ms()
        try:
            yield
        except Exception as error:  # noqa: BLE001 - kafka-python raises any
            self._failed.note_error(rows, self._seconds_since(began_ms), error)
            raise self._after_failure(error, was_begun) from None

    def _transact(self, attempt: PublishAttempt) -> int | None:
        """Steps 1 to 3 of the module's head; returns the brokers' clock, if it is in the reply."""
        batches = list(batches_of(attempt, self._session))  # compressed before the time is measured
        began_ms = self._record_clock.boottime_ms()
        now_ms = self._record_clock.now_ms(attempt.due_ms)

        def on_failure(outcomes: Sequence[internals.Outcome]) -> None:
            self._failed.note_outcomes(attempt, self._seconds_since(began_ms), outcomes)

        transact = self._session.producer.transact
        try:
            stamp_ms = transact(batches, now_ms, self._limits.quiet_s, on_failure)
        finally:
            seconds = self._seconds_since(began_ms)
            self._resting.note_duration(_slow_sources(attempt.rows), seconds)
        if stamp_ms is not None:
            self._record_clock.note_stamp(stamp_ms, began_ms)
        return stamp_ms

    def _seconds_since(self, began_ms: int) -> float:
        return (self._record_clock.boottime_ms() - began_ms) / 1000

    def _after_failure(self, error: Exception, was_begun: bool) -> PublishDoubt:
        """Drops the clients after a failure, and logs it; returns the doubt that it leaves. After a
        time-out the next attempts move fewer held copies.
        """
        self.close()
        reason, of_id = self._clients.explain(error), self._session.producer.transactional_id
        log.warning(
            "publish in doubt" if was_begun else "transaction not begun",
            transactional_id=of_id,
            reason=reason,
            exc_info=False if isinstance(error, _EXPECTED) else error,
        )
        doubt = doubt_of(error, f"transaction of {of_id!r}: {reason}", was_begun=was_begun)
        if isinstance(doubt, TransactionTooSlow):
            self._attempts.note_timeout()
        return doubt

    def close(self) -> None:
        self._session.close()


def _slow_sources(rows: Prepared) -> frozenset[str]:
    """The timer topics with timers for slow targets in a transaction."""
    used = rows.encoded.used_targets if rows.encoded else {}
    slow = [part for part in rows.parts if used[part.topic].slow_by]
    return rows.timer_topics_of(slow)
