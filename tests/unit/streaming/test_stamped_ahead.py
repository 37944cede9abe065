"""Records with timestamps far ahead of the clock: their partition ends early before them."""

from __future__ import annotations

import numpy as np
from tests.harness.timer_rows import P0

from duewheel.schemas.batches import TimerBatch
from duewheel.streaming.stamped_ahead import StampedAhead
from duewheel.testing import ManualClock, TimerRow, timer_batch

NOW_MS = 1_800_000_000_000
HOUR_MS = 3_600_000


def stamped(*rows: tuple[TimerRow, int]) -> TimerBatch:
    batch = timer_batch([row for row, _ in rows])
    batch.timestamp_ms[:] = np.array([at_ms for _, at_ms in rows])
    return batch


def test_a_partition_ends_before_the_first_one() -> None:
    clock = ManualClock(NOW_MS)
    ahead = StampedAhead(clock, HOUR_MS)
    far_ms = NOW_MS + 26 * HOUR_MS
    batch = stamped(
        (TimerRow(0, 5, NOW_MS), NOW_MS),
        (TimerRow(0, 6, NOW_MS), far_ms),
        (TimerRow(0, 7, NOW_MS), NOW_MS),
        (TimerRow(0, 8, NOW_MS), far_ms + 1),
        (TimerRow(1, 5, NOW_MS), NOW_MS + 25 * HOUR_MS),
        (TimerRow(1, 6, NOW_MS, request="cancel"), far_ms),
        (TimerRow(1, 7, NOW_MS, rejected=True), far_ms),
    )
    taken, ends = ahead.cut(batch)
    assert ends == {P0: 6}
    assert list(zip(taken.partition.tolist(), taken.offset.tolist(), strict=True)) == [
        (0, 5),
        (1, 5),
        (1, 6),
        (1, 7),
    ], "cancels and rejected records take no slot of their time"
    clock.sleep(3_600)
    assert ahead.cut(batch)[1] == {P0: 8}
    clock.sleep(3_600)
    assert ahead.cut(batch) == (batch, {})
