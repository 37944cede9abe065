"""Reads and writes the files for a batch's cancels; the rules are in cancel_outcomes.py.

load_candidates   before engine.lock: reads the logs, which may take long
resolve           under engine.lock, because outcomes depend on closed slots: appends outcomes
                  to the cancel log, and cancelled records to cancelled/<hour>. The engine marks
                  these once the commit page is written; a kill before it leaves uncommitted
                  bytes only
"""

from __future__ import annotations

import numpy as np

from duewheel.checkpoints.cancel_bounds import EVERY_OFFSET, CancelBounds
from duewheel.checkpoints.commit_and_close_pages import Close, Commit
from duewheel.schemas.arrays import Int64
from duewheel.schemas.batches import TimerBatch
from duewheel.schemas.header_names import CHASE_FLAG_FOUND
from duewheel.wheel.append.cancel_lookup import (
    CancelLimits,
    CancelLookup,
    Candidates,
    read_again,
)
from duewheel.wheel.append.cancel_outcomes import NO_CANCEL, Cancels, Timers, resolve
from duewheel.wheel.append.staged_batch import StagedBatch, StagedRows
from duewheel.wheel.slots import hour_of
from duewheel.wheel.storage.data_directory import DataDirectory


class CancelFiles:
    """Resolves the cancels of one data directory. Not thread-safe: the engine owns it."""

    def __init__(self, directory: DataDirectory, limits: CancelLimits) -> None:
        self._directory = directory
        self._limits = limits
        self._lookup = CancelLookup(directory, limits)

    def load_candidates(
        self, cancels: TimerBatch, batch: TimerBatch, commit: Commit
    ) -> Candidates | None:
        """Loads the timers that the cancels may match; None without cancels. `batch` has those of
        the cancels' batch that are not done.

        Raises:
            CorruptFile: the log is damaged, or a message of a candidate.
        """
        return self._lookup.find(cancels, batch, commit) if len(cancels) else None

    def resolve(
        self,
        cancels: TimerBatch,
        batch: TimerBatch,
        candidates: Candidates | None,
        staged: StagedBatch,
        rows: StagedRows,
    ) -> dict[int, Int64]:
        """Appends outcomes and cancelled records. Called under engine.lock. Returns by hour the
        positions of the log records to mark as cancelled.
        """
        if candidates is None:
            return {}
        close = self._directory.state.close()
        assert close is not None, "checked when the engine was made"
        bounds = CancelBounds.read(self._directory.path)
        in_log, in_batch = candidates.in_log, candidates.batch_rows
        slots = np.append(in_log.slot, rows.slot[in_batch])
        # Without the file rows in closed slots are no evidence: after the loss of a log, a timer
        # with a copy in flight would seem delivered.
        since = close.floor if bounds is None else bounds.since
        kept = np.flatnonzero(slots > since)
        timers = Timers(
            np.append(candidates.log_group, candidates.batch_group)[kept],
            np.append(in_log.first_offset, batch.origin_offset[in_batch])[kept],
            np.append(in_log.offset, batch.offset[in_batch])[kept],
            slots[kept],
            np.append(in_log.cancelled, np.zeros(len(in_batch), np.bool_))[kept],
        )
        resolved = resolve(
            self._with_bounds(cancels, candidates, close, bounds),
            timers,
            close.floor,
            self._limits.pairs_max,
            self._limits.pairs_at_once,
        )
        staged.write_cancels(cancels, resolved.outcome, close.floor)
        stopped = np.flatnonzero(resolved.cancelled_by != NO_CANCEL)
        positions = np.append(in_log.position, rows.position[in_batch])[kept][stopped]
        hours = hour_of(timers.slot[stopped], self._directory.config.precision_ms)
        offsets = cancels.offset[resolved.cancelled_by[stopped]]
        cancelled = {}
        for hour in np.unique(hours).tolist():
            of_hour = hours == hour
            staged.write_cancelled(hour, offsets[of_hour], positions[of_hour])
            cancelled[hour] = positions[of_hour]
        return cancelled

    def _with_bounds(
        self, cancels: TimerBatch, candidates: Candidates, close: Close, bounds: CancelBounds | None
    ) -> Cancels:
        """Makes the cancels, each with its bound, and whether an outcome can be proved."""
        partitions, state = cancels.partitions, self._directory.state
        again = read_again(cancels, close, standby=state.standby)
        bound = np.full(len(cancels), close.floor)
        if again.any():
            mirror = state.mirror()
            assert mirror is not None, "dequeue mirrors the progress before it decides"
            parts = mirror.progress.partitions
            r = [parts[p].delivered_slot if p in parts else close.lower for p in partitions]
            bound[again] = np.array(r, np.int64)[cancels.partition][again]
        blind_offsets = [
            EVERY_OFFSET if bounds is None else bounds.blind.get(p, 0) for p in partitions
        ]
        blind = np.array(blind_offsets, np.int64)[cancels.partition]
        return Cancels(
            candidates.cancel_group,
            cancels.offset,
            cancels.origin_offset,
            cancels.named_offset,
            cancels.chase_slot,
            (cancels.chase_flags & CHASE_FLAG_FOUND) != 0,
            bound,
            again,
            again | (cancels.offset < blind) | candidates.must_chase,
            np.where(candidates.unseen, EVERY_OFFSET, blind),
        )

    def close(self) -> None:
        self._lookup.close()
