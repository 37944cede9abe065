"""Follows the owner of a shard, so that the files are always ready for a take-over: a warm standby.

Instead of the dequeue loop a *follower* runs, which never publishes. It reads the newest committed
progress, and under engine.lock writes the mirror, then the close page derived from it
(`close_at` in wheel/recovery/kept_files.py): Close(R, C_R, R or R + 1, C_R or C_{R+1}).

Ingest runs as usual. While `state` says *standby*, the engine takes only rows below C of that page,
as replayed rows (`place_replayed`). A row with the requested slot s, by its offset in a partition;
C_{R+1} is in the progress only while slot R + 1 is half delivered:

    offset     0 ──────────────── C_R ───────────────────── C_{R+1} ────────────────►
    the owner  s > R: at s         at max(s, R + 1): a late   may still place it
    has it     s ≤ R: delivered    row went to the earliest   anywhere
                                   open slot
    this       s > R: at s         at max(s, R + 1); D says   it waits
    standby    s ≤ R: dropped      whether it is out

So a row is dropped as done, or is where the owner has it, whatever R was when it was taken. No
row ever moves: when R passes its slot, C of that slot is above it, and it is done.

- Progress may jump: empty slots leave no trace, so no intermediate step is necessary.
- Any owner may write the progress, as long as it only rises. If it falls, Kafka has lost some, and
  rows that were dropped as done may be pending: the next start keeps no files.
- Mirror before close page: a kill in between leaves a lower C, so fewer rows are taken.
- Hours below R + 1 are deleted as by the owner.

A follower decides nothing about the shard. Its `Verdict` is the reason to try a take-over: a start
of dequeue on these files, for which `require_may_own` (checkpoints/ownership.py) decides whether
this directory may own the shard. A start that is refused, or that another standby has overtaken,
follows again (src/duewheel/runtime/dequeue_process.py).

The start (startup.py) follows once more, and delivers from that close page. No recovery is
necessary, ingest keeps running, and dequeue is ready once the marks have reached C. `state` has
*standby* until the progress is this directory's own; only then does ingest take rows above C.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from enum import Enum

import structlog

from duewheel.checkpoints.commit_and_close_pages import Close
from duewheel.checkpoints.local_state import is_own, read_local_state
from duewheel.checkpoints.process_role import Role
from duewheel.checkpoints.progress import Progress
from duewheel.checkpoints.progress_mirror import Mirror
from duewheel.clock import Clock, Interval
from duewheel.errors import CorruptFile, KafkaUnavailable, RecoveryPending, RecoveryRefused
from duewheel.wheel.dequeue.cancel_replies import CancelReplies
from duewheel.wheel.dequeue_config import DequeueConfig
from duewheel.wheel.publisher_protocol import ProgressReader, Seen
from duewheel.wheel.recovery.kept_files import close_at, decide_to_follow, is_older
from duewheel.wheel.recovery.startup import publish_decision
from duewheel.wheel.storage import garbage_collection
from duewheel.wheel.storage.data_directory import LOCK_DEADLINE_S, DataDirectory
from duewheel.wheel.storage.far_slots import Linker

log = structlog.get_logger(__name__)

POLL_S = 0.25  # between two readings of the progress
_ASK_MS = 3_000  # the owner's silence before a request to the coordinator; and between two
_LOG_MS = 10_000
_AWAITED_MAX = 1_000  # closings in memory; beyond them the lag is a little too low


class Verdict(Enum):
    """The reason why a follower ends."""

    OWNER = "the shard is this directory's own"
    PROMOTED = "the operator has requested a take-over"
    SILENT = "the owner has been silent for too long"


class Follower:
    """Follows the owner of one shard; see the module's head. Not thread-safe."""

    def __init__(
        self,
        directory: DataDirectory,
        reader: ProgressReader,
        clock: Clock,
        config: DequeueConfig,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._directory = directory
        self._reader = reader
        self._clock = clock
        self._config = config
        self._stopping = stopping
        self._linker = Linker(directory)
        self._seen: Seen | None = None  # followed so far
        # By boottime: the owner's last heartbeat, the last request to the coordinator; closings
        # whose C ingest has not reached, each with the time when it was first read.
        self._last_sign_ms = self._last_question_ms = clock.boottime_ms()
        self._awaited: deque[tuple[int, Close]] = deque()
        self._collecting = Interval(clock, config.collect_interval_ms)
        self._cancels = CancelReplies(
            directory, {}, 0, None, config.chunk_bytes, config.chunk_replies
        )
        self._warning = Interval(clock, _LOG_MS)

    def run(self) -> Verdict | None:
        """Follows until an outcome; None if stopped."""
        while not self._stopping():
            verdict = self.tick()
            if verdict is not None:
                return verdict
            self._clock.sleep(POLL_S)
        return None

    def tick(self) -> Verdict | None:
        """Reads the progress once, and follows it.

        Raises:
            RecoveryRefused: the progress cannot be decoded.
            ConfigError: no right to read the progress.
            RecoveryPending: files are damaged, or the progress has fallen: the next start keeps
                all that it can. Or the shard is sealed, or was written under other settings:
                the next start decides.
        """
        try:
            seen = self._reader.newest()
        except KafkaUnavailable as error:
            # Without this the owner would count as silent while only Kafka is unavailable.
            self._last_sign_ms = self._clock.boottime_ms()
            self._warn("kafka is unavailable", reason=str(error))
            self._beat()
            return None
        if seen is None:
            return self._without_progress()
        if self._seen is None:
            return self._begin(seen)
        self._directory.require_decided()
        self._follow(seen)
        self._link()
        self._beat()
        self._collect(seen.progress)
        return self._verdict()

    def _without_progress(self) -> Verdict | None:
        """Waits for the first progress, or for the operator if Kafka has lost it."""
        if not self._directory.state.standby:
            self._warn("waiting for the first progress of the shard")
            return None
        self._warn("the state topic has lost the progress: `duewheel promote` continues from here")
        self._beat()
        return Verdict.PROMOTED if self._is_promoted() else None

    def _is_promoted(self) -> bool:
        return self._directory.state.live.promotion_wanted(self._clock.now_ms())

    def _require_fits(self, progress: Progress) -> None:
        try:
            self._config.require_fits(progress, self._directory.config)
        except RecoveryRefused as refused:
            if progress.sealed_for is None:
                raise RecoveryPending(
                    f"not standing by: the owner's settings are others ({refused}). Here: give "
                    "this standby the owner's configuration, then stop and start it"
                ) from refused
            raise RecoveryPending(f"not standing by yet: {refused}") from refused

    def _begin(self, seen: Seen) -> Verdict | None:
        """Decides which files are kept, and publishes the decision to ingest."""
        progress = seen.progress
        self._require_fits(progress)
        state = self._directory.state
        if is_own(progress, read_local_state(state, self._directory.path)):
            return Verdict.OWNER
        # No claim: an earlier start may have been about to take over.
        decision = publish_decision(
            self._directory, progress, decide_to_follow, (0, 0), follows=True
        )
        self._seen, self._last_sign_ms = seen, self._clock.boottime_ms()
        log.info(
            "standing by",
            case=decision.case,
            owner=progress.owner,
            delivered_slot=progress.delivered_slot,
        )
        self._beat()
        return None

    def _follow(self, seen: Seen) -> None:
        """Writes mirror and close page of the newest progress."""
        assert self._seen is not None
        before, state = self._seen, self._directory.state
        if seen == before:
            return
        if is_older(seen.progress, before.progress):
            log.error(
                "the progress in Kafka is older than it was: Kafka has lost committed records",
                was=before.progress.delivered_slot,
                found=seen.progress.delivered_slot,
            )
            raise RecoveryPending("the progress has fallen: the next start keeps no files")
        reassigned = seen.progress.assignment_epoch != before.progress.assignment_epoch
        if reassigned or seen.progress.sealed_for:
            raise RecoveryPending("partitions change their shards, or are given up: starting again")
        if seen.progress.epochs != before.progress.epochs:
            raise RecoveryPending("the slot configuration has changed: starting again")
        if seen.progress.incarnation != before.progress.incarnation:
            log.info("the shard is served by another start", owner=seen.progress.owner)
        with self._directory.engine_lock.held(LOCK_DEADLINE_S):
            state.write_mirror(Mirror.of(seen.progress, 0))
            state.restart_close(close_at(seen.progress))
        self._seen, self._last_sign_ms = seen, self._clock.boottime_ms()

    def _link(self) -> None:
        """Links the slots that the ring reaches, as the loop does."""
        state = self._directory.state
        if state.needs_recovery:
            return
        close = state.close()
        assert close is not None, "it follows from the progress"
        try:
            self._linker.step(close.lower)
        except CorruptFile as error:
            raise self._directory.mark_damaged(error) from error

    def _verdict(self) -> Verdict | None:
        if self._is_promoted():
            return Verdict.PROMOTED
        now_ms = self._clock.boottime_ms()  # first: the owner may write during the question
        self._question_coordinator(now_ms)
        is_silent = now_ms - self._last_sign_ms > self._config.take_over_after_ms
        return Verdict.SILENT if is_silent else None

    def _question_coordinator(self, now_ms: int) -> None:
        """Asks whether the owner is able to write, once it has been silent for a while.

        A lost broker may have been the coordinator of the owner's transactions: until there is a
        new one, for some 10 s, the owner cannot write, and does not count as silent.
        """
        newest_ms = max(self._last_sign_ms, self._last_question_ms)
        if now_ms - newest_ms <= min(_ASK_MS, self._config.take_over_after_ms):
            return
        try:
            self._reader.require_coordinator()
        except KafkaUnavailable as error:
            self._last_sign_ms = self._clock.boottime_ms()
            self._warn("no transaction coordinator answers", reason=str(error))
        self._last_question_ms = self._clock.boottime_ms()

    def _beat(self) -> None:
        """Writes a heartbeat, and the age of the oldest closing that ingest has not reached."""
        state, now_ms = self._directory.state, self._clock.boottime_ms()
        close, awaited = state.close(), self._awaited
        newest = awaited[-1][1] if awaited else None
        if close is not None and close != newest and len(awaited) < _AWAITED_MAX:
            awaited.append((now_ms, close))
        if not state.needs_recovery:
            marks = state.commit().marks
            while awaited and not awaited[0][1].missing(marks):
                awaited.popleft()
        behind_ms = now_ms - awaited[0][0] if awaited else 0
        state.live.beat(Role.DEQUEUE, os.getpid(), self._clock.now_ms(), behind_ms)

    def _collect(self, progress: Progress) -> None:
        if not self._directory.state.needs_recovery and self._collecting.is_over():
            replied_below = {p: part.replied_below for p, part in progress.partitions.items()}
            commit = self._directory.state.commit()
            self._cancels.skip(commit, replied_below)
            garbage_collection.collect(self._directory, progress, self._cancels.first_segment)

    def _warn(self, text: str, **details: str) -> None:
        if self._warning.is_over():
            log.warning(text, **details)
