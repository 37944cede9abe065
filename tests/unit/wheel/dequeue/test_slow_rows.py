"""The share of a transaction for targets whose settings make appends slow."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from tests.harness.deliveries import keyed, rows

from duewheel.checkpoints.pauses import NONE_PAUSED, PausedTimers
from duewheel.schemas.arrays import Bool
from duewheel.schemas.batches import Deliveries
from duewheel.schemas.columns import binary
from duewheel.wheel.dequeue.fate import without_target
from duewheel.wheel.target_rules import Target

USUAL = Target(100, 1 << 20)
SLOW = replace(USUAL, slow_by="flush.messages=1")
TARGETS = {"slow": SLOW, "usual": USUAL}


def parked(
    deliveries: Deliveries, paused: PausedTimers = NONE_PAUSED, now_ms: int = 0, **others: Target
) -> list[int]:
    leaving = np.ones(len(deliveries), np.bool_)
    waits: Bool = without_target(deliveries, TARGETS | others, leaving, paused, now_ms)
    return np.flatnonzero(waits).tolist()


def from_topics(deliveries: Deliveries, topics: list[str]) -> Deliveries:
    """The deliveries, each from a timer topic."""
    names = sorted(set(topics))
    source = np.array([names.index(topic) for topic in topics], np.int32)
    sources = [(name, 0) for name in names]
    return replace(deliveries, source_partitions=sources, source_partition=source)


def sized(deliveries: Deliveries, each: int) -> Deliveries:
    return replace(deliveries, key_value=binary([b"v" * each] * len(deliveries)))


def test_the_rows_of_a_few_partitions_leave_whatever_their_number() -> None:
    given = sized(rows(["slow"] * 4_000, [3] * 4_000), 10)
    assert parked(given) == []


def test_rows_for_more_partitions_wait_and_those_of_other_targets_do_not() -> None:
    given = sized(rows(["slow", "usual"] * 12, [number // 2 for number in range(24)]), 10)
    assert parked(given) == [16, 18, 20, 22], "the ninth to twelfth partition"
    assert parked(given, slow=USUAL) == []


def test_bytes_count_and_of_a_partition_the_last_rows_wait() -> None:
    given = sized(rows(["slow"] * 8, [1] * 8), 60_000)
    assert parked(given) == [2, 3, 4, 5, 6, 7]
    assert parked(sized(rows(["slow"], [1]), 900_000)) == [], "one that is larger leaves alone"


def test_a_topic_that_takes_small_batches_gets_few() -> None:
    small = replace(SLOW, batch_bytes_max=400)
    given = sized(rows(["slow"] * 100, [1] * 100), 100)
    assert parked(given, slow=small)[0] == 64


def test_all_slow_targets_have_one_share() -> None:
    topics = [f"slow{number}" for number in range(10)]
    given = sized(rows(topics, [0] * 10), 10)
    assert parked(given, NONE_PAUSED, 0, **dict.fromkeys(topics, SLOW)) == [8, 9]


def test_in_a_rest_they_all_wait_but_copies_and_dead_letters() -> None:
    given = keyed(rows(["slow"] * 4, [0] * 4), [b"k"] * 4)
    given = replace(
        given,
        is_copy=np.array([True, False, False, False]),
        dead_letter=np.array([False, True, False, False]),
    )
    assert parked(given, PausedTimers(slow_of=frozenset(["timers"]))) == [2, 3]


def test_timer_topics_have_equal_parts_of_the_share() -> None:
    flood = sized(rows(["slow"] * 22, [*range(20), 0, 1]), 10)
    given = from_topics(flood, ["a"] * 20 + ["b"] * 2)
    assert parked(given) == list(range(4, 20))
    large = sized(rows(["slow"] * 4, [0] * 4), 60_000)
    assert parked(from_topics(large, ["a", "a", "a", "b"])) == [1, 2]


def test_of_many_timer_topics_each_has_its_turn() -> None:
    given = from_topics(rows(["slow"] * 20, [0] * 20), [f"t{n:02}" for n in range(20)])
    waiting = [parked(given, now_ms=now_ms) for now_ms in range(20)]
    assert {len(some) for some in waiting} == {12}
    assert not set.intersection(*map(set, waiting))


def test_of_several_large_rows_one_leaves() -> None:
    given = from_topics(sized(rows(["slow"] * 3, [0] * 3), 900_000), ["a", "b", "c"])
    assert [parked(given, now_ms=now_ms) for now_ms in range(3)] == [[1, 2], [0, 2], [0, 1]]


def test_the_rest_of_one_timer_topic_is_not_that_of_others() -> None:
    given = from_topics(rows(["slow"] * 4, [0] * 4), ["a", "b"] * 2)
    for now_ms in range(0, 50, 5):
        resting = PausedTimers(slow_of=frozenset("a"), slow_alone=frozenset("a"))
        assert parked(given, resting, now_ms) == [0, 2]
        assert parked(given, PausedTimers(slow_of=frozenset("ab")), now_ms) == [0, 1, 2, 3]


def test_one_that_has_rested_shares_no_transaction() -> None:
    given = from_topics(rows(["slow"] * 4, [0] * 4), ["a", "b", "c", "d"])
    alone = PausedTimers(slow_alone=frozenset("bc"))
    turns = [parked(given, alone, now_ms) for now_ms in (0, 10, 20)]
    assert turns == [[0, 2, 3], [0, 1, 3], [1, 2]]
