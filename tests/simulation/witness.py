"""Reads the evidence for a reply from the files of its dequeue, at the moment of the reply."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.simulation.timers import TOPIC, Copy, Timer

from duewheel.checkpoints.cancel_bounds import CancelBounds
from duewheel.wheel.slots import WheelConfig
from duewheel.wheel.storage.data_directory import DataDirectory


@dataclass(frozen=True)
class Witness:
    """A data directory.

    Attributes:
        bounds: what its logs cannot prove.
        slots: where each record of the timer topic lies, by partition and offset: those of hours
            that are still on disk.
    """

    bounds: CancelBounds
    slots: dict[tuple[int, int], int]

    @classmethod
    def of(cls, path: Path, wheel: WheelConfig) -> Witness | None:
        """Read the directory at `path`; None if it says that it proves nothing."""
        bounds = CancelBounds.read(path)
        if bounds is None:
            return None
        directory = DataDirectory(path, wheel)
        try:
            commit, gone = directory.state.commit(), directory.state.live.gc_hour
            slots: dict[tuple[int, int], int] = {}
            for hour, lengths in commit.hours.items():
                if hour >= gone:
                    slots |= _slots(directory, hour, lengths.log_bytes)
            return cls(bounds, slots)
        finally:
            directory.close()

    def proves(self, copy: Copy, request: int) -> bool:
        """Whether it shows a record to a request at this offset."""
        partition = copy.timer.partition
        if request < self.bounds.blind.get((TOPIC, partition), 0):
            return False
        slot = self.slots.get((partition, copy.offset))
        return slot is not None and slot > self.bounds.since

    def shows_all_behind(self, timer: Timer) -> bool:
        """Whether it shows all timers of its partition that were written after this one."""
        return timer.origin >= self.bounds.blind.get((TOPIC, timer.partition), 0)


def _slots(directory: DataDirectory, hour: int, log_bytes: int) -> dict[tuple[int, int], int]:
    found: dict[tuple[int, int], int] = {}
    for _, slot, records in directory.blocks(hour, 0, log_bytes):
        prefix = directory.messages.read(hour, records).prefix
        columns = prefix["source_partition"], prefix["source_offset"], slot
        for partition, offset, at in zip(*(c.tolist() for c in columns), strict=True):
            found[partition, offset] = at
    return found
