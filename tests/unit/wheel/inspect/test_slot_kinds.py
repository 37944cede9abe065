"""Counts by slot and kind against a plain count, in any order of additions and departures."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from duewheel.schemas.arrays import Int64
from duewheel.schemas.batches import LEVEL_MAX
from duewheel.wheel.inspect.slot_kinds import (
    NONE,
    TOPIC_BITS,
    SlotKinds,
    kinds_of,
    levels_of,
    topics_of,
)

LEVELS, TOPICS = (0, 1, 7, LEVEL_MAX), (0, 1, 2**32 - 1)
KINDS = kinds_of(np.repeat(LEVELS, len(TOPICS)), np.tile(TOPICS, len(LEVELS)))


class PlainCounts:
    """Each timer by itself; the places below `half` have left."""

    def __init__(self) -> None:
        self.half = 0
        self.timers: list[tuple[int, int]] = []  # place, kind

    def kinds_at(self, place: int) -> list[int]:
        return [kind for at, kind in self.timers if at == place]

    def first_of_levels(self, out: list[int]) -> dict[int, int]:
        half_left = Counter(self.kinds_at(self.half)) - Counter(out)
        left = [(at, kind) for at, kind in self.timers if at > self.half or half_left[kind]]
        return {
            level: min(at for at, kind in left if kind >> TOPIC_BITS == level)
            for level in {kind >> TOPIC_BITS for _, kind in left}
        }


def integers(values: list[int]) -> Int64:
    return np.array(values, np.int64)


def judge(counts: SlotKinds, plain: PlainCounts, chance: random.Random) -> None:
    """With a chance part of the first place out."""
    at_half = plain.kinds_at(plain.half)
    for count in {0, chance.randint(0, len(at_half)), len(at_half)}:
        out = chance.sample(at_half, count)
        first = counts.first_of_levels(plain.half, integers(out)).tolist()
        found = {level: place for level, place in enumerate(first) if place != NONE}
        assert found == plain.first_of_levels(out)
    lengths = [len(keys) for keys, _ in counts.runs]
    assert all(longer >= 2 * shorter > 0 for longer, shorter in pairwise(lengths))
    assert sum(lengths) <= 2 * len(set(plain.timers))


def drop(counts: SlotKinds, plain: PlainCounts, end: int) -> None:
    kinds, number = counts.drop(end)
    dropped: Counter[int] = Counter()
    for kind, count in zip(kinds.tolist(), number.tolist(), strict=True):
        dropped[kind] += count
    assert dropped == Counter(kind for at, kind in plain.timers if at < end)
    plain.half = end
    plain.timers = [timer for timer in plain.timers if timer[0] >= end]


@given(st.randoms(use_true_random=False))
def test_counts_are_those_of_a_plain_count(chance: random.Random) -> None:
    counts, plain = SlotKinds(), PlainCounts()
    for _ in range(20):
        if chance.random() < 0.7:
            reach = chance.choice([1, 3, 72_000])
            new = [
                (plain.half + chance.randrange(reach), int(chance.choice(KINDS)))
                for _ in range(chance.choice([0, 1, 5, 40]))
            ]
            counts.add(integers([at for at, _ in new]), integers([kind for _, kind in new]))
            plain.timers += new
        else:
            drop(counts, plain, plain.half + chance.choice([0, 1, 2, 30_000]))
        judge(counts, plain, chance)
    drop(counts, plain, plain.half + 20 * 72_000)
    assert counts.runs == []


def test_a_kind_is_a_level_and_the_hash_of_a_topic() -> None:
    assert levels_of(KINDS).tolist() == [level for level in LEVELS for _ in TOPICS]
    assert topics_of(KINDS).tolist() == [*TOPICS] * len(LEVELS)
