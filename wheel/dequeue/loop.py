"""The dequeue loop: closes slots as time passes, and publishes what was in them.

    1. when everything closed is delivered: under engine.lock, floor = floor(now / p), C = marks;
       beside the deliveries, slots that the ring has come to are linked (far_slots.py)
    2. the closed slots' records are found, their messages read and encoded, a bounded chunk at a
       time, ahead of the transactions (pipeline.py)
    3. one transaction per chunk: the messages and the progress
    4. the progress is mirrored locally
    5. cancels are replied to, in a transaction of its own (cancel_replies.py)

- One closed range at a time, with one vector C for all its slots. A range without rows counts as
  delivered without a commit; the next commit tells. A range that goes on beyond the ring, after a
  long stop or where partitions come from different shards, is delivered up to there; then its rest
  is the closed range, with the same C.
- A kill between 3 and 4, or an unknown outcome of 3: the progress in Kafka says what is delivered.
- A start (startup.py) first writes the progress again, in its own name and otherwise as it was
  found: the owner before it learns that it is deposed, and no standby takes it for dead. After a
  recovery nothing is closed or delivered until ingest has caught up.
- Nothing is published before its slot is closed, and a slot is closed when its last due time is
  past: never early. While this host's clock is ahead of the brokers' nothing is closed
  (clock_guard.py); what is closed already is delivered, whatever the clock does meanwhile.

Not thread-safe; the loop is the only user of its publisher and of the wheel's closed half.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

import structlog

from duewheel.backoff import Backoff
from duewheel.checkpoints.cancel_bounds import CancelBounds
from duewheel.checkpoints.page_codec import Close, Commit, Marks
from duewheel.checkpoints.progress import (
    NOBODY,
    Progress,
    advanced,
    rows_out,
)
from duewheel.checkpoints.state_file import DEQUEUE
from duewheel.clock import Clock, Interval
from duewheel.errors import (
    CorruptFile,
    Fenced,
    KafkaUnavailable,
    PublishDoubt,
    RecoveryRefused,
    TransactionTooSlow,
)
from duewheel.schemas.batches import Deliveries, TopicPartition
from duewheel.wheel.config import DequeueConfig
from duewheel.wheel.dequeue.cancel_replies import CancelReplies
from duewheel.wheel.dequeue.clock_guard import ClockGuard
from duewheel.wheel.dequeue.partition_ends import LogEnds
from duewheel.wheel.dequeue.pipeline import Pipeline, Ready
from duewheel.wheel.dequeue.statistics import Statistics
from duewheel.wheel.publisher import Prepared, Publisher
from duewheel.wheel.recovery.startup import Started, start
from duewheel.wheel.slots import closable_slot
from duewheel.wheel.storage.data_directory import LOCK_DEADLINE_S, DataDirectory
from duewheel.wheel.storage.far_slots import Linker, rows_beyond

log = structlog.get_logger()

_BEAT_MS = 500
_COLLECT_MS = 60_000  # between looks for hours that can go
_BOUNDS_AGAIN_MS = 1_000  # between attempts to write cancel_bounds
_MIRROR_LOG_MS = 60_000
_HELD_COMMIT_MS = 1_000  # between readings of the brokers' clock while closing is held


class _TooLarge(Exception):
    """A transaction ran out of time and is not committed: its rows leave in smaller ones."""


class _Overtaken(Exception):
    """Before this start could say that the shard is its own, the last owner has committed more."""


class Dequeue:
    """One shard's loop; see the module's head."""

    def __init__(
        self,
        directory: DataDirectory,
        publisher: Publisher,
        clock: Clock,
        config: DequeueConfig,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        """
        Args:
            directory: started as DEQUEUE.
            publisher: of the shard.
            clock: this host's.
            config: bounds and identity.
            stopping: whether to end.
        """
        self._directory = directory
        self._publisher = publisher
        self._clock = clock
        self._config = config
        self._guard = ClockGuard(clock, config.clock_skew_max_ms)
        self._backoff = Backoff(clock, random.Random(config.shard))
        self._stopping = stopping
        self._statistics = Statistics()
        self._chunks = Pipeline(
            directory,
            publisher.prepare,
            config.chunk_records,
            config.chunk_bytes,
            config.hot_slots,
        )
        self._linker = Linker(directory)
        self._hot_slot: int | None = None  # the last one with rows in excess
        self._log_ends = LogEnds(publisher, clock)
        self._replies: CancelReplies | None = None  # until nothing is missing
        # Commit page of the newest closing; None once all cancels in it are replied to: idle ticks
        # then read no cancel log.
        self._closed_with: Commit | None = None
        self._delivered = 0
        self._beating = Interval(clock, _BEAT_MS)
        self._collecting = Interval(clock, _COLLECT_MS)
        self._mirror_warning = Interval(clock, _MIRROR_LOG_MS)
        # By boottime; None: never yet.
        self._committed_at_ms: int | None = None
        self._bounds_failed_at_ms: int | None = None
        self._was_paused = False

    def start(self, first: Progress | None = None, *, take_over: bool = False) -> None:
        """Take the shard, find out where delivery goes on, tell ingest, and claim the progress.

        Args:
            first: progress of a shard that never had any; None where that is not known to be so.
            take_over: the operator says that no other instance serves the shard any more.

        Raises:
            Fenced: the shard is another directory's; nothing has changed.
            RecoveryRefused: its progress and the local files cannot both be right; nothing has
                changed.
            RecoveryPending: a batch that ingest left half done is damaged: the next start recovers.
            KafkaUnavailable: no answer in time.
        """
        self._started_s = time.monotonic()
        while True:
            started = start(
                self._directory, self._publisher, self._config, first, take_over=take_over
            )
            try:
                self._begin(started)
            except _Overtaken as overtaken:
                log.warning("deciding anew", reason=str(overtaken))
            except CorruptFile as error:
                raise self._directory.give_up(error) from error
            else:
                return

    def _begin(self, started: Started) -> None:
        """Where the loop begins; told to Kafka, so that whoever served the shard finds out."""
        decision = started.decision
        self._close = decision.close
        self._r = decision.r
        self._below: dict[TopicPartition, int] = dict(decision.delivered_below)
        self._claimed = started.progress
        self._committed = started.found
        self._known = started.found.partitions
        self._ready = self._make_ready()
        log.info(
            "dequeue started",
            case=decision.case,
            delivered_slot=self._r,
            floor=self._close.floor,
            half=bool(self._below),
            epoch=self._claimed.epoch,
        )
        self._commit(None, self._claimed, 0)
        self._stand_by_no_more()

    def _stand_by_no_more(self) -> None:
        """Only now that the shard is its own: the last owner could still place rows above C."""
        if self._directory.state.standby:
            with self._directory.engine_lock.held(LOCK_DEADLINE_S):
                self._directory.state.set_standby(on=False)

    def _make_ready(self) -> bool:
        """Whether the files hold everything that was there when the slots were closed.

        After a recovery ingest must make the files whole, and read again what is missing: until
        then nothing is closed and nothing delivered.
        """
        state = self._directory.state
        if state.needs_recovery:
            return False
        with self._directory.locked() as commit:
            if self._close.missing(commit.marks):
                return False
            pending = self._directory.wheel.count(self._r, state.linked)
            pending += rows_beyond(self._directory, commit, max(self._r, state.linked))
            self._closed_with = commit
        self._delivered = commit.placed - pending
        self._replies = CancelReplies(
            self._directory,
            {p: part.a for p, part in self._known.items()},
            self._config.reply_topic,
            self._config.chunk_bytes,
        )
        self._bounds = self._read_bounds()
        self._rows_out = 0
        self._begin_range(self._below)
        took_s = round(time.monotonic() - self._started_s, 3)
        log.info("dequeue is ready", pending=pending, took_s=took_s)
        return True

    def _read_bounds(self) -> CancelBounds:
        bounds = CancelBounds.read(self._directory.path)
        if bounds is None:
            # Up to R all is out, and no further: what is still to leave may be rolled.
            return CancelBounds.blind_of(self._r, self._committed.partitions)
        return bounds

    @property
    def statistics(self) -> Statistics:
        """A frozen copy of the counters. May be asked from any thread."""
        return self._statistics

    @property
    def delivered_slot(self) -> int:
        """R: the last slot delivered in full. May be asked from any thread."""
        return self._r

    @property
    def is_ready(self) -> bool:
        """Whether no recovery is going on, in which files are cut. May be asked from any thread."""
        return self._ready

    # ---- the loop --------------------------------------------------------------------------

    def close(self) -> None:
        """Let go of the files; the directory may be stopped then."""
        self._chunks.close()
        self._linker.close()

    def run(self) -> None:
        """Tick until told to stop."""
        while not self._stopping():
            if not self.tick():
                self._clock.sleep(self._until_next_slot_ms() / 1000)

    def tick(self) -> bool:
        """Close what may be closed, deliver one chunk, reply to some cancels; returns whether there
        was any of these, or there are slots to be linked.

        While dequeue is paused, or a recovery is pending, nothing is closed, delivered or replied
        to. Progress is still committed, or a standby would take the owner for dead.

        Raises:
            Fenced: another instance has the shard.
            RecoveryRefused: Kafka's progress is not what this loop wrote.
            RecoveryPending: a pending timer is damaged, and has not been delivered: the next start
                recovers.
        """
        try:
            return self._tick()
        except CorruptFile as error:
            raise self._directory.give_up(error) from error

    def _tick(self) -> bool:
        self._beat()
        self._ready = self._ready or self._make_ready()
        if self._paused() or not self._ready:
            self._directory.require_decided()
            self._commit_when_stale(self._committed)
            return False
        if self._r == self._close.floor:
            self._collect()
            self._close_slots()
        self._know_log_ends()
        links = self._linker.step(self._close.lower)
        ready = self._chunks.next()
        if ready is None:
            self._r, self._below = self._range_end, {}
            replied = self._reply()
            self._commit_when_stale(self._progress(self._r, None))
            if self._r == self._close.floor:
                return replied or links
            self._begin_range({})
            return True
        self._deliver(ready)
        self._reply()
        return True

    def _know_log_ends(self) -> None:
        """Learn where partitions end in which copies may be in flight (cancel_bounds.py). A disk
        that takes nothing keeps nothing from being delivered: until it does cancels are chased.
        """
        if not self._is_time(self._bounds_failed_at_ms, _BOUNDS_AGAIN_MS):
            return
        # Not while copies are held for it: they will lie above an end taken now, and a cancel
        # between would be decided without them, and its timer delivered after the reply.
        ends = self._log_ends.of(p for p in self._bounds.unasked if p not in self._claimed.held)
        if ends:
            bounds = replace(self._bounds, blind={**self._bounds.blind, **ends})
            try:
                bounds.write(self._directory.path)
            except OSError as error:
                log.warning("the ends of timer partitions cannot be kept", reason=str(error))
                self._bounds_failed_at_ms = self._clock.boottime_ms()
                return
            self._bounds = bounds

    def _collect(self) -> None:
        if self._collecting.is_over():
            assert self._replies is not None, "asked only once nothing is missing"
            self._directory.collect(self._committed, self._replies.first_segment)
            self._bounds = self._read_bounds()

    def _close_slots(self) -> None:
        """1. of the module's head."""
        if self._guard.must_read and self._is_time(self._committed_at_ms, _HELD_COMMIT_MS):
            self._commit(None, self._progress(self._r, None), 0)
            self._committed_at_ms = None  # it told nothing new
        precision_ms = self._directory.config.precision_ms
        now_ms = self._guard.closing_ms(self._close.floor * precision_ms)
        if now_ms is None:
            return
        floor = closable_slot(now_ms, precision_ms)
        if floor <= self._close.floor:
            return
        with self._directory.locked() as commit:
            c = {**self._close.c, **commit.marks}
            self._close = Close(self._close.floor, self._close.c, floor, c)
            self._directory.state.write_close(self._close)
            ids = {**self._claimed.topic_ids, **commit.topic_ids}
            self._closed_with = commit
        self._claimed = replace(self._claimed, topic_ids=ids)
        self._begin_range({})

    def _move_ring(self) -> None:
        """Of a range that goes on beyond the ring: what is delivered makes room for its rest."""
        state = self._directory.state
        while state.linked <= self._r < self._close.floor:
            if self._close.lower < self._r:
                with self._directory.locked():
                    self._close = replace(self._close, lower=self._r, c_before=self._close.c)
                    state.write_close(self._close)
            self._linker.step(self._close.lower, self._close.floor)
            self._beat()

    def _begin_range(self, below: Mapping[TopicPartition, int]) -> None:
        """Have the slots behind R made ready, up to the floor, or as far as the ring reaches;
        `below`: D of the first.
        """
        self._move_ring()
        self._range_end = min(self._close.floor, self._directory.state.linked)
        self._chunks.begin(self._r, self._range_end, below, rows_out(self._known))

    def _deliver(self, ready: Ready) -> None:
        """3. and 4. of the module's head, for one chunk."""
        below = self._below_after(ready)
        progress = self._progress(ready.r_after, below, ready.rows_out)
        begun_ms = self._clock.boottime_ms()
        try:
            self._commit(ready.prepared, progress, ready.rows)
        except _TooLarge:
            self._chunks.divide(ready, self._clock.boottime_ms() - begun_ms)
            return
        self._chunks.note_commit(self._clock.boottime_ms() - begun_ms)
        self._r, self._below = ready.r_after, below or {}
        self._rows_out = ready.rows_out
        self._statistics = self._statistics.after_cancels(ready.cancelled)
        self._tell_hot(ready.hot)

    def _tell_hot(self, slots: list[int]) -> None:
        """Count and log each slot with rows in excess once."""
        new = [slot for slot in slots if self._hot_slot is None or slot > self._hot_slot]
        if new:
            self._hot_slot = new[-1]
            self._statistics = self._statistics.after_hot_slots(len(new))
            hot, precision_ms = self._config.hot_slots, self._directory.config.precision_ms
            log.warning(
                "more timers in a slot than dequeue.hot_slot_limit",
                slots_ms=[slot * precision_ms for slot in new],
                limit=hot.limit,
                policy=hot.policy,
            )

    def _reply(self) -> bool:
        """5. of the module's head; returns whether there was anything to reply."""
        below = self._below or None
        assert self._replies is not None, "asked only once nothing is missing"
        if self._closed_with is None:
            return False
        progress = self._progress(self._r, below, self._rows_out)
        replies = self._replies.next(self._closed_with, progress.partitions)
        if replies is None:
            self._closed_with = None  # until slots are closed again
            return False
        progress = self._progress(self._r, below, self._rows_out, replies.answered)
        self._commit(Prepared(replies.rows), progress, 0)
        self._replies.committed()
        self._statistics = self._statistics.after_replies(replies.outcomes, replies.chases)
        return True

    def _below_after(self, ready: Ready) -> dict[TopicPartition, int] | None:
        """D after this chunk if it leaves its last slot half delivered, else None."""
        if ready.ends is None:
            return None
        before = self._below if self._r == ready.r_after else {}
        partitions = ready.ends.keys() | before.keys()
        return {p: max(ready.ends.get(p, 0), before.get(p, 0)) for p in partitions}

    # ---- progress --------------------------------------------------------------------------

    def _progress(
        self,
        r: int,
        below: Mapping[TopicPartition, int] | None,
        rows_out: int = 0,
        answered: Marks | None = None,
    ) -> Progress:
        """The progress once slot `r` is delivered in full and, given D, slot r + 1 up to there.

        Args:
            r, below: as above.
            rows_out: how many rows of slot r + 1 are out then.
            answered: `a` of what is replied to with it.
        """
        known = self._replies.answered if self._replies is not None else {}
        reached = advanced(
            self._known, self._close, r, below, {**known, **(answered or {})}, rows_out
        )
        return replace(self._claimed, partitions=reached)

    def _commit_when_stale(self, progress: Progress) -> None:
        """Commit progress periodically while idle. Held copies move in these commits, without pause
        between them: they would otherwise move at one batch per interval.
        """
        interval_ms = self._config.progress_interval_ms
        if self._guard.held:
            interval_ms = min(interval_ms, _HELD_COMMIT_MS)
        if self._publisher.aside.moved:
            interval_ms = 0
        if self._is_time(self._committed_at_ms, interval_ms):
            self._commit(Prepared(Deliveries.none()) if progress.held else None, progress, 0)

    def _paused(self) -> bool:
        paused = self._directory.state.paused(DEQUEUE)
        if paused != self._was_paused:
            self._was_paused = paused
            log.warning("paused: nothing is delivered" if paused else "goes on delivering")
        return paused

    def _commit(self, prepared: Prepared | None, progress: Progress, rows: int) -> None:
        """3. and 4.: publish until it is certain that it happened exactly once.

        Args:
            prepared: what of the chunk is not delivered yet.
            progress: how far the shard is afterwards.
            rows: of the chunk. A slot found half delivered was counted as pending in full.

        Raises:
            _TooLarge: it ran out of time, did not happen, and had more than one row.
        """
        # Else nobody could tell, in doubt, whether they have left.
        leaves = prepared is not None and len(prepared.deliveries)
        assert not leaves or progress != self._committed, "messages leave as the progress says"
        begun_ms = self._clock.boottime_ms()
        while True:
            tried_ms = self._clock.boottime_ms()
            try:
                self._guard.read(self._publisher.publish(prepared, progress), tried_ms)
                break
            except PublishDoubt as doubt:
                log.warning("transaction in doubt", reason=str(doubt))
                self._statistics = self._statistics.after_doubt()
                if self._happened(self._with_held(progress)):
                    break
                self._wait()
                if rows > 1 and isinstance(doubt, TransactionTooSlow):
                    raise _TooLarge from doubt
        self._backoff.succeeded()
        progress = self._with_held(progress)
        self._claimed = replace(self._claimed, held=progress.held)
        self._committed, self._committed_at_ms = progress, self._clock.boottime_ms()
        deliveries = None if prepared is None else prepared.deliveries
        took_ms = self._clock.boottime_ms() - begun_ms
        now_ms = self._clock.now_ms()
        aside = self._publisher.aside
        self._statistics = self._statistics.after_commit(deliveries, aside, now_ms, took_ms)
        self._note_deliveries()
        self._delivered += rows
        self._mirror(progress)

    def _with_held(self, progress: Progress) -> Progress:
        """The progress as the publisher has written it: it knows which partitions take writes."""
        held = self._publisher.aside.held
        return progress if held == progress.held else replace(progress, held=held)

    def _note_deliveries(self) -> None:
        """For `status`, which asks neither Kafka nor this process."""
        known = self._statistics
        self._directory.state.note_deliveries(
            known.delivered, sum(known.dead_letters.values()), wait=self._publisher.letters_wait
        )

    def _mirror(self, progress: Progress) -> None:
        """An old mirror is as good as a kill before this: whatever the disk refuses, deliveries go
        on.
        """
        try:
            self._directory.state.write_mirror(progress.slot, self._delivered, progress.encode())
        except OSError as error:
            if self._mirror_warning.is_over():
                log.error(  # noqa: TRY400 - its text says it all
                    "the mirror of the progress cannot be written", reason=str(error)
                )

    def _happened(self, attempted: Progress) -> bool:
        """After a doubt: start anew and read whether the transaction was committed."""
        found = self._start_publisher()
        if found is None:
            raise RecoveryRefused("the progress of this shard has vanished from the state topic")
        if found.encode() == attempted.encode():
            return True
        if found.encode() == self._committed.encode():
            return False
        if found.lineage == self._committed.lineage != self._claimed.lineage:
            # It had not heard of this start, took the id back, and was quicker.
            raise _Overtaken(f"the last owner goes on: epoch {found.epoch}, slot {found.slot}")
        if found.owner == NOBODY:
            raise Fenced(f"the partitions of shard {self._config.shard} have been dealt anew")
        if (found.owner, found.lineage) != (self._claimed.owner, self._claimed.lineage):
            raise Fenced(
                f"shard {self._config.shard} now belongs to the data directory {found.owner}, as "
                f"of epoch {found.epoch}: this one had {self._claimed.epoch}"
            )
        raise RecoveryRefused("the progress in Kafka is neither the last one written nor the next")

    def _start_publisher(self) -> Progress | None:
        """Start the publisher again, for as long as it takes Kafka to come back.

        Raises:
            KafkaUnavailable: told to stop meanwhile; the next start of the process looks again.
        """
        while not self._stopping():
            try:
                return self._publisher.start()
            except (KafkaUnavailable, PublishDoubt) as error:
                log.warning("kafka is away", reason=str(error))
                self._wait()
        raise KafkaUnavailable("stopped while waiting for Kafka")

    def _wait(self) -> None:
        """Between two attempts at Kafka; says that this process lives."""
        self._beat()
        wait_ms = self._backoff.next_ms()
        log.info("trying again", next_try_ms=wait_ms)
        self._backoff.wait(wait_ms)

    # ---- time and counters -----------------------------------------------------------------

    def _until_next_slot_ms(self) -> int:
        precision_ms = self._directory.config.precision_ms
        return precision_ms - self._clock.now_ms() % precision_ms

    def _beat(self) -> None:
        if self._beating.is_over():
            now_ms, state = self._clock.now_ms(), self._directory.state
            behind_ms = max(0, now_ms - self._r * self._directory.config.precision_ms)
            state.beat(DEQUEUE, os.getpid(), now_ms, behind_ms)
            state.note_host_clock(self._guard.ahead_ms(), held=self._guard.held)

    def _is_time(self, last_ms: int | None, interval_ms: int) -> bool:
        """Whether that long has passed; boottime knows, also when the host's clock is set."""
        return last_ms is None or self._clock.boottime_ms() - last_ms >= interval_ms
