"""Timers beyond the roll window: the roll instant, the copy, and its delivery."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.harness.deliveries import read_back
from tests.harness.timer_rows import TimerRow, timer_batch
from tests.simulation.contract_check import decoded

from duewheel.schemas.batches import NO_LEVEL, NO_PARTITION
from duewheel.schemas.columns import binary
from duewheel.schemas.wire.record_codec import NO_ORIGIN, copy_headers
from duewheel.wheel.roll_rule import requested_slots, roll_instants

NOW_MS = 1_800_000_000_000
WINDOW_MS = 24 * 3_600_000


@given(
    delay_ms=st.integers(WINDOW_MS + 1, 4_000 * 3_600_000),
    spread=st.integers(0, 2**40 - 1),
)
def test_a_timer_rolls_inside_the_window_and_the_last_stretch_is_long(
    delay_ms: int, spread: int
) -> None:
    due_ms, now_ms = np.array([NOW_MS + delay_ms]), np.array([NOW_MS])
    (roll_ms,) = roll_instants(due_ms, now_ms, np.array([spread]), WINDOW_MS)
    assert NOW_MS + 3 * WINDOW_MS // 8 <= roll_ms <= NOW_MS + WINDOW_MS
    assert due_ms[0] - roll_ms > WINDOW_MS // 3


def test_timers_written_together_roll_over_an_eighth_of_the_window() -> None:
    count = 10_000
    hashes = np.random.default_rng(0).integers(0, 2**40, count)
    due_ms = np.full(count, NOW_MS + 10 * WINDOW_MS)
    rolls_ms = roll_instants(due_ms, np.full(count, NOW_MS), hashes, WINDOW_MS)
    per_minute = np.bincount((rolls_ms - rolls_ms.min()) // 60_000)
    assert len(per_minute) == WINDOW_MS // 8 // 60_000
    assert per_minute.max() < 3 * count / len(per_minute)


def test_no_producer_chooses_when_its_timers_roll() -> None:
    """Not by their ids: a million of one id would roll in one slot."""
    count = 5_000
    rows = [TimerRow(n % 3, n // 3, NOW_MS + 10 * WINDOW_MS, timer_id=b"one") for n in range(count)]
    batch = timer_batch(rows)
    batch.timestamp_ms[:] = NOW_MS
    slots, rolled = requested_slots(batch, 60_000, WINDOW_MS)
    assert rolled.all()
    per_minute = np.bincount(slots - slots.min())
    assert len(per_minute) > 0.9 * WINDOW_MS // 8 // 60_000
    assert per_minute.max() < 3 * count / len(per_minute)
    (first,) = {*requested_slots(batch, 60_000, WINDOW_MS, by_offset=False)[0].tolist()}
    mixed = np.arange(count) % 2 == 0
    both, _ = requested_slots(batch, 60_000, WINDOW_MS, by_offset=mixed)
    assert (both[~mixed] == first).all()
    assert (both[mixed] == slots[mixed]).all()


@pytest.mark.parametrize("timer_id", [b"", b"mine"])
@pytest.mark.parametrize("partition", [NO_PARTITION, 3])
@pytest.mark.parametrize("level", [NO_LEVEL, 18])
@pytest.mark.parametrize(("origin", "read"), [(17, (40, 17, 3)), (NO_ORIGIN, (40, 40, 3))])
def test_what_a_copy_says_is_read_back(
    timer_id: bytes, partition: int, level: int, origin: int, read: tuple[int, int, int]
) -> None:
    """Encoded for the timer topic, decoded by the contract: the same timer, one roll later."""
    encoded, count = copy_headers(
        binary([b"orders"]),
        np.array([partition], np.int32),
        np.array([NOW_MS + 5], np.int64),
        binary([timer_id]),
        np.array([3], np.int32),
        np.array([origin], np.int64),
        np.array([level], np.int32),
    )
    headers = decoded(encoded[0].as_py(), int(count[0]))
    batch = read_back(headers)
    assert not batch.rejected[0]
    assert batch.header_count[0] == 1
    assert (batch.offset[0], batch.origin_offset[0], batch.roll_times[0]) == read
    assert batch.level[0] == level
    assert (batch.due_ms[0], batch.timer_id[0].as_py()) == (NOW_MS + 5, timer_id)
    assert (batch.targets[batch.target[0]], batch.target_partition[0]) == ("orders", partition)
