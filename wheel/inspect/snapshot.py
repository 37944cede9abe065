"""Which records of the timer log are pending, seen from beside the running processes.

The pending timers are those of the newest commit page but those that the mirror of the progress,
read after it, says are out. Both are read once (`Snapshot`), and then every record can be judged by
itself: committed records never change. The mirror is written right after Kafka's commit, so it may
be one transaction behind Kafka, never ahead of it.

Of a half-delivered slot a prefix of the delivery order is out, and inside a slot delivery order is
log order. Where the prefix ends is found by halving: a few messages are looked at, not all.
The files of a standby may have the partitions of that one slot in another order than its owner: as
long as the slot is half delivered, its count is near there, and not exact.

Takes no lock. An hour that is delivered may be unlinked at any moment: `consistently` starts again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from duewheel.checkpoints.page_codec import Marks
from duewheel.errors import CorruptFile
from duewheel.wheel.slots import hour_of
from duewheel.wheel.storage.data_directory import DataDirectory
from duewheel.wheel.storage.layout import PREFIX, PREFIX_BYTES, RECORD_BYTES

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What decides which records are pending.

    Attributes:
        log_bytes: committed length of the log of every hour that can hold pending timers, in order.
        current: the first hour that can.
        delivered_slot: last one delivered in full, -1 before the first start of dequeue.
        half_below: D of the next slot, of the partitions of which that is half delivered.
    """

    log_bytes: Mapping[int, int]
    current: int
    delivered_slot: int
    half_below: Marks

    @classmethod
    def take(cls, directory: DataDirectory) -> Snapshot:
        """The present one. The commit page is read first: what is out was committed before."""
        commit, mirror = directory.state.commit(), directory.state.mirror()
        slot, half_below = -1, {}
        if mirror is not None:
            slot = mirror.delivered_slot
            half_below = {
                p: part.half_below
                for p, part in mirror.progress.partitions.items()
                if part.half_below is not None and part.delivered_slot == slot
            }
        current = hour_of(slot + 1, directory.config.precision_ms)
        lengths = {hour: h.log_bytes for hour, h in sorted(commit.hours.items()) if hour >= current}
        return cls(lengths, current, slot, half_below)


def consistently(directory: DataDirectory, work: Callable[[Snapshot], Result]) -> Result:
    """`work` of a present snapshot; again if an hour of it was delivered and unlinked meanwhile.

    Raises:
        CorruptFile: a file is damaged.
    """
    while True:
        snapshot = Snapshot.take(directory)
        try:
            return work(snapshot)
        except CorruptFile:
            if Snapshot.take(directory).current == snapshot.current:
                raise


def rows_out(directory: DataDirectory, snapshot: Snapshot) -> list[tuple[int, int]]:
    """The rows of slot r + 1 that are out, as stretches of log positions, first and end, rising.

    Raises:
        CorruptFile: log or messages are damaged.
    """
    if not snapshot.half_below:
        return []
    log, hour = directory.log, snapshot.current
    runs = log.walk(
        hour, directory.wheel.range(snapshot.delivered_slot, snapshot.delivered_slot + 1)
    )
    view = log.view(hour, int((runs.first_pos + runs.count * RECORD_BYTES).max(initial=0)))
    ends = np.cumsum(runs.count)

    def is_left(row: int) -> bool:
        run = int(np.searchsorted(ends, row, "right"))
        in_run = row - int(ends[run] - runs.count[run])
        record = view[int(runs.first_pos[run]) // RECORD_BYTES + in_run]
        data = directory.messages.files.read(hour, int(record["offset_py"]), PREFIX_BYTES)
        prefix = np.frombuffer(data, PREFIX)[0]
        topic = int(prefix["source_topic"])
        partition = (directory.topics.names(topic)[topic], int(prefix["source_partition"]))
        return int(prefix["source_offset"]) >= snapshot.half_below.get(partition, 0)

    out = bisect_left(range(int(runs.count.sum())), True, key=is_left)
    stretches = []
    for first_pos, count in zip(runs.first_pos.tolist(), runs.count.tolist(), strict=True):
        taken = min(count, out)
        out -= taken
        if taken:
            stretches.append((first_pos, first_pos + taken * RECORD_BYTES))
    return stretches
