"""Compares the runs in RocksDB with the logs: for full_check.py.

For each slot of an hour it keeps the number of runs, and a sum over their positions and lengths,
mixed so that other runs have another sum: memory does not grow with the runs.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from duewheel.schemas.arrays import Int64
from duewheel.wheel.slots import WheelConfig, first_slot_of_hour, last_slot_of_hour
from duewheel.wheel.storage.findings import Finding, findings_at
from duewheel.wheel.storage.runs import Runs
from duewheel.wheel.storage.timelines.timeline import HourVerifier, Timeline, Verifier

_RECORDS_AT_ONCE = 1 << 18


class RocksdbVerifier(Verifier):
    """The runs of a database that does not change meanwhile. `name` is that of its folder, below
    the data directory.
    """

    def __init__(
        self, timeline: Timeline, name: str, lower: int, linked: int, config: WheelConfig
    ) -> None:
        self.timeline = timeline
        self.name = name
        self.lower = lower
        self.linked = linked
        self.config = config

    def newest_batch(self, near: int) -> int:
        return self.timeline.newest_batch(near)

    def misplaced(self) -> Iterator[Finding]:
        """As Verifier: every key has its place."""
        yield from ()

    def of_hour(self, hour: int) -> _Hour:
        return _Hour(self, hour)


class _Hour(HourVerifier):
    """The runs of the part of an hour's log that was read."""

    def __init__(self, of: RocksdbVerifier, hour: int) -> None:
        precision_ms = of.config.precision_ms
        self._of = of
        self._first = first_slot_of_hour(hour, precision_ms)
        self._last = last_slot_of_hour(hour, precision_ms)
        self._logged = _Sums(self._first, self._last)

    def follow(self, runs: Runs, log_name: str) -> Iterator[Finding]:
        """As HourVerifier. Runs that the wheel wrote have a chain, which leads back."""
        runs = runs.where((runs.slot > self._of.lower) & (runs.slot <= self._of.linked))
        self._logged.add(runs.slot, runs.first_pos, runs.count)
        bad = runs.prev_pos >= runs.first_pos
        yield from findings_at(log_name, runs.first_pos, bad, "chain", "the run leads ahead")

    def end(self) -> Iterator[Finding]:
        """As HourVerifier; the position of a finding is its slot."""
        logged, stored = self._logged, _Sums(self._first, self._last)
        after = max(self._first - 1, self._of.lower)
        while after < self._last:
            found, after = self._of.timeline.runs(after, self._last, _RECORDS_AT_ONCE)
            stored.add(found.slot, found.first_pos, found.count)
        slots = np.arange(self._first, self._last + 1)
        same = logged.runs == stored.runs
        for code, bad, detail in (
            ("run_lost", logged.runs > stored.runs, "the log has more runs of this slot"),
            ("run_unknown", logged.runs < stored.runs, "the log has fewer runs of this slot"),
            ("run_wrong", same & (logged.mixed != stored.mixed), "the log has other runs"),
        ):
            yield from findings_at(self._of.name, slots, bad, code, detail)


class _Sums:
    """For each slot of an hour the number of runs, and a sum that other runs would not have."""

    def __init__(self, first: int, last: int) -> None:
        self._first = first
        self.runs: Int64 = np.zeros(last + 1 - first, np.int64)
        self.mixed: npt.NDArray[np.uint64] = np.zeros(last + 1 - first, np.uint64)

    def add(self, slot: Int64, first_pos: Int64, count: Int64) -> None:
        np.add.at(self.runs, slot - self._first, 1)
        np.add.at(self.mixed, slot - self._first, _mixed(first_pos, count))


def _mixed(first_pos: Int64, count: Int64) -> npt.NDArray[np.uint64]:
    """Mixes position and length of each run, by the finalizer of SplitMix64."""
    x = first_pos.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + count.astype(np.uint64)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
