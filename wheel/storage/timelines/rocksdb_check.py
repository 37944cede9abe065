"""Compares the runs in RocksDB with the logs: for full_check.py."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from duewheel.schemas.arrays import Int64
from duewheel.wheel.slots import WheelConfig, first_slot_of_hour, last_slot_of_hour
from duewheel.wheel.storage.findings import Finding, findings_at
from duewheel.wheel.storage.runs import Runs
from duewheel.wheel.storage.timelines.timeline import HourVerifier, Timeline, Verifier

_RECORDS_MAX = np.iinfo(np.int64).max


class RocksdbVerifier(Verifier):
    """The runs of a database that does not change meanwhile."""

    def __init__(
        self, timeline: Timeline, name: str, lower: int, linked: int, config: WheelConfig
    ) -> None:
        """
        Args:
            timeline: the database.
            name: of its folder, below the data directory.
            lower, linked: as `Timeline.verifier`.
            config: the geometry.
        """
        self.timeline = timeline
        self.name = name
        self.lower = lower
        self.linked = linked
        self.config = config

    def newest_batch(self, near: int) -> int:
        """As Verifier."""
        return self.timeline.newest_batch(near)

    def misplaced(self) -> Iterator[Finding]:
        """As Verifier: every key has its place."""
        yield from ()

    def of_hour(self, hour: int) -> _Hour:
        """As Verifier."""
        return _Hour(self, hour)


class _Hour(HourVerifier):
    """The runs of the part of an hour's log that was read."""

    def __init__(self, of: RocksdbVerifier, hour: int) -> None:
        self._of = of
        self._hour = hour
        self._rows: list[Int64] = [np.empty((0, 3), np.int64)]  # slot, position, records

    def follow(self, runs: Runs, log_name: str) -> Iterator[Finding]:
        """As HourVerifier. Runs of the wheel's time have a chain, which leads back."""
        runs = runs.where((runs.slot > self._of.lower) & (runs.slot <= self._of.linked))
        self._rows.append(np.stack([runs.slot, runs.first_pos, runs.count], 1))
        bad = runs.prev_pos >= runs.first_pos
        yield from findings_at(log_name, runs.first_pos, bad, "chain", "the run leads ahead")

    def end(self) -> Iterator[Finding]:
        """As HourVerifier."""
        precision_ms = self._of.config.precision_ms
        first = max(first_slot_of_hour(self._hour, precision_ms), self._of.lower + 1)
        last = last_slot_of_hour(self._hour, precision_ms)
        found, _ = self._of.timeline.runs(first - 1, max(last, first - 1), _RECORDS_MAX)
        stored = np.stack([found.slot, found.first_pos, found.count], 1)
        logged = np.concatenate(self._rows)
        # Positions rise within an hour, so each run has its own: one order for both.
        logged, stored = logged[logged[:, 1].argsort()], stored[stored[:, 1].argsort()]
        lost = ~np.isin(logged[:, 1], stored[:, 1])
        unknown = ~np.isin(stored[:, 1], logged[:, 1])
        wrong = np.any(logged[~lost] != stored[~unknown], axis=1)
        for code, rows, bad, detail in (
            ("run_lost", logged, lost, "a run of the log is missing"),
            ("run_unknown", stored, unknown, "no such run in the log"),
            ("run_wrong", stored[~unknown], wrong, "another slot or length than in the log"),
        ):
            yield from findings_at(self._of.name, rows[:, 1], bad, code, detail)
