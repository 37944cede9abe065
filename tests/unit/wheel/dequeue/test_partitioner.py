"""The partition of each row, as Kafka's clients choose it."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from tests.harness.deliveries import rows

from duewheel.schemas.batches import NO_KEY, NO_PARTITION
from duewheel.wheel.dequeue.partitioner import grouped, narrow_cuts, used_topics
from duewheel.wheel.encoded import Writes
from duewheel.wheel.target_rules import Target

TARGETS = {"orders": Target(5, 10_000), "bills": Target(3, 10_000)}


def test_the_topics_of_each_timer_topic_come_in_turn() -> None:
    given = rows(["a1", "a2", "a3", "a1", "b1", "a2", "c1", "b2"], [0] * 8)
    source = np.array([0, 1, 0, 1, 2, 0, 3, 2], np.int32)
    given = replace(
        given,
        source_partitions=[("a", 0), ("a", 1), ("b", 0), ("c", 0)],
        source_partition=source,
    )
    found = used_topics(given)
    assert set(found[:3]) == {"a1", "b1", "c1"}
    assert sorted(found) == ["a1", "a2", "a3", "b1", "b2", "c1"]
    assert found[-1] == "a3"


def test_groups_hold_every_row_once_in_order() -> None:
    chance = random.Random(1)
    hashes = [chance.choice([NO_KEY, chance.randrange(2**31)]) for _ in range(1_000)]
    asked = [chance.choice([NO_PARTITION, NO_PARTITION, 0, 2]) for _ in hashes]
    given = rows(["orders", "bills"] * 500, asked)
    given = replace(given, key_hash=np.array(hashes, np.int32))
    routed, groups, order = grouped(given, TARGETS, chance)

    assert sorted(routed.origin_offset.tolist()) == list(range(1_000))
    assert order.tolist() == routed.origin_offset.tolist()
    assert [g.first for g in groups] == [0, *[g.end for g in groups[:-1]]]
    assert len({(g.topic, g.partition) for g in groups}) == len(groups)
    without_key = set()
    for group in groups:
        members = routed.slice(group.first, group.end).origin_offset.tolist()
        assert members == sorted(members)
        for row in members:
            assert ["orders", "bills"][row % 2] == group.topic
            if asked[row] != NO_PARTITION:
                assert group.partition == asked[row]
            elif hashes[row] != NO_KEY:
                assert group.partition == hashes[row] % TARGETS[group.topic].partitions
            else:
                without_key.add((group.topic, group.partition))
    assert len(without_key) == 2, "one partition for all free rows of a topic"


@pytest.mark.parametrize("seed", range(30))
def test_cuts_make_the_longest_parts_within_the_bound(seed: int) -> None:
    """In one pass, against a loop over the rows; writes are sorted by partition, not by row."""
    dice = random.Random(seed)
    count, bound = dice.choice([1, 5, 200]), dice.choice([1, 2, 7, 40])
    of = [
        set(dice.choices(range(dice.choice([2, 60])), k=dice.choice([1, 1, 2])))
        for _ in range(count)
    ]
    writes = [(row, partition) for row, each in enumerate(of) for partition in each]
    dice.shuffle(writes)
    row, partition = np.array(writes).T

    expected, now = list[int](), set[int]()
    for number, each in enumerate(of):
        if now and len(now | each) > bound:
            expected.append(number)
            now = set()
        now |= each
    assert narrow_cuts(Writes(row, partition), bound) == expected
