"""The hours beyond the ring that records may open: partitions end before what exceeds the bound."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.harness.local_world import NOW_MS, PRECISION_MS, STARTS, LocalWorld, ring
from tests.harness.timer_rows import P0, TimerRow, timer_batch

from duewheel.wheel.append.far_hours import FAR_HOURS_MAX

HOUR_MS = 3_600_000
MakeWorld = Callable[[], LocalWorld]


@pytest.fixture
def make_world(tmp_path: Path) -> MakeWorld:
    return lambda: LocalWorld(
        tmp_path / "data", ring(64), chunk_records=100, progress_interval_ms=PRECISION_MS
    )


def due(partition: int, offset: int, hours: int) -> TimerRow:
    """Due at the timestamp of its record, so many hours from now."""
    return TimerRow(partition, offset, NOW_MS + hours * HOUR_MS)


def test_a_partition_ends_before_the_first_hour_beyond_the_bound(make_world: MakeWorld) -> None:
    world = make_world()
    rows = [due(0, n, 100 + n) for n in range(FAR_HOURS_MAX + 3)]
    others = [due(1, 0, 100), due(1, 1, 0), replace(due(1, 2, 10**4), request="cancel")]
    ends = world.engine.ends_before_far_hours
    assert ends(timer_batch(rows + others)) == {P0: FAR_HOURS_MAX}
    world.append(*rows[:FAR_HOURS_MAX])
    assert ends(timer_batch(rows[FAR_HOURS_MAX:] + others)) == {P0: FAR_HOURS_MAX}
    known = [due(1, n, 100 + n % FAR_HOURS_MAX) for n in range(3 * FAR_HOURS_MAX)]
    assert ends(timer_batch(known)) == {}, "they open no hour"


def test_rows_that_delivery_waits_for_open_any_hour(make_world: MakeWorld) -> None:
    """In another order than at first, and beside others, they may be more than the bound."""
    world, far = make_world(), 2 * FAR_HOURS_MAX
    rows = [due(0, n, 100 + n) for n in range(far)]
    world.append(*rows)
    world.at_slot(1)
    world.shard.offsets_at = lambda _: dict(STARTS)
    world.kill()
    shutil.rmtree(world.path)
    world.shard.start_dequeue(take_over=True)
    world.shard.start_ingest()
    ends = world.engine.ends_before_far_hours
    assert world.engine.marks.get(P0, 0) == 0
    assert ends(timer_batch(rows)) == {}
    assert ends(timer_batch([due(0, far, 1), *(due(0, far + n, 1000 + n) for n in (1, 2))])) == {}
    rows = [due(0, far + n, 1000 + n) for n in range(far)]
    assert ends(timer_batch(rows)) == {P0: far + FAR_HOURS_MAX}
