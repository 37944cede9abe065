"""The one rule "is this row out": delivered, rolled, parked, or skipped as cancelled.

A row lies in the slot in which it was placed: the slot of its due time, or of its roll instant; the
earliest open slot, if that one was closed when the row came. With R and D of its partition:

    out  ⇔  slot ≤ R,  or  slot = R + 1 and offset < D

So two numbers per partition decide what is out, while one slot is half delivered. Here a prefix of
that slot in delivery order is out. In the files of another owner, or read again from Kafka, the
partitions may be interleaved in another way; but each partition has the same order everywhere, so
the rows that are out are a prefix of each partition. D is the end of that prefix.
"""

from __future__ import annotations

import numpy as np

from duewheel.schemas.arrays import Bool, Int64


def is_out(slot: Int64, offset: Int64, r: Int64 | int, d: Int64) -> Bool:
    """Returns which rows have left.

    Args:
        slot: the slot in which each row lies.
        offset: of each row in its partition.
        r: R of its partition, the last slot delivered in full.
        d: D of its partition, 0 if slot r + 1 is not half delivered.
    """
    out: Bool = (slot <= r) | ((slot == r + 1) & (offset < d))
    return out


def placed_slots(slot: Int64, offset: Int64, r: Int64, c: Int64) -> Int64:
    """Returns the slot in which each row was placed, if it was taken before slot r + 1 was closed.

    Args:
        slot: the slot of the row's due time.
        offset: of each row in its partition.
        r: R of its partition.
        c: C of slot r: rows below it came before that slot was closed. Other rows came later, and
            lie in slot r + 1 at the earliest.
    """
    placed: Int64 = np.where(offset < c, slot, np.maximum(slot, r + 1))
    return placed
