"""A seed repeats a plan, and kills lie within the load."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from click.testing import CliRunner

from duewheel.cli.main import cli
from duewheel.errors import ConfigError
from duewheel.prove.own_shard import KINDS
from duewheel.prove.own_topics import require_prefix
from duewheel.prove.plan import ProofPlan, drawn


def test_a_seed_repeats_the_kills() -> None:
    plan = ProofPlan(120, 1_000, 6, 3)
    assert plan.planned_kills() == plan.planned_kills()
    assert plan.planned_kills() != ProofPlan(120, 1_000, 6, 4).planned_kills()


@pytest.mark.parametrize("kills", [0, 1, 5, 40])
def test_kills_lie_within_the_load(kills: int) -> None:
    times = [at_s for at_s, _ in ProofPlan(100, 1_000, kills, 1).planned_kills()]
    assert len(times) == kills and times == sorted(times)
    assert all(20 <= at_s <= 90 for at_s in times)


def test_each_kind_comes_if_there_is_room() -> None:
    assert {kind for _, kind in ProofPlan(100, 1_000, 5, 1).planned_kills()} == set(KINDS)
    assert drawn({"first": 1, "second": 1}, 1, random.Random(1)) == ["first"]
    counts = Counter(drawn({"often": 9, "seldom": 1}, 1_000, random.Random(1)))
    assert 800 < counts["often"] < 980


@pytest.mark.parametrize(("length_s", "window_ms"), [(6, 2_000), (180, 18_000), (9_000, 60_000)])
def test_the_roll_window_follows_the_length(length_s: float, window_ms: int) -> None:
    assert ProofPlan(length_s, 100, 0, 1).window_ms == window_ms


def test_the_command_repeats_the_plan() -> None:
    command = ProofPlan(90, 1_234, 2, 7).command
    assert command == "duewheel prove --minutes 1.5 --timers 1234 --kills 2 --seed 7"
    known = {option for each in cli.commands["prove"].params for option in each.opts}
    assert {word for word in command.split() if word.startswith("--")} <= known


@pytest.mark.parametrize("prefix", ["", "a b", "x" * 201, "../x"])
def test_a_prefix_that_no_topic_can_have_is_refused(prefix: str) -> None:
    with pytest.raises(ConfigError, match="--prefix"):
        require_prefix(prefix)


def test_help_names_what_it_leaves_alone() -> None:
    text = CliRunner().invoke(cli, ["prove", "--help"]).output
    assert "touches nothing else" in " ".join(text.split())
