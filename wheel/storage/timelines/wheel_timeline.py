"""The timeline of RIP-43: the ring of the TimerWheel, and the chains that start there, in the log.

timer_wheel.py    the ring: one entry per slot, with first, last and number of its records
timer_log.py      the chains: each run leads back to its slot's last one
far_slots.py      the slots beyond the ring, until the ring reaches them
wheel_check.py    the ring and the chains, compared with the log
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from duewheel.checkpoints.commit_and_close_pages import Commit
from duewheel.checkpoints.fs import FileSystem, NewFile
from duewheel.errors import CorruptFile, RecoveryPending
from duewheel.schemas.arrays import Int64
from duewheel.wheel.slots import WheelConfig, hour_of
from duewheel.wheel.storage.byte_layouts import ENTRY_BYTES
from duewheel.wheel.storage.runs import OnProgress, Runs, SlotRuns
from duewheel.wheel.storage.timelines.chain_ends import ChainEnds
from duewheel.wheel.storage.timelines.timeline import DirectoryFiles, Timeline
from duewheel.wheel.storage.timelines.timer_wheel import FILE_NAME, TimerWheel
from duewheel.wheel.storage.timelines.wheel_check import WheelVerifier


class WheelTimeline(Timeline):
    """The ring and the chains of one data directory; see the module's head. A simulation's subclass
    has another class for the ring, to count its stores.
    """

    wheel_class = TimerWheel

    def __init__(self, directory: DirectoryFiles) -> None:
        super().__init__(directory)
        ring = directory.config.ring
        self.wheel = self.wheel_class(directory.path / FILE_NAME, ring, directory.fs)
        self._chain_ends = ChainEnds(directory.log, directory.config.precision_ms)

    # ---- its files -------------------------------------------------------------------------

    @classmethod
    def exists(cls, path: Path, config: WheelConfig, fs: FileSystem) -> bool:
        return TimerWheel.exists(path / FILE_NAME, config.ring)

    @classmethod
    def create(
        cls, path: Path, config: WheelConfig, progress: OnProgress, fs: FileSystem
    ) -> NewFile:
        """As Timeline; gigabytes take minutes."""
        return TimerWheel.create(path / FILE_NAME, config.ring, progress, fs)

    def close(self) -> None:
        """As Timeline: the map is closed with its last view."""

    # ---- writing ---------------------------------------------------------------------------

    def reach(self, lower: int) -> int:
        """As Timeline: the ring's end, in steps."""
        return self._directory.config.reach(lower)

    def predecessors(self, slots: Int64, before: Int64, commit: Commit) -> Int64:
        """As Timeline: by the ring, as far as it reaches; beyond it, by the logs."""
        linked = int(np.searchsorted(slots, self._directory.state.linked, "right"))
        self._require_entries(slots[:linked])
        return np.concatenate(
            [
                self.wheel.last_positions(slots[:linked], before[:linked]),
                self._chain_ends.last_positions(slots[linked:], commit),
            ]
        )

    def append(self, runs: Runs, batch: int) -> None:
        self.wheel.apply(runs, batch)

    def link(self, runs: Runs, batch: int) -> None:
        self.wheel.link(runs, batch)

    def clear(self, batch: int) -> None:
        """As Timeline; an empty ring names no batch."""
        self.wheel.clear()

    def forget_below(self, slot: int) -> None:
        """As Timeline: a later lap overwrites the entries."""

    # ---- reading ---------------------------------------------------------------------------

    def refresh(self, batch: int = 0) -> None:
        """As Timeline: all processes map the same pages, as long as they map the same file. A start
        with another `timer.timeline` removes it under a running process, which would find all slots
        empty.
        """
        if not self.wheel.is_in_place:
            raise RecoveryPending(
                f"{self.wheel.path} was removed: is timer.timeline the same in every process?"
            )

    def require_sound(self, after: int, until: int) -> None:
        self._require_entries(np.arange(after + 1, until + 1))

    def runs(self, after: int, until: int, records_max: int) -> tuple[SlotRuns, int]:
        """As Timeline: walks the chains of the entries."""
        entries = self.wheel.range(after, until)
        if len(entries):
            within = np.cumsum(entries["num"].astype(np.int64)) <= records_max
            count = max(1, int(within.sum()))
            if count < len(entries):
                until = int(entries["time"][count]) - 1
            entries = entries[:count]
        hour = hour_of(after + 1, self._directory.config.precision_ms)
        return self._directory.log.walk(hour, entries), until

    def count(self, after: int, until: int) -> int:
        return self.wheel.count(after, until)

    def is_empty(self, after: int, until: int) -> bool:
        """As Timeline; reads the entries of these slots alone."""
        return not len(self.wheel.range(after, until))

    def newest_batch(self, near: int) -> int:
        return self.wheel.newest_batch(near)

    def verifier(self, lower: int, linked: int, *, alone: bool = False) -> WheelVerifier:
        entries = self.wheel.view() if alone else self.wheel.snapshot()
        return WheelVerifier(entries, lower, linked, self._directory.config)

    def _require_entries(self, slots: Int64) -> None:
        """Refuses slots that seem empty in the ring because their entry is damaged. Only valid
        before their delivery: afterwards a later lap may have the entry.

        The entry of an empty slot was never used, or is still an earlier lap's. If damage to `time`
        makes a slot's own entry look like that, its last_pos leads to a committed record of the
        slot. An uncommitted record proves nothing: ingest may have been killed before the commit.

        Raises:
            CorruptFile: names the first such slot.
        """
        try:
            slots, last_pos = self.wheel.require_sound(slots)
        except CorruptFile:
            close = self._directory.state.close()
            open_slots = slots[slots > close.lower] if close else slots
            if len(open_slots) == len(slots):
                raise
            self._require_entries(open_slots)
            return
        if not len(slots):
            return
        precision_ms = self._directory.config.precision_ms
        committed = self._directory.state.commit().hours
        hours = hour_of(slots, precision_ms)
        for hour in committed.keys() & np.unique(hours).tolist():
            rows = np.flatnonzero(hours == hour)
            log_bytes = committed[hour].log_bytes
            slot_in_log = self._directory.log.slots_at(
                hour, log_bytes, last_pos[rows], precision_ms
            )
            lost = rows[slot_in_log == slots[rows]]
            if len(lost):
                place = int(slots[lost[0]]) % self._directory.config.ring
                detail = f"slot {slots[lost[0]]} has records and no entry"
                raise CorruptFile(self.wheel.path, place * ENTRY_BYTES, detail)
