"""Counts and the histogram of pending timers, kept between calls: for `duewheel serve`.

The first count reads the whole timer log; each later one reads only later records
(pending_counts.py). A recovery of the files, or a new data directory, begins the count again.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

import numpy as np

from duewheel.api.limits import BUCKETS_MAX
from duewheel.api.requests import HistogramQuery
from duewheel.api.timers import HistogramRange, PendingHistogram, StatsOfShard
from duewheel.clock import Clock
from duewheel.config.settings import Settings
from duewheel.config.values import as_millis
from duewheel.ops.files import files_identity, open_files
from duewheel.ops.timers.pending import shard_fields
from duewheel.ops.timers.pending_stats import stats_of
from duewheel.runtime.pending_breakdown import pending_breakdown
from duewheel.schemas.arrays import Int64
from duewheel.wheel.inspect.pending_counts import PendingTimers
from duewheel.wheel.inspect.rolled_due_times import rolled_due_times
from duewheel.wheel.slots import LATEST_SLOT, closable_slot
from duewheel.wheel.storage.data_directory import DataDirectory

SAMPLE_MAX = 20_000  # due times of rolled timers: a read each
SAMPLE_S = 10.0  # how long a sample serves
_CLOSE_S = 1.0
_NO_SLOT = -1
_SECOND_MS, _DAY_MS = 1_000, 86_400_000


@dataclass(frozen=True, slots=True)
class TimeRange:
    """A range of due times in buckets of the same width."""

    name: str
    from_ms: int  # the begin, epoch ms
    width_ms: int
    buckets: int

    @property
    def bounds_ms(self) -> Int64:
        """The bounds of the buckets."""
        return self.from_ms + self.width_ms * np.arange(self.buckets + 1, dtype=np.int64)


def ranges_of(settings: Settings, wanted: HistogramQuery, now_ms: int) -> list[TimeRange]:
    """The range, whose last bucket may end after it; without one the next minute, hour and day, and
    all up to the longest delay.
    """
    from_ms, to_ms, buckets = wanted.since_ms, wanted.until_ms, wanted.buckets
    if from_ms is not None and to_ms is not None:
        return [TimeRange("range", from_ms, -(-(to_ms - from_ms) // buckets), buckets)]
    horizon_ms = as_millis(settings.timer.max_delay)
    day_ms = max(_DAY_MS, -(-horizon_ms // BUCKETS_MAX))
    return [
        TimeRange("minute", now_ms, _SECOND_MS, 60),
        TimeRange("hour", now_ms, 60 * _SECOND_MS, 60),
        TimeRange("day", now_ms, 3_600 * _SECOND_MS, 24),
        TimeRange("horizon", now_ms, day_ms, -(-horizon_ms // day_ms)),
    ]


@dataclass(frozen=True, slots=True)
class _Sample:
    """Due times of rolled timers, and how many timers each stands for."""

    due_ms: Int64
    weight: float
    read_s: float


class PendingView:
    """See the module's head. Thread-safe."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        """Opens nothing yet."""
        self._settings, self._clock = settings, clock
        self._lock = threading.Lock()
        self._directory: DataDirectory | None = None
        self._timers: PendingTimers | None = None
        self._opened: tuple[str, int, int] | None = None  # of the open files
        self._sample: _Sample | None = None

    def stats(self) -> StatsOfShard:
        """Counts as `duewheel stats`.

        Raises:
            RecoveryPending: files may be cut at any moment.
            ConfigError, CorruptFile: as `open_files`.
        """
        with self._lock:
            directory, timers = self._current()
            of_shard = shard_fields(self._settings, directory)
            found = pending_breakdown(directory, timers, self._clock.now_ms())
        return stats_of(of_shard, found)

    def histogram(self, wanted: HistogramQuery) -> PendingHistogram:
        """Counts pending timers by due time.

        A timer that rolls counts where it is due, not where it leaves the wheel to roll. Beyond
        SAMPLE_MAX of them their due times are estimated from a sample.

        Raises:
            RecoveryPending, ConfigError, CorruptFile: as `stats`.
        """
        now_ms, precision_ms = self._clock.now_ms(), self._settings.timer.precision_ms
        ranges = ranges_of(self._settings, wanted, now_ms)
        with self._lock:
            directory, timers = self._current()
            of_shard = shard_fields(self._settings, directory)
            bounds = [_NO_SLOT, closable_slot(now_ms, precision_ms), LATEST_SLOT]
            counts, rolls = timers.between(bounds)
            sample = self._sampled(directory, int(rolls.sum()))
            shown = [_shown(timers, each, precision_ms, sample) for each in ranges]
        return PendingHistogram(
            **of_shard,
            now_ms=now_ms,
            precision_ms=precision_ms,
            pending=int(counts.sum()),
            overdue=int(counts[0]),
            rolls=int(rolls.sum()),
            estimated=sample.weight > 1,
            ranges=shown,
        )

    def close(self) -> None:
        """Closes the files. A count that lasts, as on a disk that hangs, keeps them until the
        process ends.
        """
        if self._lock.acquire(timeout=_CLOSE_S):
            try:
                self._close()
            finally:
                self._lock.release()

    def _current(self) -> tuple[DataDirectory, PendingTimers]:
        """Opens the files again if they were replaced or recovered."""
        identity = files_identity(self._settings)
        if self._directory is None or self._timers is None or identity != self._opened:
            self._close()
            self._directory = open_files(self._settings)
            self._timers, self._opened = PendingTimers(self._directory), identity
        return self._directory, self._timers

    def _close(self) -> None:
        if self._directory is not None:
            self._directory.close()
        self._directory, self._timers, self._opened, self._sample = None, None, None, None

    def _sampled(self, directory: DataDirectory, rolls: int) -> _Sample:
        now_s = time.monotonic()
        if self._sample is None or now_s - self._sample.read_s > SAMPLE_S:
            every = max(1, -(-rolls // SAMPLE_MAX))
            due_ms = rolled_due_times(directory, every)
            weight = 1.0 if every == 1 else rolls / max(len(due_ms), 1)
            self._sample = _Sample(due_ms, weight, now_s)
        return self._sample


def _shown(
    timers: PendingTimers, wanted: TimeRange, precision_ms: int, sample: _Sample
) -> HistogramRange:
    bounds_ms = wanted.bounds_ms
    counts, rolls = timers.between(closable_slot(bounds_ms, precision_ms).tolist())
    rolled = np.histogram(sample.due_ms, bounds_ms)[0] * sample.weight
    return HistogramRange(
        name=wanted.name,
        from_ms=wanted.from_ms,
        width_ms=wanted.width_ms,
        counts=(counts - rolls + np.rint(rolled).astype(np.int64)).tolist(),
    )
