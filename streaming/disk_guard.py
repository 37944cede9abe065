"""How much of a batch may be taken: ingest stops before the disk is full, so that delivery goes on.

Rows are taken as long as the free space of the file system, with all that they write, stays at its
minimum or above: a batch larger than the disk comes in parts. The rest waits, and Kafka keeps what
comes after it; delivered hours are unlinked meanwhile. After a wait a tenth of the
minimum must be free beside the first row: not every unlinked hour starts ingest for a few rows.

While a recovery reads again what was in closed slots, nothing is delivered and no hour goes: only
taking it ends that. Then the guard lets pass, and what the disk cannot hold is an error of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from duewheel.checkpoints.fs import Space
from duewheel.schemas.arrays import Int64
from duewheel.schemas.batches import TimerBatch
from duewheel.schemas.columns import lengths
from duewheel.wheel.storage.layout import PREFIX_BYTES, RECORD_BYTES

_MORE = 10  # one part in so many of the minimum, beside it, before what waited goes on
_WRITTEN = 2  # times at most: what is closed or given up meanwhile is written again


@dataclass(frozen=True, slots=True)
class Room:
    """Of the data directory's file system, in bytes: what is free, and what must stay free."""

    free_bytes: int
    min_free_bytes: int


class DiskGuard:
    """Asked before each batch. Thread-safe: it only looks."""

    def __init__(
        self,
        space: Callable[[], Space],
        min_free_bytes: Callable[[Space], int],
        must_take: Callable[[], bool],
    ) -> None:
        """
        Args:
            space: of the data directory's file system.
            min_free_bytes: how much of that must stay free.
            must_take: whether delivery waits for ingest.
        """
        self._space = space
        self._min_free_bytes = min_free_bytes
        self._must_take = must_take

    def rows(self, row_bytes: Int64, *, waited: bool) -> int:
        """How many rows of a batch, from its first on, may be taken now.

        Args:
            row_bytes: what each row writes.
            waited: whether none of them could be taken before.
        """
        found = self.look()
        wanted = found.min_free_bytes + waited * found.min_free_bytes // _MORE
        fit = int(np.searchsorted(np.cumsum(row_bytes), found.free_bytes - wanted, "right"))
        return len(row_bytes) if fit < len(row_bytes) and self._must_take() else fit

    def look(self) -> Room:
        """What is free and what must stay free, now."""
        space = self._space()
        return Room(space.free_bytes, self._min_free_bytes(space))


def written_bytes(batch: TimerBatch) -> Int64:
    """What each row adds to the files, at most."""
    stored = sum(lengths(c) for c in (batch.key_value, batch.headers, batch.timer_id))
    stored += np.array([len(name) for name in batch.targets], np.int64)[batch.target]
    # A reschedule is written as a timer and as a request; a copy may bring a request again.
    times = batch.timer.astype(np.int64) + batch.cancels + (batch.origin_offset < batch.offset)
    written: Int64 = _WRITTEN * times * (stored + PREFIX_BYTES + RECORD_BYTES)
    return written
