"""Whether a batch may be taken: ingest stops before the disk is full, so that delivery goes on.

A batch is taken if, with all that it writes, the free space of the file system stays at its minimum
or above. Otherwise it waits, and Kafka keeps what comes after it; delivered hours are unlinked
meanwhile. To go on, a tenth of the minimum must be free beside it: not every unlinked hour starts
ingest for one batch.

While a recovery reads again what was in closed slots, nothing is delivered and no hour goes: only
taking it ends that. Then the guard lets pass, and what the disk cannot hold is an error of its own.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from duewheel.checkpoints.files import Space
from duewheel.schemas.columns import lengths
from duewheel.schemas.timers import TimerBatch
from duewheel.wheel.layout import PREFIX_BYTES, RECORD_BYTES

_MORE = 10  # one part in so many of the minimum, beside it, before what waited goes on
_WRITTEN = 2  # times at most: what is closed or given up meanwhile is written again


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

    def has_room(self, batch_bytes: int, *, waited: bool) -> bool:
        """Whether a batch may be taken now.

        Args:
            batch_bytes: that it writes.
            waited: whether it has been refused before.
        """
        space = self._space()
        wanted = self._min_free_bytes(space)
        if waited:
            wanted += wanted // _MORE
        return space.free_bytes >= wanted + batch_bytes or self._must_take()


def written_bytes(batch: TimerBatch) -> int:
    """What a batch adds to the files, at most."""
    stored = sum(lengths(c) for c in (batch.key_value, batch.headers, batch.timer_id))
    # A reschedule is written as a timer and as a request; a copy may bring a request again.
    times = batch.timer.astype(np.int64) + batch.cancels + (batch.origin_offset < batch.offset)
    return _WRITTEN * int((times * (stored + PREFIX_BYTES + RECORD_BYTES)).sum())
