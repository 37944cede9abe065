"""The dequeue loop: closes slots as time passes, and publishes their timers.

    1. when all closed slots are delivered: under engine.lock, floor = floor(now / p), C = marks;
       beside the deliveries, slots that the ring has come to reach are linked (far_slots.py)
    2. the pipeline finds the closed slots' records, reads and encodes their messages, a bounded
       chunk at a time, ahead of the transactions (pipeline.py)
    3. one transaction per chunk: the messages and the progress (committer.py)
    4. the progress is mirrored locally (committer.py)
    5. cancels are replied to, in a transaction of its own (cancel_replies.py)

The `Phase` of a turn decides about its steps (phase.py). lifecycle.py starts and ends the loop.

- One closed range at a time, with one C for all its slots. A range without rows needs no commit of
  its own; the next commit counts it as delivered. A range that continues beyond the ring, after a
  long stop or after a reshard, is delivered up to the ring's end; its rest is the next closed
  range, with the same C.
- Empty slots wait for their closing while ingest commits nothing: they are closed together.
- After a kill between 3 and 4, or an unknown outcome of 3, the progress in Kafka decides.
- A start (startup.py) first commits the unchanged progress in its own name: that fences the owner
  before it, and is a heartbeat for a standby. After a recovery no slot is closed or delivered
  until ingest has caught up.
- No timer leaves early: a slot is closed when its last due time is past, and only closed slots are
  published. No slot is closed while this host's clock is ahead of the brokers' (clock_guard.py);
  slots that are closed already are delivered, whatever the clock does meanwhile.

Not thread-safe. The loop owns its publisher. It reads closed slots without a lock: no process
changes them. Others may read them, too (pending_counts.py, prefetch.py).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace

import structlog

from duewheel.checkpoints.commit_and_close_pages import Close, Marks
from duewheel.checkpoints.process_role import Role
from duewheel.checkpoints.progress import Progress, advanced, half_rows_by_slot
from duewheel.clock import Clock, Interval
from duewheel.schemas.batches import Deliveries
from duewheel.wheel.dequeue.cancel_replies import CancelReplies
from duewheel.wheel.dequeue.clock_guard import ClockGuard
from duewheel.wheel.dequeue.committer import Committer, TooLarge, TooWide
from duewheel.wheel.dequeue.partition_ends import BoundsKeeper
from duewheel.wheel.dequeue.phase import Phase
from duewheel.wheel.dequeue.pipeline import Pipeline, PreparedChunk, Threads
from duewheel.wheel.dequeue.position import Position
from duewheel.wheel.dequeue.statistics import CountsLog, Totals
from duewheel.wheel.dequeue_config import DequeueConfig
from duewheel.wheel.publisher_protocol import Prepared, Publisher
from duewheel.wheel.recovery.startup import Started
from duewheel.wheel.slots import closable_slot
from duewheel.wheel.storage import garbage_collection
from duewheel.wheel.storage.data_directory import LOCK_DEADLINE_S, DataDirectory
from duewheel.wheel.storage.far_slots import Linker

log = structlog.get_logger(__name__)

_BEAT_MS = 500
_BLOCKED_COMMIT_MS = 1_000  # between readings of the brokers' clock, while closing is blocked
_EMPTY_MS = 400  # empty slots that are closed together while ingest commits nothing


class Loop:
    """Closes, delivers and commits for a shard that this directory owns; see the module's head.

    Attributes:
        phase, position: after the newest turn; any thread may read them.
    """

    def __init__(
        self,
        directory: DataDirectory,
        publisher: Publisher,
        clock: Clock,
        config: DequeueConfig,
        started: Started,
        totals: Totals,
        stopping: Callable[[], bool],
        threads: Threads,
    ) -> None:
        decision = started.decision
        self.phase = Phase.RECOVERING
        self.position = Position(decision.close, decision.delivered_slot, decision.half_below)
        self._started = started
        self._directory = directory
        self._publisher = publisher
        self._clock = clock
        self._config = config
        self._totals = totals
        self._guard = ClockGuard(clock, config.clock_skew_max_ms)
        self._commits = Committer(
            directory,
            publisher,
            clock,
            self._guard,
            totals,
            started,
            self._beat,
            stopping,
            config.chunk_partitions,
        )
        charged_ms = started.committed.charged_ms
        self._chunks = Pipeline(directory, publisher.prepare, config, threads, charged_ms)
        self._linker = Linker(directory)
        self._bounds = BoundsKeeper(directory.path, directory.fs, publisher, clock)
        self._replies = CancelReplies(
            directory,
            {p: part.replied_below for p, part in started.committed.partitions.items()},
            started.committed.assignment_epoch,
            config.reply_topic,
            config.chunk_bytes,
            config.chunk_replies,
        )
        self._closed_at_commit: int | None = None  # `commits` at the last closing
        self._counts_log = CountsLog(clock)
        self._had_work = True  # in the turn before
        self._is_paused = False
        self._beating = Interval(clock, _BEAT_MS)
        self._collecting = Interval(clock, config.collect_interval_ms)

    def begin(self) -> None:
        """Commits the first position, which fences the owner before it.

        Raises:
            Overtaken: the last owner committed first.
            Fenced: a later start has taken the shard.
            RecoveryRefused: the progress in Kafka and the local files contradict each other.
            PublishDoubt: stopped before the outcome of the commit was known.
        """
        self._try_to_resume()
        claimed = self._commits.claimed
        log.info(
            "dequeue started",
            case=self._started.decision.case,
            delivered_slot=self.position.delivered_slot,
            floor=self.position.close.floor,
            half=bool(self.position.half_below),
            epoch=claimed.epoch,
        )
        if not claimed.epochs.newest.copy_keys:
            log.warning(
                "copies are not signed: each producer of a timer topic can forge them",
                reason="a version without keys has begun the shard",
                remedy="stop the shard, and run `duewheel reconfigure --rotate-key`",
            )
        self._commits.commit(None, claimed, 0)
        self._end_standby()

    def close(self) -> None:
        """Closes the files."""
        self._chunks.close()
        self._linker.close()

    def _end_standby(self) -> None:
        """Lets ingest take rows above C. Called after the first commit: before it, the last owner
        could still place such rows.
        """
        if self._directory.state.standby:
            with self._directory.engine_lock.held(LOCK_DEADLINE_S):
                self._directory.state.set_standby(on=False)

    # ---- one turn --------------------------------------------------------------------------

    def turn(self) -> bool:
        """Does the work of the phase; returns whether slots were closed or delivered, cancels
        replied to, or more slots must be linked.
        """
        self._beat()
        if self.phase is Phase.RECOVERING:
            self._try_to_resume()
        self._poll_pause()
        self.phase = self._next_phase()
        match self.phase:
            case Phase.RECOVERING | Phase.PAUSED:
                self._directory.require_decided()
                if self.phase is Phase.PAUSED:
                    self._present_ms()  # a pause shows a wrong clock, too, and its end
                self._commit_when_stale(lambda: self._commits.committed)
                return False
            case Phase.CLOSING:
                self._collect()
                waits = self._close_slots()
                if waits and not self._had_work and not self._commits.moved_copies:
                    return False  # as the turn before; a progress would be made for nothing
            case Phase.DELIVERING:
                pass
        self._had_work = self._deliver_next()
        return self._had_work

    def _next_phase(self) -> Phase:
        """Returns the phase of this turn; only `_try_to_resume` leaves RECOVERING."""
        if self.phase is Phase.RECOVERING:
            return Phase.RECOVERING
        return Phase.PAUSED if self._is_paused else self._phase_of_position()

    def _phase_of_position(self) -> Phase:
        return Phase.CLOSING if self.position.at_floor else Phase.DELIVERING

    def _try_to_resume(self) -> None:
        """Leaves RECOVERING once the files have every row below C. A delivery before that would
        count missing rows as delivered.
        """
        state, r = self._directory.state, self.position.delivered_slot
        if state.needs_recovery:
            return
        with self._directory.locked() as commit:
            if self.position.close.missing(commit.marks):
                return
            pending = self._directory.timeline.count(r, state.linked)
            pending += self._directory.count(commit, max(r, state.linked))
            self._replies.note_closing(commit)
        self._commits.delivered_rows = commit.placed - pending
        self._bounds.read(r, self._commits.committed.partitions)
        self._begin_range(self.position.half_below, self._present_ms())
        self.phase = self._phase_of_position()
        took_s = round(time.monotonic() - self._started.begun_s, 3)
        log.info("dequeue is ready", pending=pending, took_s=took_s)

    def _poll_pause(self) -> None:
        """Reads whether the operator has paused delivery; logs a change."""
        paused = self._directory.state.live.paused(Role.DEQUEUE)
        if paused != self._is_paused:
            self._is_paused = paused
            log.warning("paused: no timer is delivered" if paused else "delivery continues")

    # ---- 1. closing ------------------------------------------------------------------------

    def _collect(self) -> None:
        if self._collecting.is_over():
            committed = self._commits.committed
            garbage_collection.collect(self._directory, committed, self._replies.first_segment)
            self._bounds.read(self.position.delivered_slot, committed.partitions)

    def _close_slots(self) -> bool:
        """Runs 1. of the module's head; returns whether the next slots may wait for it."""
        if self._guard.must_read and self._commits.is_stale(_BLOCKED_COMMIT_MS):
            self._commits.commit(None, self._progress(self.position), 0)
            # It only reads the clock: the progress of the slots that are closed below, late already
            # after a start or a suspend, would otherwise wait for the next interval.
            self._commits.make_stale()
        close, precision_ms = self.position.close, self._directory.config.precision_ms
        now_ms = self._guard.check(close.floor * precision_ms)
        if now_ms is None:
            return False
        floor = closable_slot(now_ms, precision_ms)
        if floor <= close.floor:
            return False
        if self._may_wait(floor):
            return True
        with self._directory.locked() as commit:
            self._closed_at_commit = self._directory.state.commits
            close = Close(close.floor, close.marks, floor, {**close.marks, **commit.marks})
            self._write_close(close)
            self._replies.note_closing(commit)
        self._commits.add_topic_ids(commit.topic_ids)
        self._begin_range({}, now_ms)
        return False

    def _may_wait(self, floor: int) -> bool:
        """Returns whether the slots up to `floor` may be closed later, with the next ones: they are
        empty, C would be the same, and no commit is due. A closing costs half a millisecond, which
        at every slot would be the most of an idle shard's processor time.

        It takes no lock: an entry that ingest is writing just now is seen at the next slot's end.
        """
        state, closed = self._directory.state, self.position.close.floor
        return (
            (floor - closed) * self._directory.config.precision_ms < _EMPTY_MS
            and not self._commits.is_stale(self._config.progress_interval_ms)
            and floor <= state.linked
            and state.commits == self._closed_at_commit
            and self._directory.timeline.is_empty(closed, floor)
        )

    def _write_close(self, close: Close) -> None:
        """Replaces the close page. Called under engine.lock."""
        self.position = self.position.with_close(close)
        self._directory.state.write_close(close)

    def _present_ms(self) -> int:
        """Returns the time, and that of the last closed slot while the guard trusts no clock."""
        floor_ms = self.position.close.floor * self._directory.config.precision_ms
        return max(floor_ms, self._guard.check(floor_ms) or floor_ms)

    def _begin_range(self, below: Marks, now_ms: int) -> None:
        """Starts to prepare the slots above R, up to the floor or the ring's end; `below` is D of
        the first.
        """
        self._move_ring()
        partitions = self._started.committed.partitions
        r = self.position.delivered_slot
        # If R is the floor, no slot was linked above, and `linked` may be below R: an empty range.
        end = max(r, min(self.position.close.floor, self._directory.state.linked))
        self._chunks.begin(r, end, below, half_rows_by_slot(partitions), now_ms)

    def _move_ring(self) -> None:
        """Raises `lower` of a closed range beyond the ring, and links its next slots."""
        state, r = self._directory.state, self.position.delivered_slot
        floor = self.position.close.floor
        while state.linked <= r < floor:
            close = self.position.close
            if close.lower < r:
                with self._directory.locked():
                    self._write_close(close._replace(lower=r, marks_before=close.marks))
            self._linker.step(self.position.close.lower, floor)
            self._beat()

    # ---- 2. to 5. delivering ---------------------------------------------------------------

    def _deliver_next(self) -> bool:
        """Delivers a chunk, or ends the range; replies to some cancels."""
        self._bounds.lower(self._commits.claimed.held)
        links = self._linker.step(self.position.close.lower)
        chunk = self._chunks.next()
        if chunk is None:
            return self._end_range() or links
        if self._deliver(chunk):
            self._reply()
        return True

    def _end_range(self) -> bool:
        """Ends a delivered or empty range; returns whether more work is left."""
        self.position = self.position.after(self._chunks.end, None)
        replied = self._reply()
        self._commit_when_stale(lambda: self._progress(self.position))
        if self.position.at_floor:
            return replied
        self._begin_range({}, self._present_ms())
        return True

    def _deliver(self, chunk: PreparedChunk) -> bool:
        """Runs 3. and 4. of the module's head for one chunk; returns whether it has left. If it is
        divided, chases wait for its first part: before its copies they would never find these.
        """
        reached = self.position.after(chunk.delivered_after, chunk.ends, chunk.half_rows)
        begun_ms = self._clock.boottime_ms()
        try:
            self._commits.commit(chunk.prepared, self._progress(reached), chunk.rows)
        except TooLarge:
            self._chunks.divide(chunk, self._clock.boottime_ms() - begun_ms)
            return False
        except TooWide as wide:
            self._chunks.split(chunk, wide.cuts)
            return False
        self._chunks.note_commit(self._clock.boottime_ms() - begun_ms)
        self.position = reached
        self._totals.now = self._totals.now.after_drops(
            chunk.cancelled, chunk.dropped, chunk.missed
        )
        self._counts_log.log_changes(self._totals.now)
        return True

    def _reply(self) -> bool:
        """Runs 5. of the module's head; returns whether a reply or chase left, or more may."""
        if self._replies.is_done:
            return False
        replies = self._replies.next(self._progress(self.position).partitions)
        if replies is None:
            return not self._replies.is_done
        progress = self._progress(self.position, replies.replied_below)
        self._commits.commit(Prepared(replies.rows), progress, 0)
        self._replies.committed()
        self._totals.now = self._totals.now.after_replies(replies.outcomes, replies.chases)
        return True

    # ---- progress --------------------------------------------------------------------------

    def _progress(self, position: Position, replied_below: Marks | None = None) -> Progress:
        """Makes the progress at a position; `replied_below`: `a` after the replies with it."""
        reached = advanced(
            self._started.committed.partitions,
            position.close,
            position.delivered_slot,
            position.half_below or None,
            {**self._replies.replied_below, **(replied_below or {})},
            position.half_rows,
        )
        return replace(self._commits.progress_of(reached), charged_ms=self._chunks.charged_ms)

    def _commit_when_stale(self, make: Callable[[], Progress]) -> None:
        """Commits progress periodically while idle. Held copies move in these commits, without
        pause between them: they would otherwise move at one batch per interval.
        """
        interval_ms = self._config.progress_interval_ms
        if self._guard.blocks_closing:
            interval_ms = min(interval_ms, _BLOCKED_COMMIT_MS)
        if self._commits.moved_copies:
            interval_ms = 0
        if self._commits.is_stale(interval_ms):
            progress = make()
            moves = Prepared(Deliveries.none()) if progress.held else None
            self._commits.commit(moves, progress, 0)

    def _beat(self) -> None:
        """Writes a heartbeat, with the age of the oldest undelivered slot, and the host's clock."""
        if self._beating.is_over():
            now_ms, state = self._clock.now_ms(), self._directory.state
            behind_ms = self.position.behind_ms(now_ms, self._directory.config.precision_ms)
            state.live.beat(Role.DEQUEUE, os.getpid(), now_ms, behind_ms)
            state.live.note_host_clock(
                self._guard.ahead_ms(), blocks_closing=self._guard.blocks_closing
            )
