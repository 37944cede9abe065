"""Limits the rows that ingest takes, so that a nearly full disk never stops delivery.

- Rows are taken while the free space of the file system, minus all that they write, stays at its
  minimum or above. A batch larger than the disk is taken in parts.
- The rest waits, and later records wait in Kafka. Dequeue unlinks delivered hours meanwhile.
- After a wait a tenth of the minimum must be free beside the first row. Otherwise each unlinked
  hour would restart ingest for a few rows.
- A recovery must re-read closed slots before dequeue delivers and unlinks again. The guard passes
  all rows then; a full disk raises an error of its own.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from duewheel.checkpoints.disk_room import Room
from duewheel.schemas.arrays import Int64
from duewheel.schemas.batches import TimerBatch
from duewheel.schemas.columns import lengths
from duewheel.wheel.storage.byte_layouts import PREFIX_BYTES, RECORD_BYTES

_MORE = 10  # after a wait a tenth of the minimum must be free beside it
_WRITTEN = 2  # times at most: rows of slots that close meanwhile are written again


class DiskGuard:
    """Checks the room before each batch. `must_take` returns whether delivery waits for ingest.
    Thread-safe: it changes nothing.
    """

    def __init__(self, room: Callable[[], Room], must_take: Callable[[], bool]) -> None:
        self.room = room
        self._must_take = must_take

    def rows(self, row_bytes: Int64, *, waited: bool) -> int:
        """Returns how many rows of a batch, from its first on, may be taken now. `row_bytes` are
        the bytes that each row writes; `waited`: the last check has allowed no row.
        """
        room = self.room()
        left = room.left_bytes - waited * room.min_free_bytes // _MORE
        fit = int(np.searchsorted(np.cumsum(row_bytes), left, "right"))
        return len(row_bytes) if fit < len(row_bytes) and self._must_take() else fit


def written_bytes(batch: TimerBatch) -> Int64:
    """The bytes that each row adds to the files, at most."""
    stored = sum(lengths(c) for c in (batch.key_value, batch.headers, batch.timer_id))
    stored += np.array([len(name) for name in batch.targets], np.int64)[batch.target]
    # A reschedule is written as a timer and as a request; a copy may repeat a request.
    asks = batch.cancels | batch.keeps
    times = batch.timer.astype(np.int64) + asks + (batch.origin_offset < batch.offset)
    written: Int64 = _WRITTEN * times * (stored + PREFIX_BYTES + RECORD_BYTES)
    return written
