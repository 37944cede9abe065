"""Delay levels: the counts by level, and the order of the timers of a level.

Equal delays from timestamps that never fall give due times that never fall: that, and the order
inside a slot, is all that first in, first out takes, in each partition of the timer topic.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.harness.config_file import small_settings
from tests.harness.local_world import NOW_MS, LocalWorld, fated
from tests.harness.source_table import SourceRow, as_table, read_records
from tests.harness.timer_rows import P0, P1, TIMER_TOPIC, TimerRow, suite_parameters, timer_batch

from duewheel.checkpoints.process_role import Role
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError
from duewheel.ops.timers import pending_stats as stats
from duewheel.schemas.batches import TimerBatch
from duewheel.schemas.header_names import LEVELS_MS
from duewheel.schemas.request.acceptance_rules import compile_suite, load_suite
from duewheel.schemas.request.parser import Contract, parse
from duewheel.testing import ManualClock
from duewheel.wheel.slots import WheelConfig

RULES = compile_suite(load_suite(), suite_parameters(forbidden_targets=["dead"]))
LEVELS = (0, 300, 1_000, 60_000)
WHEEL = WheelConfig(50, 100_000, window_ms=3_600_000, margin_ms=0)
Asked = tuple[int, int, str]  # timestamp, partition, DELAY
Leaving = tuple[int, int, int]  # partition, level, offset


def batch_of(rows: Sequence[Asked], firsts: Sequence[int], levels: Sequence[int]) -> TimerBatch:
    """The rows through the contract; `firsts`: the next offset of each partition."""
    ends, records = list(firsts), []
    for timestamp_ms, partition, level in rows:
        headers = [("DELAY", level.encode()), ("REAL_TOPIC", b"orders")]
        records.append(SourceRow(ends[partition], timestamp_ms, headers, partition))
        ends[partition] += 1
    return parse(read_records(as_table(records)), Contract(tuple(levels), {}, "dead", RULES))


@pytest.fixture
def world(tmp_path: Path) -> LocalWorld:
    return LocalWorld(tmp_path / "data", WHEEL, chunk_records=3)


def take(world: LocalWorld, rows: Sequence[Asked], levels: Sequence[int] = LEVELS) -> None:
    ends = dict(world.engine.marks)
    batch = batch_of(rows, [ends[P0], ends[P1]], levels)
    assert not batch.rejected.any()
    for _, partition, _ in rows:
        ends[TIMER_TOPIC, partition] += 1
    world.engine.append(batch, ends)


def left(world: LocalWorld) -> list[Leaving]:
    rows: list[Leaving] = []
    for deliveries, _ in world.publisher.committed:
        if deliveries is not None:
            partition = [
                deliveries.source_partitions[home][1]
                for home in deliveries.source_partition.tolist()
            ]
            level, offset = deliveries.level.tolist(), deliveries.origin_offset.tolist()
            rows += zip(partition, level, offset, strict=True)
    return rows


@settings(max_examples=8)
@given(st.randoms(use_true_random=False))
def test_timers_of_a_level_leave_in_the_order_written(
    tmp_path_factory: pytest.TempPathFactory, chance: random.Random
) -> None:
    """Whatever is written and delivered in between. Ingest and dequeue are late now and then, and
    killed: in the middle of a slot, too, and after transactions whose outcome is unknown.
    """
    world = LocalWorld(tmp_path_factory.mktemp("shard") / "data", WHEEL, chunk_records=3)
    written_ms = NOW_MS
    for _ in range(8):
        rows = []
        for _ in range(1 + chance.randrange(12)):
            written_ms += chance.choice([0, 0, 7, 400])  # LogAppendTime: it never falls
            rows.append((written_ms, chance.randrange(2), str(chance.randrange(1, 6))))
        take(world, rows)
        world.clock.set(max(world.clock.now_ms(), written_ms + chance.choice([-2_000, 0, 900])))
        with fated(world.publisher, lambda: chance.choice(["commit", "lose", "doubt"])):
            world.drain(ticks=chance.randrange(6))
        if killed := chance.choice([(), (Role.INGEST,), (Role.DEQUEUE,), tuple(Role)]):
            world.restart(*killed)
    world.clock.sleep(3_600)
    for _ in range(2):  # the turn that ends an empty range, as a start may find one, has no work
        world.drain()
    found, marks = left(world), world.engine.marks
    world.kill()
    assert len(found) == sum(marks.values())
    for partition in (0, 1):
        for level in range(1, len(LEVELS) + 1):
            offsets = [row[2] for row in found if row[:2] == (partition, level)]
            assert offsets == sorted(offsets)


def test_a_changed_table_may_let_a_level_overtake_itself(world: LocalWorld) -> None:
    """A message keeps the delay that its level had: another one holds for new messages only."""
    take(world, [(NOW_MS, 0, "4")])
    take(world, [(NOW_MS + 10, 0, "4")], levels=(*LEVELS[:3], 2_000))
    world.clock.sleep(3_600)
    world.drain()
    assert left(world) == [(0, 4, 1), (0, 4, 0)]
    world.kill()


def test_the_level_that_counts_is_kept() -> None:
    """Above the highest counts as the highest; none where another header gives the time."""
    asked = ["1", "4", "99", "0", "-1"]
    rows = [(NOW_MS, 0, level) for level in asked]
    batch = batch_of(rows, [0], LEVELS)
    assert batch.rejected.tolist() == [False, False, False, True, True]  # no other time is given
    assert batch.level.tolist() == [1, 4, 4, 0, 0]


def test_the_last_of_255_levels_goes_all_the_way(world: LocalWorld) -> None:
    """A table of one's own: level n waits n ms; 999 counts as the highest."""
    table = tuple(range(1, 256))
    take(world, [(NOW_MS, 0, level) for level in ("255", "254", "999", "1")], table)
    world.restart()
    world.clock.set(NOW_MS + 1_000)
    world.drain()
    assert sorted(left(world)) == [(0, 1, 3), (0, 254, 1), (0, 255, 0), (0, 255, 2)]
    assert world.dequeue.statistics.delivered_by_level == {1: 1, 254: 1, 255: 2}
    world.kill()


def test_a_table_of_levels_fits_the_byte_on_disk() -> None:
    Contract(tuple(range(255)), {}, "dead", RULES)
    with pytest.raises(ConfigError, match="255 at most, not 256"):
        Contract(tuple(range(256)), {}, "dead", RULES)


@pytest.fixture
def shard(tmp_path: Path) -> Settings:
    """Level 1 is delivered in part; two of level 3 are left; level 18 rolls; level 30 is gone."""
    found = small_settings(tmp_path / "data")
    world = LocalWorld(found.storage.data_dir, found.wheel, starts={P0: 0})
    timers = [
        *(TimerRow(0, offset, NOW_MS + 100 * offset, level=1) for offset in range(1, 11)),
        *(TimerRow(0, offset, NOW_MS + 10_000 + offset, level=3) for offset in (11, 12)),
        TimerRow(0, 13, NOW_MS + 7_200_000, level=18),
        TimerRow(0, 14, NOW_MS + 60_000, level=30),
        TimerRow(0, 15, NOW_MS + 60_000),
    ]
    batch = replace(timer_batch(timers), timestamp_ms=np.full(len(timers), NOW_MS))
    world.engine.append(batch, {P0: 16})
    world.clock.set(NOW_MS + 500)
    assert world.tick()
    assert world.dequeue.statistics.delivered_by_level == {1: 5}
    world.stop()
    return found


def test_stats_by_level(shard: Settings) -> None:
    clock = ManualClock(NOW_MS + 500)
    rows = {row.level: row for row in stats.levels(shard)}
    assert list(rows) == [*range(1, len(LEVELS_MS) + 1), 30]
    pending = {level: row.pending for level, row in rows.items() if row.pending}
    assert pending == {1: 5, 3: 2, 18: 1, 30: 1}
    assert (rows[1].next, rows[1].next_due_ms) == ("timers-0@6", NOW_MS + 600)
    assert (rows[2].next, rows[2].next_due_ms) == (None, None)
    assert (rows[3].delay, rows[18].delay, rows[30].delay) == ("10s", "2h", None)
    assert {row.delivered_ms for row in rows.values()} == {NOW_MS + 500}
    assert stats.stats(shard, clock).by_level == {1: 5, 3: 2, 18: 1, 30: 1}


def test_rolls_that_are_to_come_are_told(shard: Settings) -> None:
    found = stats.stats(shard, ManualClock(NOW_MS + 500)).rolls
    assert (found.pending, found.next_hour) == (1, 1)
    assert (found.per_second_max, found.per_second) == (1.0, round(1 / 3600, 3))
    long_before = stats.stats(shard, ManualClock(NOW_MS - 7_200_000)).rolls
    assert (long_before.pending, long_before.next_hour) == (1, 0)
