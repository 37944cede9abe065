"""Where batches end, and who reads what of them."""

from __future__ import annotations

import pytest

from duewheel.streaming.source import Offsets, from_json, limited, shared, to_json

A, B, C = ("a", 0), ("a", 1), ("b", 0)


@pytest.mark.parametrize(
    ("ends", "rows_max", "wanted"),
    [
        ({A: 17, B: 5}, 100, {A: 17, B: 5}),
        ({A: 17, B: 5}, 15, {A: 17, B: 5}),
        ({A: 17, B: 5}, 6, {A: 11, B: 2}),
        ({A: 17, B: 1}, 6, {A: 13, B: 1}),
        ({A: 1_000_007, B: 1}, 1, {A: 8, B: 1}),
        ({A: 7, B: 0}, 6, {A: 7, B: 0}),
    ],
)
def test_a_batch_is_limited_and_no_partition_stands_still(
    ends: Offsets, rows_max: int, wanted: Offsets
) -> None:
    assert limited({A: 7, B: 0}, ends, rows_max) == wanted


@pytest.mark.parametrize("rows_max", [1, 100])
def test_a_log_that_has_lost_its_end_is_not_taken_for_an_idle_one(rows_max: int) -> None:
    """The sink refuses an end that falls; what is written there now would be skipped."""
    assert limited({A: 7, B: 0}, {A: 3, B: 9}, rows_max)[A] == 3


def test_few_rows_are_read_by_one_task() -> None:
    (only,) = shared({A: (0, 10), B: (5, 6), C: (0, 1)}, 4)
    assert only.ranges == {A: (0, 10), B: (5, 6), C: (0, 1)}


def test_many_rows_are_shared_and_no_partition_is_divided() -> None:
    ranges = {A: (0, 5_000), B: (0, 3_000), C: (100, 2_300)}
    assert [share.ranges for share in shared(ranges, 2)] == [
        {A: (0, 5_000)},
        {B: (0, 3_000), C: (100, 2_300)},
    ]


def test_nothing_to_read_needs_no_task() -> None:
    assert shared({}, 4) == []


def test_offsets_as_spark_keeps_them() -> None:
    offsets = {C: 3, A: 0, B: 12}
    assert from_json(to_json(offsets)) == offsets
    assert to_json(offsets) == {"a": {"0": 0, "1": 12}, "b": {"0": 3}}
