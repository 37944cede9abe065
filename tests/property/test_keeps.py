"""The timers that are dropped because another one is pending, against the rule, one at a time."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from duewheel.wheel.append.keeps import NEVER, NOT_PENDING, dropped


def one_at_a_time(rows: list[tuple[int, int, int, bool]]) -> list[bool]:
    """Group, offset, until and whether it keeps, of each timer."""
    result = [False] * len(rows)
    for x in sorted(range(len(rows)), key=lambda x: rows[x][1]):
        group, offset, _, keeps = rows[x]
        result[x] = keeps and any(
            rows[t][0] == group and rows[t][1] < offset < rows[t][2] and not result[t]
            for t in range(len(rows))
        )
    return result


@pytest.mark.parametrize("seed", range(4))
def test_all_at_once_is_one_at_a_time(seed: int) -> None:
    random = Random(seed)
    for _ in range(500):
        rows = []
        for at in random.sample(range(40), random.randint(0, 25)):
            # An end may lie between two others: a handle stops one timer, an id stops all.
            until = random.choice([NOT_PENDING, NEVER, *range(at + 1, 42)])
            rows.append((random.randint(0, 2), at, until, random.random() < 0.7))
        columns = np.array(rows, np.int64).reshape(-1, 4)
        group, offset, until_of, keeps = columns.T
        found = dropped(group, offset, until_of, keeps > 0)
        assert found.tolist() == one_at_a_time(rows), rows


def test_work_does_not_grow_with_the_product_of_timers() -> None:
    """Each of these stays, as the one before it has just been cancelled: a chain of 100,000."""
    count = 100_000
    offset = np.arange(count) * 2
    group, keeps = np.zeros(count, np.int64), np.ones(count, np.bool_)
    assert not dropped(group, offset, offset + 1, keeps).any()
    assert dropped(group, offset, np.full(count, NEVER), keeps).sum() == count - 1
