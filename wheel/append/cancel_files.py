"""Reads and writes the files for a batch's cancels; the rules are in cancel_matches.py.

load_candidates   before engine.lock: reads the logs, which may take long
without_dropped   likewise, in a batch with timers that `keep`: takes out those that find another
                  one pending (keeps.py)
resolve           under engine.lock, because outcomes depend on closed slots: appends outcomes
                  to the cancel log, and cancelled records to cancelled/<hour>. The engine marks
                  these once the commit page is written; a kill before it leaves uncommitted
                  bytes only
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from duewheel.checkpoints.cancel_bounds import EVERY_OFFSET, CancelBounds
from duewheel.checkpoints.commit_and_close_pages import Close, Commit
from duewheel.schemas.arrays import Bool, Int64
from duewheel.schemas.batches import TimerBatch
from duewheel.schemas.header_names import CHASE_FLAG_FOUND
from duewheel.wheel.append import keeps
from duewheel.wheel.append.cancel_lookup import (
    CancelLimits,
    CancelLookup,
    Candidates,
    read_again,
)
from duewheel.wheel.append.cancel_matches import NO_CANCEL, Cancels, Resolved, Timers, resolve
from duewheel.wheel.append.placement import PlacedRows
from duewheel.wheel.append.staged_batch import StagedBatch, StagedRows
from duewheel.wheel.slots import hour_of
from duewheel.wheel.storage.cancel_log import KEPT, TAKEN, UNKNOWN
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
        """Loads the timers that the cancels may match, and those that may be pending when a timer
        with `keep` comes; None without both. `batch` has those of the same batch that are not done.

        Raises:
            CorruptFile: the log is damaged, or a message of a candidate.
        """
        return self._lookup.find(cancels, batch, commit) if len(cancels) else None

    def without_dropped(
        self, requests: TimerBatch, rows: PlacedRows, candidates: Candidates, close: Close
    ) -> tuple[PlacedRows, Candidates]:
        """Takes the timers out that `keep` and find another one pending, and returns the others;
        the candidates then have the outcomes of those in `requests`.
        """
        batch, bounds = rows.batch, CancelBounds.read(self._directory.path)
        made = self._with_bounds(requests, candidates, close, bounds)
        cancels = made.take(np.flatnonzero(~requests.keeps))
        asking = made.take(np.flatnonzero(requests.keeps))
        timers, evident = _timers(candidates, batch, rows.slot, close, bounds)
        c = np.array([close.marks.get(p, 0) for p in requests.partitions], np.int64)
        until = keeps.blocks_until(
            cancels,
            asking,
            timers,
            self._resolve(cancels, timers, close).cancelled_by,
            (close.floor, c[requests.partition[requests.keeps]]),
        )
        logged = len(candidates.in_log)
        row = np.append(np.full(logged, -1), candidates.batch_rows)[evident]
        keep = np.append(np.zeros(logged, np.bool_), batch.keeps[candidates.batch_rows])[evident]
        is_dropped = np.zeros(len(batch), np.bool_)
        is_dropped[row[keeps.dropped(timers.group, timers.offset, until, keep)]] = True
        # The decision on a row that is read again, and is done, was lost with the files.
        outcome = np.full(len(requests), UNKNOWN, np.int32)
        decided = np.flatnonzero(requests.keeps & ~_is_missing(requests, batch))
        outcome[decided] = np.where(is_dropped[batch.keeps], KEPT, TAKEN)
        left = ~is_dropped[candidates.batch_rows]
        number = np.cumsum(~is_dropped) - 1
        candidates = replace(
            candidates,
            batch_rows=number[candidates.batch_rows[left]],
            batch_group=candidates.batch_group[left],
            outcome=outcome,
        )
        return rows.take(np.flatnonzero(~is_dropped)), candidates

    def _resolve(self, cancels: Cancels, timers: Timers, close: Close) -> Resolved:
        limits = self._limits
        return resolve(cancels, timers, close.floor, limits.pairs_max, limits.pairs_at_once)

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
        timers, evident = _timers(candidates, batch, rows.slot, close, bounds)
        made = self._with_bounds(cancels, candidates, close, bounds)
        outcome = candidates.outcome
        if outcome is not None:
            made = made.take(np.flatnonzero(~cancels.keeps))
        resolved = self._resolve(made, timers, close)
        if outcome is None:
            outcome = resolved.outcome
        else:
            outcome[~cancels.keeps] = resolved.outcome
        staged.write_cancels(cancels, outcome, close.floor)
        stopped = np.flatnonzero(resolved.cancelled_by != NO_CANCEL)
        in_log, in_batch = candidates.in_log, candidates.batch_rows
        positions = np.append(in_log.position, rows.position[in_batch])[evident][stopped]
        hours = hour_of(timers.slot[stopped], self._directory.config.precision_ms)
        offsets = made.offset[resolved.cancelled_by[stopped]]
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
            again | (cancels.offset < blind) | candidates.must_chase,
            np.where(candidates.unseen, EVERY_OFFSET, blind),
        )

    def close(self) -> None:
        self._lookup.close()


def _timers(
    candidates: Candidates,
    batch: TimerBatch,
    slot: Int64,
    close: Close,
    bounds: CancelBounds | None,
) -> tuple[Timers, Int64]:
    """Returns the candidates that are evidence, and their indexes: those of the log, then those of
    the batch, whose rows have these slots.
    """
    in_log, in_batch = candidates.in_log, candidates.batch_rows
    slots = np.append(in_log.slot, slot[in_batch])
    # Without the file rows in closed slots are no evidence: after the loss of a log, a timer
    # with a copy in flight would seem delivered.
    since = close.floor if bounds is None else bounds.since
    evident = np.flatnonzero(slots > since)
    timers = Timers(
        np.append(in_log.group, candidates.batch_group)[evident],
        np.append(in_log.first_offset, batch.origin_offset[in_batch])[evident],
        np.append(in_log.offset, batch.offset[in_batch])[evident],
        slots[evident],
        np.append(in_log.cancelled, np.zeros(len(in_batch), np.bool_))[evident],
    )
    return timers, evident


def _is_missing(requests: TimerBatch, batch: TimerBatch) -> Bool:
    """Returns which of the requests, with the same `partitions`, are no rows of a batch."""
    rank = np.unique(np.append(requests.offset, batch.offset), return_inverse=True)[1]
    key = rank * len(batch.partitions) + np.append(requests.partition, batch.partition)
    return ~np.isin(key[: len(requests)], key[len(requests) :])
