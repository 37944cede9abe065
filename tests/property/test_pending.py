"""Pending timers, counted and listed beside the running shard, against a plain count.

Slots of ten minutes: a handful of timers reaches over many hours, each with a log of its own.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.harness.local_world import NOW_MS, LocalWorld
from tests.harness.timer_rows import TIMER_TOPIC, TimerRow, timer_batch

from duewheel.checkpoints.process_role import Role
from duewheel.errors import ConfigError
from duewheel.wheel.inspect.listing import Filter, PendingTimer, list_pending
from duewheel.wheel.inspect.pending_counts import Pending, PendingTimers
from duewheel.wheel.roll_rule import requested_slots
from duewheel.wheel.slots import WheelConfig
from duewheel.wheel.storage.data_directory import DataDirectory

PRECISION_MS = 600_000
SLOT = NOW_MS // PRECISION_MS  # closed at the start
PARTITIONS = 3
WINDOW_SLOTS = 20
AHEAD = range(SLOT + 10, SLOT + 100)  # a slot is longer than a second


@dataclass
class PendingRow:
    """A pending timer: the slot in which it leaves, and whether it is rolled then."""

    timer: TimerRow
    slot: int
    rolled: bool


class ObservedWorld(LocalWorld):
    """A shard, observers of it, and what should be pending by slot."""

    def __init__(self, path: Path) -> None:
        wheel = WheelConfig(PRECISION_MS, 64, window_ms=WINDOW_SLOTS * PRECISION_MS, margin_ms=0)
        self.ends = {(TIMER_TOPIC, number): 0 for number in range(PARTITIONS)}
        super().__init__(path, wheel, starts=self.ends, chunk_records=3)
        self.rows: dict[str, PendingRow] = {}
        self.seen = DataDirectory(path, self.wheel)
        self.pending = PendingTimers(self.seen)

    def fill(self, chance: random.Random, count: int, spread: int) -> None:
        timers = []
        for _ in range(count):
            partition = chance.randrange(PARTITIONS)
            offset = self.ends[TIMER_TOPIC, partition] + chance.randrange(2)
            due_ms = self.clock.now_ms() + chance.randrange(-2, spread) * PRECISION_MS
            rejected = chance.random() < 0.1
            level = 0 if rejected else chance.randrange(4)
            timers.append(TimerRow(partition, offset, due_ms, rejected, level))
            self.ends[TIMER_TOPIC, partition] = offset + 1
        self.take(timers)

    def take(self, timers: list[TimerRow]) -> None:
        batch = timer_batch(timers)
        batch = replace(batch, timestamp_ms=np.full(len(timers), self.clock.now_ms()))
        slots, rolled = requested_slots(batch, PRECISION_MS, self.wheel.window_ms)
        slots = np.maximum(slots, self.floor + 1)
        for row in map(PendingRow, timers, slots.tolist(), rolled.tolist()):
            self.rows[row.timer.source] = row
        self.engine.append(batch, self.ends)

    def expected(self) -> dict[str, PendingRow]:
        out = set(self.publisher.sources())
        return {source: row for source, row in self.rows.items() if source.encode() not in out}

    def ticks(self, count: int) -> None:
        """Of dequeue, whether it has something to do or not."""
        for _ in range(count):
            self.tick()

    def close(self) -> None:
        self.kill()
        self.seen.close()

    def look(self) -> Pending:
        """What the observer says, after it has agreed with one that looks for the first time."""
        until = range(SLOT, SLOT + 200, 7)
        found = self.pending.count(until, AHEAD)
        fresh = DataDirectory(self.path, self.wheel)
        assert PendingTimers(fresh).count(until, AHEAD) == found
        fresh.close()
        return found

    def list(self, wanted: Filter, limit: int = 10_000) -> list[PendingTimer]:
        return list(list_pending(self.seen, wanted, limit))


def target(timer: TimerRow) -> str:
    return "dead" if timer.rejected else ("orders", "bills")[timer.offset % 2]


def judge(world: ObservedWorld) -> None:
    """Counts and list must be those of what was appended and not yet published."""
    expected = world.expected()
    found = world.look()
    slots = Counter(row.slot for row in expected.values())
    assert found.total == len(expected)
    assert found.by_topic == Counter(target(row.timer) for row in expected.values())
    assert found.within == tuple(
        sum(row.slot <= until for row in expected.values()) for until in range(SLOT, SLOT + 200, 7)
    )
    assert found.oldest_slot == min(slots, default=None)
    assert found.slot_max == max(slots.values(), default=0)
    judge_levels(found, list(expected.values()))
    judge_rolls(found, [row.slot for row in expected.values() if row.rolled])
    listed = world.list(Filter())
    assert {timer.source for timer in listed} == expected.keys()
    assert len(listed) == len(expected)
    for timer in listed:
        row = expected[timer.source]
        asked = row.timer
        assert timer.leaves_ms == row.slot * PRECISION_MS
        assert timer.due_ms == (None if asked.rejected else asked.due_ms)
        assert (timer.target, timer.rolled) == (target(asked), row.rolled)
        assert timer.level == asked.level
    assert world.list(Filter(level=2)) == [timer for timer in listed if timer.level == 2]


def judge_levels(found: Pending, expected: list[PendingRow]) -> None:
    by_level = Counter(row.timer.level for row in expected if row.timer.level)
    assert found.by_level == by_level
    assert found.next_slot == {
        level: min(row.slot for row in expected if row.timer.level == level) for level in by_level
    }


def judge_rolls(found: Pending, slots: list[int]) -> None:
    assert found.rolls == len(slots)
    assert found.rolls_ahead == sum(slot < AHEAD.stop for slot in slots)
    ahead = Counter(slot for slot in slots if slot in AHEAD)
    most = max(ahead.values(), default=0)
    assert found.rolls_per_second == pytest.approx(most * 1000 / PRECISION_MS)


@pytest.mark.slow
@settings(max_examples=50)
@given(st.randoms(use_true_random=False))
def test_counts_and_lists_are_those_of_a_plain_model(
    tmp_path_factory: pytest.TempPathFactory, chance: random.Random
) -> None:
    """Timers come, time passes, chunks of three rows leave, dequeue is killed: in any order."""
    world = ObservedWorld(tmp_path_factory.mktemp("shard") / "data")
    try:
        for _ in range(12):
            step = chance.randrange(4)
            if step == 0:
                world.fill(chance, chance.randrange(12), chance.choice([2, 60]))
            elif step == 1:
                world.clock.sleep(chance.randrange(1, 20) * PRECISION_MS / 1000)
            elif step == 2:
                world.ticks(chance.randrange(4))
            else:
                world.restart(Role.DEQUEUE)
            if chance.random() < 0.7:
                judge(world)
        before = world.list(Filter())
        world.ticks(200)
        left = [source.decode() for source in world.publisher.sources()][-len(before) :]
        due = [timer.source for timer in before if timer.source not in world.expected()]
        assert due == left[len(left) - len(due) :]  # listed in the order in which they leave
        judge(world)
    finally:
        world.close()


def test_of_a_slot_that_is_half_rolled_the_rest_counts(tmp_path: Path) -> None:
    world = ObservedWorld(tmp_path / "data")
    due_ms = NOW_MS + 60 * PRECISION_MS
    world.ends[TIMER_TOPIC, 0] = 40
    world.take([TimerRow(0, offset, due_ms, level=offset % 3) for offset in range(40)])
    world.clock.sleep(WINDOW_SLOTS * PRECISION_MS / 1000)
    for out in range(3, 30, 3):
        world.ticks(1)
        assert len(world.publisher.sources()) == out
        judge(world)
    world.close()


@settings(max_examples=40)
@given(st.randoms(use_true_random=False))
def test_pages_end_to_end_are_the_whole_list(
    tmp_path_factory: pytest.TempPathFactory, chance: random.Random
) -> None:
    """However long a page is, and whatever is asked for; a half-delivered slot included."""
    world = ObservedWorld(tmp_path_factory.mktemp("shard") / "data")
    try:
        for _ in range(3):
            world.fill(chance, 15, 40)
        world.clock.sleep(2 * PRECISION_MS / 1000)
        world.ticks(chance.randrange(3))
        whole = world.list(Filter())
        first, last = SLOT + chance.randrange(20), SLOT + chance.randrange(20, 60)
        topic = chance.choice(["orders", "dead", "nobody's"])
        pages: list[PendingTimer] = []
        while found := world.list(
            Filter(topic, first, last, pages[-1].place if pages else None), chance.randrange(1, 7)
        ):
            pages += found
        assert pages == [
            timer
            for timer in whole
            if timer.target == topic and first <= timer.leaves_ms // PRECISION_MS <= last
        ]
    finally:
        world.close()


def test_a_page_must_be_one_that_was_listed(tmp_path: Path) -> None:
    world = ObservedWorld(tmp_path / "data")
    with pytest.raises(ConfigError, match="'7' is no page"):
        world.list(Filter(after="7"))
    world.close()


def test_what_is_listed_of_a_message(tmp_path: Path) -> None:
    world = ObservedWorld(tmp_path / "data")
    timers = [TimerRow(0, offset, NOW_MS + PRECISION_MS) for offset in (6, 7, 8)]
    world.shard.append(timers, {(TIMER_TOPIC, 0): 9})
    given_id, null_value, plain = world.list(Filter())
    assert (given_id.id, given_id.source) == (b"id of timers-0@6", "timers-0@6")
    assert (given_id.key, given_id.value_bytes) == (None, len("timers-0@6") * 6)
    assert (null_value.id, null_value.key, null_value.value_bytes) == (b"timers-0@7", b"", None)
    assert plain.key == b"key"
    world.close()
