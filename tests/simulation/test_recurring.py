"""Histories of recurring schedules, judged."""

from __future__ import annotations

import pytest
from tests.simulation.recurring import judged, run

from duewheel.recurring import scheduler
from duewheel.recurring.schedule import FiringPosition
from duewheel.recurring.steps import without


@pytest.mark.parametrize("first", range(0, 24, 6))
def test_each_instant_leaves_once(first: int) -> None:
    left = 0
    for seed in range(first, first + 6):
        cluster, covered = run(seed)
        assert judged(cluster, covered) == [], f"seed {seed}"
        left += sum(each.state == "left" for each in cluster.firings)
    assert left > 500


@pytest.mark.crash_matrix
@pytest.mark.parametrize("first", range(1_000, 3_000, 100))
def test_many_histories(first: int) -> None:
    for seed in range(first, first + 100):
        assert judged(*run(seed)) == [], f"seed {seed}"


def _forgetful(position: FiringPosition, cancelled: frozenset[int]) -> FiringPosition:
    return without(position, {at for at, _ in position.ahead})


def _timid(position: FiringPosition, cancelled: frozenset[int]) -> FiringPosition:
    return without(position, set())


@pytest.mark.parametrize("rule", [_forgetful, _timid], ids=["fires again", "never fires"])
def test_the_judge_finds_a_scheduler_that_ignores_the_replies(
    rule: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "without", rule)
    assert any(judged(*run(seed)) for seed in range(40))
