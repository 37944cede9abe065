"""The partition of each row, as Kafka's clients choose it."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
from tests.harness.deliveries import rows

from duewheel.schemas.batches import NO_KEY, NO_PARTITION
from duewheel.wheel.dequeue.partitioner import grouped
from duewheel.wheel.encoded import Target

TARGETS = {"orders": Target(5, 10_000), "bills": Target(3, 10_000)}


def test_groups_hold_every_row_once_in_order() -> None:
    chance = random.Random(1)
    hashes = [chance.choice([NO_KEY, chance.randrange(2**31)]) for _ in range(1_000)]
    asked = [chance.choice([NO_PARTITION, NO_PARTITION, 0, 2]) for _ in hashes]
    given = rows(["orders", "bills"] * 500, asked)
    given = replace(given, key_hash=np.array(hashes, np.int32))
    routed, groups = grouped(given, TARGETS, chance)

    assert sorted(routed.origin_offset.tolist()) == list(range(1_000))
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
