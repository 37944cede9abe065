"""Which slot a record asks for, and whether its timer is rolled there instead of delivered.

Both follow from the record and the roll window of its settings epoch, never from the time: a record
that is read again asks for the same slot.

    due within the window    its due time's slot; a parked copy not before its instant
    due beyond it            rolled at the end of the window, earlier by up to an eighth of it;
                             ingest decides, dequeue writes the copy (wheel/dequeue/requeue.py)
    rejected                 the earliest slot; one that waits for its dead-letter topic its instant
"""

from __future__ import annotations

import numpy as np

from duewheel.schemas.arrays import Bool, Int64
from duewheel.schemas.batches import ANY_TIME, TimerBatch
from duewheel.wheel.slots import EARLIEST_SLOT, slot_of


def requested_slots(
    batch: TimerBatch, precision_ms: int, window_ms: int | Int64
) -> tuple[Int64, Bool]:
    """The slot that each row asks for, closed or not, and whether the timer is rolled then.

    A matter of the record and the settings of its epoch, never of the time: a row that is read
    again gives the same.

    Args:
        batch: the rows.
        precision_ms: length of a slot.
        window_ms: the roll window in force at each row's offset, or the one of them all.
    """
    rolled = ~batch.rejected & (batch.due_ms - batch.timestamp_ms > window_ms)
    instants = roll_instants(batch.due_ms, batch.timestamp_ms, batch.id_hash, window_ms)
    # Like everything else in the wheel, what is parked leaves within the window.
    held_ms = np.minimum(batch.not_before_ms, batch.timestamp_ms + window_ms)
    leaves_ms = np.maximum(np.where(rolled, instants, batch.due_ms), held_ms)
    slots = slot_of(leaves_ms, precision_ms)
    letters = np.where(
        batch.not_before_ms == ANY_TIME, EARLIEST_SLOT, slot_of(held_ms, precision_ms)
    )
    return np.where(batch.rejected, letters, slots), rolled


def roll_instants(
    due_ms: Int64, timestamp_ms: Int64, id_hash: Int64, window_ms: int | Int64
) -> Int64:
    """When timers that are due beyond the window leave the wheel to be written to Kafka again.

    At the end of the window after the record's timestamp; where less than a third of a window would
    be left then, at its half, so that the last stretch is never short. Earlier by up to an eighth
    of a window, by the timer's id: timers written together do not roll in one instant.
    """
    short = due_ms - timestamp_ms - window_ms < window_ms // 3
    latest = timestamp_ms + np.where(short, window_ms // 2, window_ms)
    instants: Int64 = latest - id_hash % np.maximum(window_ms // 8, 1)
    return instants
