"""The time that the rows of each timer topic for costly targets may take."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from tests.harness.deliveries import NOW_MS, rows

from duewheel.schemas.batches import ANY_TIME, Deliveries
from duewheel.schemas.columns import binary
from duewheel.wheel.dequeue.costly_rows import spend
from duewheel.wheel.encoded import LANES, NO_DEBTS, Budgets, Spending
from duewheel.wheel.target_rules import Cost, Target

USUAL = Target(100, 1 << 20, batch_bytes=1 << 19)
COSTLY = replace(USUAL, cost=Cost("flush.messages=1", 25))
SLOW = replace(USUAL, cost=Cost("compression.zstd.level=22", 25, 4_000))
TARGETS = {"usual": USUAL, "costly": COSTLY, "slow": SLOW}
START_MS = NOW_MS


def sized(
    targets: Sequence[str], partitions: Sequence[int], size: int = 10, **columns: Any
) -> Deliveries:
    given = rows(targets, partitions)
    return replace(given, key_value=binary([b"v" * size] * len(given)), **columns)


def of_topics(deliveries: Deliveries, topics: Sequence[str]) -> Deliveries:
    """The rows, each from partition 0 of a timer topic."""
    names = list(dict.fromkeys(topics))
    numbers = np.array([names.index(topic) for topic in topics], np.int32)
    sources = [(name, 0) for name in names]
    return replace(deliveries, source_partitions=sources, source_partition=numbers)


def spent(
    deliveries: Deliveries,
    budgets: Budgets = NO_DEBTS,
    now_ms: int = START_MS,
    targets: Mapping[str, Target] = TARGETS,
) -> Spending:
    partition = deliveries.target_partition.astype(np.int64)
    known = [targets[topic] for topic in deliveries.targets]
    every = np.ones(len(deliveries), np.bool_)
    found = spend(deliveries, known, partition, every, budgets, now_ms)
    assert found is not None
    return found


def waits(found: Spending, now_ms: int = START_MS) -> list[int]:
    """The wait of each row in ms; 0 if it leaves."""
    return [0 if each == ANY_TIME else each - now_ms for each in found.not_before_ms.tolist()]


def test_the_rows_of_a_few_partitions_leave_whatever_their_number() -> None:
    assert not any(waits(spent(sized(["costly"] * 4_000, [3] * 4_000))))


def test_rows_for_more_partitions_wait_until_they_are_paid_and_those_of_other_targets_do_not() -> (
    None
):
    partitions = [number // 2 for number in range(80)]
    found = waits(spent(sized(["costly", "usual"] * 40, partitions)))
    assert not any(found[1::2])
    assert found[::2] == [0] * 10 + [1_000] * 4 + [250 * number for number in range(4, 30)]


def test_bytes_are_costly_where_the_codec_is_slow_and_the_rows_of_a_partition_wait_together() -> (
    None
):
    given = [1] * 8
    assert not any(waits(spent(sized(["costly"] * 8, given, 60_000))))
    found = waits(spent(sized(["slow"] * 8, given, 50_000)))
    assert found[:2] == [0, 0]
    assert len(set(found[2:])) == 1
    assert found[2] == 1_612, "the first two cost 161 ms more than the share"


def test_a_topic_that_takes_small_batches_pays_for_each() -> None:
    small = {"costly": replace(COSTLY, batch_bytes=400)}
    found = waits(spent(sized(["costly"] * 100, [1] * 100, 100), targets=small))
    assert found.index(1_000) == 36, "nine batches of four"


def test_a_large_row_leaves_and_is_paid_in_ten_times_as_long() -> None:
    large = sized(["slow"], [1], 1 << 20)
    first = spent(large)
    assert waits(first) == [0]
    assert first.after["timers"].paid_ms - START_MS == 10 * (4_000 + 25 + 50)
    again = spent(large, first.after, START_MS + 1_000)
    assert waits(again, START_MS + 1_000) == [37_250], "and the share again"
    assert waits(spent(large, first.after, START_MS + 38_251)) == [0]
    huge = spent(sized(["slow"], [1], 16 << 20))
    assert waits(spent(large, huge.after)) == [300_000], "then the settings may be others"


def test_the_debt_of_a_timer_topic_is_its_own() -> None:
    flood = of_topics(sized(["costly"] * 20, range(20)), ["flood"] * 20)
    budgets = spent(flood).after
    both = of_topics(sized(["costly"] * 21, range(21)), ["flood"] * 20 + ["calm"])
    found = spent(both, budgets)
    assert waits(found)[-1] == 0
    assert all(waits(found)[:-1])
    assert found.before is budgets
    assert found.after["calm"].paid_ms == START_MS + 501, "half of a tenth of the time"


def test_two_timer_topics_have_half_of_a_transaction_each() -> None:
    given = of_topics(sized(["costly"] * 20, range(20)), ["one", "two"] * 10)
    assert np.flatnonzero(waits(spent(given))).tolist() == list(range(10, 20))


def test_of_many_timer_topics_only_some_leave_and_the_rows_of_a_partition_together() -> None:
    count = 40
    numbers = [number // 3 for number in range(3 * count)]
    topics = [f"timers{number}" for number in numbers]
    found = waits(spent(of_topics(sized(["costly"] * 3 * count, numbers), topics)))
    assert found[0::3] == found[1::3] == found[2::3]
    assert found[::3] == [0] * 20 + [1_000] * 20


def test_of_several_large_rows_one_leaves_and_smaller_ones_beside_it() -> None:
    topics = ["one", "two", "three"]
    found = waits(spent(of_topics(sized(["slow"] * 3, [1, 2, 3], 1 << 18), topics)))
    assert found[0] == 0
    assert all(found[1:])
    small = sized(["slow", "costly"], [1, 1])
    small = replace(small, key_value=binary([b"v" * (1 << 18), b"v"]))
    assert waits(spent(of_topics(small, topics[:2]))) == [0, 0]


def test_later_rows_of_a_lane_wait_for_its_visit_and_let_its_copies_pass() -> None:
    """Even if there is time for them before."""
    budgets = spent(sized(["costly"] * 30, range(30))).after
    visit_ms = int(budgets["timers"].visit_ms.max())
    lane = int(budgets["timers"].visit_ms.argmax())
    target = "costly"
    number = (lane - crc32(target.encode())) % LANES
    rows = sized([target] * 2, [number] * 2)
    for now_ms in (START_MS + 4_000, visit_ms - 1, visit_ms):
        assert spent(rows, budgets, now_ms).not_before_ms.tolist() == [visit_ms] * 2
    rows = replace(rows, retries=np.array([0, 1], np.int32))
    until_ms = spent(rows, budgets, visit_ms).not_before_ms
    assert until_ms[1] == ANY_TIME
    assert until_ms[0] >= visit_ms + 1_000
    assert not any(waits(spent(replace(rows, retries=rows.retries * 0), budgets, visit_ms + 1_001)))


def test_a_visit_may_take_what_was_set_aside_for_it_and_later_rows_may_not() -> None:
    budgets = spent(sized(["costly"] * 30, range(30))).after
    first_ms = START_MS + 1_000
    due = np.flatnonzero(budgets["timers"].visit_ms == first_ms)
    assert len(due) == 5
    numbers = [(int(lane) - crc32(b"costly")) % LANES for lane in due]
    known = set(range(30))
    others = [number for number in range(30, 40) if number not in known]
    rows = sized(["costly"] * 15, [*numbers, *others], retries=np.ones(15, np.int32))
    found = waits(spent(rows, budgets, first_ms), first_ms)
    assert not any(found[:5])
    assert all(found[5:])


class World:
    """Dequeue without Kafka: copies come to the slot of their instant."""

    def __init__(self, size: int) -> None:
        self.slots = defaultdict[int, list[tuple[int, str, str, int, int]]](list)
        self.arrived = defaultdict[tuple[str, int], list[int]](list)
        self.parked = Counter[str]()
        self.spent_ms = list[float]()
        self.written = 0
        self._size, self._budgets = size, NO_DEBTS

    def write(self, at_ms: int, topic: str, target: str, partition: int) -> None:
        self.slots[at_ms].append((self.written, topic, target, partition, 0))
        self.written += 1

    def turn(self, now_ms: int) -> None:
        if not (due := self.slots.pop(now_ms, [])):
            return
        _, topics, targets, partitions, retries = zip(*due, strict=True)
        columns = {"retries": np.array(retries, np.int32)}
        given = of_topics(sized(targets, partitions, self._size, **columns), topics)
        found = spent(given, self._budgets, now_ms)
        self._budgets, appends, bytes_ms = found.after, set[tuple[str, int]](), 0.0
        for row, until_ms in zip(due, found.not_before_ms.tolist(), strict=True):
            number, topic, target, partition, _ = row
            if until_ms == ANY_TIME:
                self.arrived[target, partition].append(number)
                appends.add((target, partition))
                bytes_ms += TARGETS[target].cost.mib_ms * self._size / (1 << 20)
            else:
                self.slots[-(-until_ms // 100) * 100].append((*row[:4], 1))
                self.parked[topic] += 1
        self.spent_ms.append(25 * len(appends) + bytes_ms)


@pytest.mark.parametrize(("target", "copies_max"), [("slow", 6), ("costly", 1)])
def test_a_flood_has_its_tenth_of_the_time_in_order_and_the_others_are_in_time(
    target: str, copies_max: int
) -> None:
    world, now_ms = World(1_000), START_MS
    for second_ms in range(START_MS, START_MS + 60_000, 1_000):
        for number in range(200):
            world.write(second_ms + 50 + number // 20 * 100, "flood", target, number % 24)
        world.write(second_ms + 350, "calm", "costly", 90)
    while world.slots:
        world.turn(now_ms)
        now_ms += 50
    assert all(numbers == sorted(numbers) for numbers in world.arrived.values())
    assert sum(map(len, world.arrived.values())) == world.written
    assert world.parked.keys() == {"flood"}
    assert world.parked["flood"] < copies_max * world.written
    assert max(world.spent_ms) < 300
    assert sum(world.spent_ms) < 500 + (now_ms - START_MS) / 10


def test_debts_that_are_paid_take_no_memory() -> None:
    topics = [f"timers{number}" for number in range(100)]
    budgets = spent(of_topics(sized(["costly"] * 100, range(100)), topics)).after
    assert len(budgets) == 100
    later_ms = max(each.until_ms for each in budgets.values()) + 1_000
    assert spent(sized(["costly"], [0]), budgets, later_ms).after.keys() == {"timers"}


def test_without_costly_targets_or_rows_nothing_is_spent() -> None:
    given = sized(["costly"], [0])
    none, zero = np.zeros(1, np.bool_), np.zeros(1, np.int64)
    assert spend(given, [COSTLY], zero, none, NO_DEBTS, START_MS) is None
    assert spend(given, [USUAL], zero, ~none, NO_DEBTS, START_MS) is None
