"""Reads the evidence for a reply from the files of its dequeue, at the moment of the reply."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
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
        records: how many there are, by partition and id.
        settled_max: as in CancelLimits.
    """

    bounds: CancelBounds
    slots: dict[tuple[int, int], int]
    records: Counter[tuple[int, bytes]]
    settled_max: int

    @classmethod
    def of(cls, path: Path, wheel: WheelConfig, settled_max: int) -> Witness | None:
        """Read the directory at `path`; None if it says that it proves nothing."""
        bounds = CancelBounds.read(path)
        if bounds is None:
            return None
        directory = DataDirectory(path, wheel)
        try:
            commit, gone = directory.state.commit(), directory.state.live.gc_hour
            slots: dict[tuple[int, int], int] = {}
            records = Counter[tuple[int, bytes]]()
            for hour, lengths in commit.hours.items():
                if hour >= gone:
                    for place, slot, timer_id in _records(directory, hour, lengths.log_bytes):
                        slots[place] = slot
                        records[place[0], timer_id] += 1
            return cls(bounds, slots, records, settled_max)
        finally:
            directory.close()

    def proves(self, copy: Copy, request: int) -> bool:
        """Whether it shows a record to a request at this offset."""
        partition = copy.timer.partition
        if request < self.bounds.blind.get((TOPIC, partition), 0):
            return False
        slot = self.slots.get((partition, copy.offset))
        return slot is not None and slot > self.bounds.since

    def shows_all_of(self, timer: Timer) -> bool:
        """Whether a cancel of one timer, or a chase, looks at all timers of the id."""
        return self.records[timer.partition, timer.timer_id] <= self.settled_max

    def shows_all_behind(self, timer: Timer) -> bool:
        """Whether it shows all timers of its partition that were written after this one."""
        return timer.origin >= self.bounds.blind.get((TOPIC, timer.partition), 0)


def _records(
    directory: DataDirectory, hour: int, log_bytes: int
) -> Iterator[tuple[tuple[int, int], int, bytes]]:
    """Partition and offset, slot and id of each record of an hour."""
    for _, slot, records in directory.blocks(hour, 0, log_bytes):
        prefix, given = directory.messages.read_ids(hour, records)
        columns = prefix["source_partition"], prefix["source_offset"], prefix["origin_offset"], slot
        rows = zip(*(c.tolist() for c in columns), given.to_pylist(), strict=True)
        for partition, offset, origin, at, timer_id in rows:
            yield (
                (partition, offset),
                at,
                timer_id
                or b"%s-%d@%d"
                % (
                    TOPIC.encode(),
                    partition,
                    origin,
                ),
            )
