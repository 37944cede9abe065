"""The one rule "is this row out": delivered, rolled, parked, or skipped as cancelled.

The slot of a row is the one in which it was placed: that of its due time, or of its roll instant;
the earliest open slot, if that one was closed when the row came. With R and D of its partition:

    out  ⇔  slot ≤ R,  or  slot = R + 1 and offset < D

So two numbers per partition decide which rows are out, while one slot is half delivered. Here a
prefix of that slot in delivery order is out. In the files of another owner, or read again from
Kafka, the partitions may be interleaved in another way; but each partition has the same order
everywhere, so the rows that are out are a prefix of each partition. D is the end of that prefix.
"""

from __future__ import annotations

import numpy as np

from duewheel.schemas.arrays import Bool, Int64


def is_out(slot: Int64, offset: Int64, r: Int64 | int, d: Int64) -> Bool:
    """Returns which rows are out, by the slot in which each was placed. R and D are those of its
    partition; D is 0 if slot r + 1 is not half delivered. With R = 5 and D = 2:

    >>> slot, offset = np.array([4, 5, 6, 6, 7]), np.array([9, 3, 1, 2, 0])
    >>> is_out(slot, offset, 5, np.full(5, 2)).tolist()
    [True, True, True, False, False]
    """
    out: Bool = (slot <= r) | ((slot == r + 1) & (offset < d))
    return out


def placed_slots(slot: Int64, offset: Int64, r: Int64, c: Int64) -> Int64:
    """Returns the slot in which each row was placed, by the slot of its due time, if it was taken
    before slot r + 1 was closed. Rows from C of slot r on came after that slot was closed, so they
    were placed in slot r + 1 or later. With R = 5 and C = 10:

    >>> slot, offset = np.array([4, 4, 9]), np.array([8, 12, 12])
    >>> placed_slots(slot, offset, np.full(3, 5), np.full(3, 10)).tolist()
    [4, 6, 9]
    """
    placed: Int64 = np.where(offset < c, slot, np.maximum(slot, r + 1))
    return placed
