"""The roll rule: the slot that a record requests, and whether its timer rolls there.

Invariant: both follow from the record and the roll window of its settings epoch, never from the
present time, so a record that is read again requests the same slot.

    due within the window    the slot of its due time; a parked copy: of its instant, if later
    due beyond it            the slot of its roll instant (`roll_instants`). Ingest decides that it
                             rolls, dequeue writes the copy (wheel/dequeue/requeue.py)
    rejected                 the earliest slot; a copy that waited for the dead-letter topic: the
                             slot of its instant
"""

from __future__ import annotations

import numpy as np

from duewheel.schemas.arrays import Bool, Int64
from duewheel.schemas.batches import ANY_TIME, TimerBatch
from duewheel.wheel.slots import EARLIEST_SLOT, slot_of

# Odd, with irregular bits: neighbours are far apart in the upper bits of the product.
_OFFSET_FACTOR, _PLACE_FACTOR = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)


def requested_slots(
    batch: TimerBatch,
    precision_ms: int,
    window_ms: int | Int64,
    by_offset: bool | Bool = True,
) -> tuple[Int64, Bool]:
    """Computes the slot that each row requests, closed or not, and whether the timer rolls there.
    The roll window is that of each row's offset, or one for all. Without `by_offset` a row's id
    spreads its roll, as in settings epochs of the first versions.
    """
    rolled = ~batch.rejected & (batch.due_ms - batch.timestamp_ms > window_ms)
    number = np.array([number for _, number in batch.partitions], np.int64)[batch.partition]
    spread = np.where(by_offset, offset_spread(number, batch.offset), batch.id_hash)
    instants = roll_instants(batch.due_ms, batch.timestamp_ms, spread, window_ms)
    # A parked copy stays within the window, too: no row waits in the wheel longer than that.
    parked_ms = np.minimum(batch.not_before_ms, batch.timestamp_ms + window_ms)
    leaves_ms = np.maximum(np.where(rolled, instants, batch.due_ms), parked_ms)
    slots = slot_of(leaves_ms, precision_ms)
    letters = np.where(
        batch.not_before_ms == ANY_TIME, EARLIEST_SLOT, slot_of(parked_ms, precision_ms)
    )
    return np.where(batch.rejected, letters, slots), rolled


def roll_instants(
    due_ms: Int64, timestamp_ms: Int64, spread: Int64, window_ms: int | Int64
) -> Int64:
    """Computes when timers that are due beyond the window roll.

    A timer rolls at the end of the window after the record's timestamp; or at half the window, if
    less than a third of a window would remain to its due time. It rolls earlier by up to an eighth
    of a window, by `spread`: otherwise timers written together would roll in one instant.
    """
    short = due_ms - timestamp_ms - window_ms < window_ms // 3
    latest = timestamp_ms + np.where(short, window_ms // 2, window_ms)
    instants: Int64 = latest - spread % np.maximum(window_ms // 8, 1)
    return instants


def offset_spread(partition: Int64, offset: Int64) -> Int64:
    """Spreads rolls by partition and offset of their records. A producer cannot choose these, as it
    can an id: with ids of its choice a million timers could roll in one slot.
    """
    hashes = offset.astype(np.uint64) * _OFFSET_FACTOR ^ partition.astype(np.uint64) * _PLACE_FACTOR
    spread: Int64 = (hashes >> np.uint64(24)).astype(np.int64)
    return spread
