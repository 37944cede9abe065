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
    """Runs: neighbouring log records of one slot and one batch. A batch has one run per slot."""

    slot: Int64
    first_pos: Int64  # log position of the first record, in the slot's hour
    last_pos: Int64  # of the last record
    prev_pos: Int64  # as `Timeline.predecessors`
    count: Int64  # number of records

    def __len__(self) -> int:
        return len(self.slot)

    def where(self, mask: npt.NDArray[np.bool_]) -> Runs:
        return Runs(
            self.slot[mask],
            self.first_pos[mask],
            self.last_pos[mask],
            self.prev_pos[mask],
            self.count[mask],
        )

    @staticmethod
    def joined(parts: Iterable[Runs]) -> Runs:
        """Returns the runs of all parts, in their order."""
        columns = [(p.slot, p.first_pos, p.last_pos, p.prev_pos, p.count) for p in parts]
        none = [(np.empty(0, np.int64),) * 5]
        return Runs(*(np.concatenate(each) for each in zip(*(columns or none), strict=True)))


@dataclass(frozen=True, slots=True)
class SlotRuns:
    """Runs of several slots of one hour, in delivery order: by slot, then oldest first. Fields as
    in Runs.
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
