"""Runs: neighbouring log records of one slot. A timeline has runs, never single records."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from duewheel.schemas.arrays import Int64, ranges
from duewheel.wheel.storage.byte_layouts import RECORD_BYTES

OnProgress = Callable[[int, int], None]  # bytes done, bytes in all


@dataclass(frozen=True, slots=True)
class Runs:
    """Runs: neighbouring log records of one slot and one batch. A batch has one run per slot.

    Attributes:
        slot: the slot of the run.
        first_pos, last_pos: log positions of the run's ends, in the slot's hour.
        prev_pos: as `Timeline.predecessors`.
        count: records in the run.
    """

    slot: Int64
    first_pos: Int64
    last_pos: Int64
    prev_pos: Int64
    count: Int64

    def __len__(self) -> int:
        return len(self.slot)

    def where(self, mask: npt.NDArray[np.bool_]) -> Runs:
        """Returns the runs that `mask` selects."""
        return Runs(
            self.slot[mask],
            self.first_pos[mask],
            self.last_pos[mask],
            self.prev_pos[mask],
            self.count[mask],
        )

    @staticmethod
    def joined(parts: Iterable[Runs]) -> Runs:
        """Returns the runs of all parts, in their order; none of no part."""
        columns = [(p.slot, p.first_pos, p.last_pos, p.prev_pos, p.count) for p in parts]
        none = [(np.empty(0, np.int64),) * 5]
        return Runs(*(np.concatenate(each) for each in zip(*(columns or none), strict=True)))


@dataclass(frozen=True, slots=True)
class SlotRuns:
    """Runs of several slots of one hour, in delivery order: by slot, then oldest first.

    Attributes:
        slot: of each run.
        first_pos: log position of the run's first record.
        count: number of its records.
    """

    slot: Int64
    first_pos: Int64
    count: Int64

    def __len__(self) -> int:
        return len(self.slot)

    def positions(self) -> Int64:
        """Computes the log position of each record."""
        in_run = ranges(0, self.count)
        positions: Int64 = np.repeat(self.first_pos, self.count) + in_run * RECORD_BYTES
        return positions
