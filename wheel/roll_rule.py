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


def requested_slots(
    batch: TimerBatch, precision_ms: int, window_ms: int | Int64
) -> tuple[Int64, Bool]:
    """Computes the slot that each row requests, closed or not, and whether the timer rolls there.

    Args:
        batch: the rows.
        precision_ms: length of a slot.
        window_ms: the roll window at each row's offset, or one for all rows.
    """
    rolled = ~batch.rejected & (batch.due_ms - batch.timestamp_ms > window_ms)
    instants = roll_instants(batch.due_ms, batch.timestamp_ms, batch.id_hash, window_ms)
    # A parked copy leaves within the window, too: no row waits in the wheel longer than that.
    parked_ms = np.minimum(batch.not_before_ms, batch.timestamp_ms + window_ms)
    leaves_ms = np.maximum(np.where(rolled, instants, batch.due_ms), parked_ms)
    slots = slot_of(leaves_ms, precision_ms)
    letters = np.where(
        batch.not_before_ms == ANY_TIME, EARLIEST_SLOT, slot_of(parked_ms, precision_ms)
    )
    return np.where(batch.rejected, letters, slots), rolled


def roll_instants(
    due_ms: Int64, timestamp_ms: Int64, id_hash: Int64, window_ms: int | Int64
) -> Int64:
    """Computes when timers that are due beyond the window roll.

    A timer rolls at the end of the window after the record's timestamp; or at half the window, if
    less than a third of a window would remain to its due time. It rolls earlier by up to an eighth
    of a window, by the timer's id: otherwise timers written together would roll in one instant.
    """
    short = due_ms - timestamp_ms - window_ms < window_ms // 3
    latest = timestamp_ms + np.where(short, window_ms // 2, window_ms)
    instants: Int64 = latest - id_hash % np.maximum(window_ms // 8, 1)
    return instants
