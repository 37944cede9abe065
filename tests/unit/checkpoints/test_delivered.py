"""The rule "is this row out", against the words of its module head, a row at a time."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from duewheel.checkpoints.delivered import is_out, placed_slots

R, C, HALF_C = 7, 4, 8


@pytest.mark.parametrize("d", [0, 3, 6, HALF_C])
def test_what_was_placed_up_to_r_is_out_and_of_the_next_slot_what_lies_below_d(d: int) -> None:
    rows = list(itertools.product(range(R - 2, R + 4), range(HALF_C + 2)))
    slot, offset = np.array(rows, np.int64).T
    out = is_out(slot, offset, R, np.full(len(rows), d))
    assert out.tolist() == [s <= R or (s == R + 1 and o < d) for s, o in rows]


@pytest.mark.parametrize("d", [0, 3, 6, HALF_C])
def test_a_row_that_came_after_its_slot_was_closed_lies_in_the_next_one(d: int) -> None:
    """Slot R was closed at C, slot R + 1 at HALF_C."""
    rows = list(itertools.product(range(R - 2, R + 4), range(HALF_C + 2)))
    slot, offset = np.array(rows, np.int64).T
    r, c, below = (np.full(len(rows), number) for number in (R, C, d))
    placed = placed_slots(slot, offset, r, c)
    in_full = [o < C and s <= R for s, o in rows]
    in_half = [o < HALF_C and (s == R + 1 or (s <= R and o >= C)) and o < d for s, o in rows]
    expected = [a or b for a, b in zip(in_full, in_half, strict=True)]
    assert is_out(placed, offset, r, below).tolist() == expected
