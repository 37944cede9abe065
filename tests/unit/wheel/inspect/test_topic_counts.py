"""Counts of targets against a plain count, whatever producers choose and in whatever order."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duewheel.schemas.arrays import Int64
from duewheel.wheel.inspect import topic_counts
from duewheel.wheel.inspect.topic_counts import TopicCounts

KEPT, ORDERS = 10, 1_000_000


@pytest.fixture(autouse=True, scope="module")
def _few() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topic_counts, "TARGETS_KEPT", KEPT)
        yield


class PlainTargets:
    """The timers of each target; position n of the log has the target `log[n]`."""

    def __init__(self) -> None:
        self.log: list[int] = []
        self.left: Counter[int] = Counter()

    def add(self, counts: TopicCounts, hashes: list[int]) -> None:
        counts.add(integers(hashes), np.arange(len(hashes)) + len(self.log))
        self.log += hashes
        self.left.update(hashes)

    def drop(self, counts: TopicCounts, hashes: list[int]) -> None:
        counts.drop(integers(hashes), np.ones(len(hashes), np.int64))
        self.left.subtract(hashes)

    def judge(self, counts: TopicCounts) -> None:
        hashes, found, positions = counts.table.tolist()
        assert hashes == sorted(set(hashes))
        assert len(hashes) <= KEPT
        assert [self.log[position] for position in positions] == hashes
        low_by = Counter(self.left)
        low_by.subtract(dict(zip(hashes, found, strict=True)))
        bound = len(self.log) / (KEPT + 1) if len(set(self.log)) > KEPT else 0
        assert all(0 <= missing <= bound for missing in low_by.values())


def integers(values: list[int]) -> Int64:
    return np.array(values, np.int64)


@given(st.randoms(use_true_random=False), st.sampled_from([KEPT, KEPT + 1, 200]))
def test_counts_are_low_by_a_bound_and_exact_for_few_targets(
    chance: random.Random, targets: int
) -> None:
    counts, plain = TopicCounts(), PlainTargets()
    for _ in range(20):
        left = list(plain.left.elements())
        if chance.random() < 0.7:
            some = [chance.randrange(targets) for _ in range(chance.choice([1, 5, 300]))]
            plain.add(counts, some)
        else:
            plain.drop(counts, chance.sample(left, chance.randint(0, len(left))))
        plain.judge(counts)


def test_invented_names_do_not_hide_a_target_that_comes_little_by_little() -> None:
    """Ten of them have more timers than it has each time: to keep the ten largest would lose it."""
    counts, plain = TopicCounts(), PlainTargets()
    plain.add(counts, [*range(KEPT)] * 5)
    for turn in range(1, 201):
        plain.add(counts, [ORDERS] * 3 + [*range(turn * 15, turn * 15 + 15)])
        plain.judge(counts)
    hashes, found, _ = counts.table.tolist()
    assert found[hashes.index(ORDERS)] > 200
