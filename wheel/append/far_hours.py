"""Bounds the hours beyond the ring that records may open.

Each hour with timers has files and a place in the commit page, which each batch writes and each
delivery parses. A delay leads at most a roll window beyond its record's timestamp, so the present
needs some 25 hours. Only a timer topic that permits timestamps of a producer's choice leads
further: without a bound, 1,500 records in hours of their own would delay all deliveries until those
hours come, and 200,000 would exceed the commit page.

The outcome of a row must not depend on when it is read. So a row beyond the bound is not taken yet,
and its partition ends before it.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from duewheel.checkpoints.commit_and_close_pages import Marks
from duewheel.schemas.arrays import Int64
from duewheel.schemas.batches import TimerBatch

FAR_HOURS_MAX = 64


def ends_before_far_hours(
    batch: TimerBatch, hour: Int64, opened: Collection[int], first_far: int, taken: Marks
) -> Marks:
    """Returns the partitions that end before a row beyond the bound, and where.

    Args:
        batch: in offset order per partition.
        hour: the hour that each row requests.
        opened: the hours that have files.
        taken: offsets below which rows are in the wheel, or were: after a recovery, delivery waits
            for these.
    """
    below = np.array([taken.get(p, 0) for p in batch.partitions], np.int64)
    far = np.flatnonzero(
        batch.timer & (hour >= first_far) & (batch.offset >= below[batch.partition])
    )
    if not len(far):
        return {}
    room = max(FAR_HOURS_MAX - sum(each >= first_far for each in opened), 0)
    far = far[~np.isin(hour[far], list(opened))]
    new, first_row = np.unique(hour[far], return_index=True)
    permitted = new[np.argsort(first_row)][:room]
    beyond = far[~np.isin(hour[far], permitted)]
    numbers, first = np.unique(batch.partition[beyond], return_index=True)
    offsets = batch.offset[beyond[first]]
    return {
        batch.partitions[number]: offset
        for number, offset in zip(numbers.tolist(), offsets.tolist(), strict=True)
    }
