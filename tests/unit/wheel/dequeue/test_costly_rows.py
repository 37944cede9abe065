"""The share of a transaction for targets whose settings make appends slow."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from tests.harness.deliveries import keyed, rows

from duewheel.schemas.arrays import Bool
from duewheel.schemas.batches import Deliveries
from duewheel.schemas.columns import binary
from duewheel.wheel.dequeue.partitioner import without_target
from duewheel.wheel.target_rules import Target

USUAL = Target(100, 1 << 20)
COSTLY = replace(USUAL, costly_by="flush.messages=1")
TARGETS = {"costly": COSTLY, "usual": USUAL}


def parked(deliveries: Deliveries, **others: Target) -> list[int]:
    waits: Bool = without_target(deliveries, TARGETS | others)
    return np.flatnonzero(waits).tolist()


def sized(deliveries: Deliveries, each: int) -> Deliveries:
    return replace(deliveries, key_value=binary([b"v" * each] * len(deliveries)))


def test_the_rows_of_a_few_partitions_leave_whatever_their_number() -> None:
    given = sized(rows(["costly"] * 4_000, [3] * 4_000), 10)
    assert parked(given) == []


def test_rows_for_more_partitions_wait_and_those_of_other_targets_do_not() -> None:
    given = sized(rows(["costly", "usual"] * 12, [number // 2 for number in range(24)]), 10)
    assert parked(given) == [16, 18, 20, 22], "the ninth to twelfth partition"
    assert parked(given, costly=USUAL) == []


def test_bytes_count_and_of_a_partition_the_last_rows_wait() -> None:
    given = sized(rows(["costly"] * 8, [1] * 8), 60_000)
    assert parked(given) == [2, 3, 4, 5, 6, 7]
    assert parked(sized(rows(["costly"], [1]), 900_000)) == [], "one that is larger leaves alone"


def test_a_topic_that_takes_small_batches_gets_few() -> None:
    small = replace(COSTLY, batch_bytes_max=400)
    given = sized(rows(["costly"] * 100, [1] * 100), 100)
    assert parked(given, costly=small)[0] == 64


def test_all_costly_targets_have_one_share() -> None:
    topics = [f"costly{number}" for number in range(10)]
    given = sized(rows(topics, [0] * 10), 10)
    assert parked(given, **dict.fromkeys(topics, COSTLY)) == [8, 9]


def test_in_a_rest_they_all_wait_but_copies_and_dead_letters() -> None:
    given = keyed(rows(["costly"] * 4, [0] * 4), [b"k"] * 4)
    given = replace(
        given,
        is_copy=np.array([True, False, False, False]),
        dead_letter=np.array([False, True, False, False]),
    )
    assert parked(given, costly=replace(COSTLY, rests=True)) == [2, 3]
