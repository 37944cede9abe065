"""Commits each transaction exactly once: 3. and 4. of loop.py.

    3. publishes the messages and the progress, atomically. In doubt a new producer ends the
       transaction, and the progress in Kafka decides (wheel/doubt_resolution.py). An aborted one
       is tried again after a wait; another one's progress means that another instance owns the
       shard. One whose transactional id was taken (Displaced) waits first, and publishes as soon
       as it has taken the id back. In the other order two instances take it from each other during
       their waits, and neither publishes. An owner waits longer: for the other instance's claim
    4. mirrors the progress locally: for `status`, and for a start after Kafka has lost its copy

- Messages leave only with a progress that differs from the last one: otherwise the progress could
  not show after a doubt whether they have left.
- A kill between 3 and 4 leaves an old mirror. So does a full disk; deliveries continue.
- Each wait is longer than the one before, and writes a heartbeat.

Not thread-safe: the loop owns it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NoReturn

import structlog

from duewheel.backoff import Backoff
from duewheel.checkpoints.progress import NOBODY, PartitionProgress, Progress
from duewheel.checkpoints.progress_mirror import UNCOUNTED, Mirror
from duewheel.clock import Clock, Interval
from duewheel.errors import (
    ConfigError,
    Displaced,
    Fenced,
    KafkaUnavailable,
    PublishDoubt,
    RecoveryRefused,
    TransactionTooSlow,
)
from duewheel.schemas.batches import TopicPartition
from duewheel.wheel.dequeue.clock_guard import ClockGuard
from duewheel.wheel.dequeue.partitioner import narrow_cuts
from duewheel.wheel.dequeue.statistics import Totals
from duewheel.wheel.doubt_resolution import CommitOutcome, Ledger
from duewheel.wheel.encoded import Writes
from duewheel.wheel.publisher_protocol import Prepared, PublishAttempt, Publisher
from duewheel.wheel.recovery.startup import Started
from duewheel.wheel.storage.data_directory import DataDirectory

log = structlog.get_logger(__name__)

_MIRROR_LOG_MS = 60_000
# How long a claim is awaited; twice as long each time that it has not come. An idle host needs a
# tenth of a second for one.
_CLAIM_MS, _CLAIM_MAX_MS = 2_000, 30_000
_CLAIM_POLL_MS = 100
# Two instances that are in each other's way meet again within their waits. So long without: an
# unrelated event, such as a transaction that a stalled host has left to its time-out.
_CLAIM_OVER_MS = 5 * 60_000


class TooLarge(Exception):
    """A transaction exceeded its deadline and is not committed: its rows leave in smaller ones."""


class TooWide(Exception):
    """A transaction has too many partitions, and was not begun: its rows leave in several."""

    def __init__(self, cuts: Sequence[int]) -> None:
        super().__init__(cuts)
        self.cuts = cuts  # the rows of the chunk with which the further ones begin


class Overtaken(Exception):
    """The last owner has committed once more before this start could claim the shard."""


class Committer:
    """Commits deliveries with their progress; see the module's head.

    Attributes:
        committed: the newest progress that is certainly in Kafka.
        moved_copies: whether its transaction has moved held copies: there may be more.
        delivered_rows: the number of placed rows that have left, for the mirror; UNCOUNTED until
            the loop has all rows.
    """

    def __init__(
        self,
        directory: DataDirectory,
        publisher: Publisher,
        clock: Clock,
        guard: ClockGuard,
        totals: Totals,
        started: Started,
        beat: Callable[[], None],
        stopping: Callable[[], bool],
        partitions_max: int,
    ) -> None:
        self.committed = started.committed
        self.moved_copies = False
        self.delivered_rows = UNCOUNTED
        self._claimed = started.progress  # the fields of each progress beside its partitions
        self._directory = directory
        self._publisher = publisher
        self._ledger = Ledger(self._restart, self._write, self.committed, self._as_written)
        self._clock = clock
        self._guard = guard
        self._totals = totals
        self._beat = beat
        self._stopping = stopping
        self._partitions_max = partitions_max  # of a transaction
        self._backoff = Backoff(clock, random.Random(started.progress.shard))
        self._displaced_at_ms = 0  # by boottime
        # For claims of others. A commit does not reset it: each wait would be as long as the last.
        self._claim_wait = Backoff(
            clock, random.Random(started.progress.shard), _CLAIM_MS, _CLAIM_MAX_MS
        )
        self._mirror_warning = Interval(clock, _MIRROR_LOG_MS)
        self._attempt = PublishAttempt(self.committed)  # the newest one
        self._committed_at_ms: int | None = None  # by boottime; None: the next commit is due

    @property
    def claimed(self) -> Progress:
        """The progress of this start, with the present held copies, and with the partitions as
        the start has read them.
        """
        return self._claimed

    def progress_of(self, partitions: Mapping[TopicPartition, PartitionProgress]) -> Progress:
        """Makes a progress of this start, with these partitions."""
        return replace(self._claimed, partitions=partitions)

    def add_topic_ids(self, topic_ids: Mapping[str, str]) -> None:
        """Sets Kafka's ids of the timer topics for later progress."""
        self._claimed = replace(self._claimed, topic_ids={**self._claimed.topic_ids, **topic_ids})

    def is_stale(self, interval_ms: int) -> bool:
        """Returns whether the last commit is older, by boottime: the host's clock may be set."""
        last_ms = self._committed_at_ms
        return last_ms is None or self._clock.boottime_ms() - last_ms >= interval_ms

    def make_stale(self) -> None:
        """Makes the next periodic commit due at once."""
        self._committed_at_ms = None

    def commit(self, prepared: Prepared | None, progress: Progress, rows: int) -> None:
        """Publishes until it is certain that the transaction was committed exactly once.

        Args:
            prepared: the rows of the chunk that are not delivered yet.
            progress: the progress after the transaction.
            rows: the number of rows of the chunk, including those that were out at the start: the
                loop began `delivered_rows` without the rows of a half-delivered slot.

        Raises:
            TooLarge: it exceeded its deadline, was aborted, and had more than one row.
            TooWide: nothing was begun.
            Overtaken: the last owner has committed once more.
            Fenced: another instance has the shard.
            RecoveryRefused: Kafka's progress is not the one that this loop wrote; or messages would
                leave with the progress that is committed already.
            PublishDoubt: stopped before the outcome of the transaction was known.
        """
        self._require_new(prepared, progress)
        begun_ms = self._clock.boottime_ms()
        self._publish(prepared, progress, rows)
        self._backoff.succeeded()
        attempt, progress = self._attempt, self._attempt.progress
        self._attempt = PublishAttempt(progress)  # without the rows, which take memory
        self._claimed = replace(self._claimed, held=progress.held)
        self.committed, self._committed_at_ms = progress, self._clock.boottime_ms()
        self.moved_copies = attempt.moved
        self._report(attempt, self._clock.boottime_ms() - begun_ms)
        self.delivered_rows += rows
        self._mirror(progress)

    def _require_new(self, prepared: Prepared | None, progress: Progress) -> None:
        """Refuses messages with an unchanged progress: a doubt could not be resolved, and the
        messages would be lost or doubled.
        """
        leaving = 0 if prepared is None else len(prepared.deliveries)
        if leaving and progress == self.committed:
            raise RecoveryRefused(
                f"nothing was published: {leaving} messages would leave with the progress that is "
                f"committed, delivered slot {progress.delivered_slot}: they may have left with it"
            )

    def _publish(self, prepared: Prepared | None, progress: Progress, rows: int) -> None:
        """Runs 3. of the module's head."""
        while True:
            tried_ms = self._clock.boottime_ms()
            result = self._ledger.commit(prepared, progress)
            if result.outcome is CommitOutcome.COMMITTED:
                self._guard.read(result.stamp_ms, tried_ms)
                return
            if result.outcome is CommitOutcome.ANOTHERS:
                self._refuse(result.position)
            if not isinstance(result.doubt, Displaced):
                self._wait()
            if rows > 1 and isinstance(result.doubt, TransactionTooSlow):
                raise TooLarge from result.doubt

    def _write(self, prepared: Prepared | None, progress: Progress) -> int | None:
        """Publishes the rows, encoded as they must be now."""
        self._attempt = PublishAttempt(progress)  # unless `compose` returns, nothing is begun
        if prepared is not None:
            prepared = self._publisher.renew(prepared, progress)
            self._require_narrow(prepared)
        self._attempt = self._publisher.compose(prepared, progress)
        return self._publisher.publish(self._attempt)

    def _require_narrow(self, prepared: Prepared) -> None:
        """Refuses rows for too many partitions. Only encoding knows them: by key, by metadata."""
        encoded, row = prepared.encoded, prepared.row
        if encoded is None or row is None or encoded.partitions <= self._partitions_max:
            return
        writes = Writes(row[encoded.writes.row], encoded.writes.partition)
        if cuts := narrow_cuts(writes, self._partitions_max):
            raise TooWide(cuts)

    def _restart(self, doubt: PublishDoubt | None) -> Progress | None:
        """Takes the shard again after a doubt, and reads the progress."""
        if doubt is not None and doubt.was_begun:
            self._totals.now = self._totals.now.after_doubt()
        if isinstance(doubt, Displaced):
            self._await_claim()
        return self._start_publisher()

    def _await_claim(self) -> None:
        """Waits a while for the claim of the instance that has taken the transactional id. It may
        end before its claim.

        Raises:
            Fenced: it has claimed the shard.
        """
        # A claim that is not committed must not wait for the last owner, which writes all the time.
        is_owner = self.committed.incarnation == self._claimed.incarnation
        last_ms, self._displaced_at_ms = self._displaced_at_ms, self._clock.boottime_ms()
        if self._displaced_at_ms - last_ms > _CLAIM_OVER_MS:
            self._claim_wait.succeeded()
        wait_ms = (self._claim_wait if is_owner else self._backoff).next_ms()
        log.warning("another instance takes the shard: awaiting its claim", longest_ms=wait_ms)
        until_ms = self._clock.boottime_ms() + wait_ms
        while not self._stopping():
            self._beat()
            with suppress(KafkaUnavailable, ConfigError):
                found = self._publisher.peek()
                # Beside an open transaction of another command it may be older than `committed`.
                if found is not None and found.epoch >= self._claimed.epoch:
                    self._require_own(found)
            left_ms = until_ms - self._clock.boottime_ms()
            if left_ms <= 0:
                return
            self._clock.sleep(min(left_ms, _CLAIM_POLL_MS) / 1000)

    def _refuse(self, seen: Progress | None) -> NoReturn:
        """Raises the error for a progress that is neither the attempted one nor the one before."""
        if seen is None:
            raise RecoveryRefused("the progress of this shard has vanished from the state topic")
        if seen.incarnation == self.committed.incarnation != self._claimed.incarnation:
            # The last owner has taken the transactional id back and committed.
            raise Overtaken(
                f"the last owner continues: epoch {seen.epoch}, slot {seen.delivered_slot}"
            )
        self._require_own(seen)
        raise RecoveryRefused("the progress in Kafka is neither the last one written nor the next")

    def _require_own(self, seen: Progress) -> None:
        """Raises Fenced if the progress is another instance's."""
        if seen.owner == NOBODY:
            raise Fenced(f"the partitions of shard {self._claimed.shard} have been reassigned")
        if (seen.owner, seen.incarnation) != (self._claimed.owner, self._claimed.incarnation):
            raise Fenced(
                f"shard {self._claimed.shard} now belongs to the data directory {seen.owner}, as "
                f"of epoch {seen.epoch}: this one had {self._claimed.epoch}"
            )

    def _start_publisher(self) -> Progress | None:
        """Starts the publisher again, however long Kafka is unavailable.

        Raises:
            PublishDoubt: stopped meanwhile; the next start of the process reads the progress.
        """
        while not self._stopping():
            try:
                return self._publisher.start()
            except (KafkaUnavailable, PublishDoubt) as error:
                log.warning("kafka is unavailable", reason=str(error))
                self._wait()
        raise PublishDoubt("stopped while waiting for Kafka: a transaction may be committed")

    def _wait(self) -> None:
        """Writes a heartbeat, then waits for the next attempt."""
        self._beat()
        wait_ms = self._backoff.next_ms()
        log.info("trying again", next_try_ms=wait_ms)
        self._backoff.wait(wait_ms)

    def _as_written(self, _: Progress) -> Progress:
        """Returns the progress of the newest attempt, with the held copies after it."""
        return self._attempt.progress

    def _report(self, attempt: PublishAttempt, took_ms: int) -> None:
        """Counts for metrics, and in `state` for `status`; calls the observer."""
        prepared, now_ms = attempt.prepared, self._clock.now_ms()
        deliveries = None if prepared is None else prepared.deliveries
        now = self._totals.now.after_commit(deliveries, attempt.aside, now_ms, took_ms)
        self._totals.now = now
        live = self._directory.state.live
        live.note_lateness(now.lateness.counts)
        live.note_deliveries(
            now.delivered, sum(now.dead_letters.values()), wait=self._publisher.letters_wait
        )
        encoded = None if prepared is None else prepared.encoded
        if encoded is not None and encoded.on_commit is not None:
            encoded.on_commit(now_ms)

    def _mirror(self, progress: Progress) -> None:
        """Runs 4. of the module's head. Only logs a failure: a kill leaves an old mirror, too."""
        try:
            self._directory.state.write_mirror(Mirror.of(progress, self.delivered_rows))
        except OSError as error:
            if self._mirror_warning.is_over():
                log.error(  # noqa: TRY400 - its text says it all
                    "the mirror of the progress cannot be written", reason=str(error)
                )
