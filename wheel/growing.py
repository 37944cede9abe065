"""Cancels in columns that grow: adding some costs what they are, not what is there.

Each column is an array with room behind its end, taken anew a quarter larger when it is full. The
ids are one array of bytes and one of bounds, as in Arrow's columns.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from duewheel.schemas.columns import data, from_parts, offsets
from duewheel.schemas.timers import Bool
from duewheel.wheel.tombstones import Tombstones

_COLUMNS = {
    "partition": np.int32,
    "offset": np.int64,
    "id_hash": np.int64,
    "hour": np.int64,
    "position": np.int64,
    "size": np.int64,
    "again": np.bool_,
    "after": np.int64,
    "log_end": np.int64,
    "first": np.int64,
    "last": np.int64,
    "word": np.int32,
}


class GrowingArray:
    """Values of one dtype; what `values` has returned stays as long as nothing is added."""

    def __init__(self, dtype: npt.DTypeLike) -> None:
        self._room: npt.NDArray[Any] = np.empty(0, dtype)
        self._count = 0

    @property
    def values(self) -> npt.NDArray[Any]:
        """A view: what is written to it is written here."""
        return self._room[: self._count]

    def append(self, values: npt.NDArray[Any]) -> None:
        """Add those at the end."""
        end = self._count + len(values)
        if end > len(self._room):
            room = np.empty(max(end, len(self._room) * 5 // 4), self._room.dtype)
            room[: self._count] = self.values
            self._room = room
        self._room[self._count : end] = values
        self._count = end


class GrowingTombstones:
    """Cancels in the order in which they were added. Not thread-safe."""

    def __init__(self) -> None:
        self._arrays = {name: GrowingArray(dtype) for name, dtype in _COLUMNS.items()}
        self._id_bounds, self._id_bytes = GrowingArray(np.int64), GrowingArray(np.uint8)
        self._id_bounds.append(np.zeros(1, np.int64))

    def __len__(self) -> int:
        return len(self._arrays["offset"].values)

    @property
    def rows(self) -> Tombstones:
        """All of them, as views: what is written to its arrays is written here."""
        ids = from_parts(self._id_bounds.values, self._id_bytes.values)
        columns = {name: array.values for name, array in self._arrays.items()}
        return Tombstones(timer_id=ids, **columns)

    def append(self, new: Tombstones) -> None:
        """Add those at the end."""
        for name, array in self._arrays.items():
            array.append(getattr(new, name))
        bounds, end = offsets(new.timer_id), len(self._id_bytes.values)
        self._id_bytes.append(data(new.timer_id)[bounds[0] : bounds[-1]])
        self._id_bounds.append(bounds[1:] - bounds[0] + end)

    def kept(self, mask: Bool) -> GrowingTombstones:
        """Those that the mask says, anew."""
        kept = GrowingTombstones()
        kept.append(self.rows.take(np.flatnonzero(mask)))
        return kept
