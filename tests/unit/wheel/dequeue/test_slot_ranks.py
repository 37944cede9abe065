"""Ranks of rows in their slots: the same however the rows are cut into chunks."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from duewheel.wheel.dequeue.slot_ranks import RankCounter


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 2), st.booleans()), min_size=1, max_size=60
    ),
    st.lists(st.integers(0, 60)),
    st.dictionaries(st.tuples(st.sampled_from("abc"), st.integers(0, 5)), st.integers(1, 9)),
)
def test_places_are_the_same_however_the_rows_are_cut(
    row_list: list[tuple[int, int, bool]], cuts: list[int], out: Mapping[tuple[str, int], int]
) -> None:
    """Each topic has its own."""
    slot = np.cumsum([step for step, _, _ in row_list])
    topic = np.array([number for _, number, _ in row_list])
    counted = np.array([known for _, _, known in row_list])
    expected, seen = [], dict(out)
    for s, number, known in zip(slot.tolist(), topic.tolist(), counted.tolist(), strict=True):
        place = "abc"[number], s
        expected.append(seen.get(place, 0))
        seen[place] = seen.get(place, 0) + known
    places, found = RankCounter(out), []
    bounds = sorted({0, len(slot), *(cut for cut in cuts if cut < len(slot))})
    for first, end in itertools.pairwise(bounds):
        part = slice(first, end)
        found += places.of(slot[part], "abc", topic[part], counted[part]).tolist()
    assert found == expected
