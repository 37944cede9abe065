"""The position of a shard as a value: after a chunk, and impossible ones."""

from __future__ import annotations

import pytest
from tests.harness.timer_rows import TIMER_TOPIC

from duewheel.checkpoints.commit_and_close_pages import Close
from duewheel.wheel.dequeue.position import Position

P, Q = (TIMER_TOPIC, 0), (TIMER_TOPIC, 1)
CLOSE = Close(5, {P: 10, Q: 20}, 9, {P: 15, Q: 25})


def test_the_chunks_of_a_slot_raise_d_of_each_partition() -> None:
    half = Position(CLOSE, 6).after(6, {P: 12}, {"a": 3, "b": 1})
    assert (half.delivered_slot, half.half_below) == (6, {P: 12})
    assert half.half_rows == {"a": 3, "b": 1}
    more = half.after(6, {Q: 22}, {"a": 5})
    assert (more.delivered_slot, more.half_below) == (6, {P: 12, Q: 22})
    assert more.half_rows == {"a": 5, "b": 1}, "a topic may have no row in a chunk"
    assert more.after(6, {P: 11}, {"a": 6}).half_below == {P: 12, Q: 22}


def test_d_is_of_one_slot_only() -> None:
    half = Position(CLOSE, 6).after(6, {P: 12}, {"a": 3})
    next_one = half.after(7, {Q: 22}, {"b": 1})
    assert (next_one.half_below, next_one.half_rows) == ({Q: 22}, {"b": 1})
    whole = half.after(9, None)
    assert (whole.delivered_slot, whole.half_below, whole.half_rows) == (9, {}, {})
    assert whole.at_floor
    assert not half.at_floor


@pytest.mark.parametrize("r", [4, 10])
def test_r_lies_in_the_closed_range(r: int) -> None:
    with pytest.raises(AssertionError, match="R outside of its range"):
        Position(CLOSE, r)


def test_no_open_slot_is_half_delivered() -> None:
    with pytest.raises(AssertionError, match="an open slot half delivered"):
        Position(CLOSE, 9, {P: 12})
