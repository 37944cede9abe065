"""The declarations of facts: each names what its view and runtime/shard_facts.py have."""

from __future__ import annotations

import string
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel
from tests.harness.local_world import NOW_MS, LocalWorld
from tests.harness.served import settings_of
from tests.harness.timer_rows import P0, TimerRow

from duewheel.api.fact import Fact, exported
from duewheel.api.shard import ShardView
from duewheel.api.timers import PendingStats
from duewheel.checkpoints.quota_waiting import QuotaWaiting
from duewheel.checkpoints.state_file import State
from duewheel.checkpoints.timer_topics_file import TopicSet
from duewheel.ops.shard.status import read_status
from duewheel.runtime.configured_facts import ConfiguredFacts
from duewheel.testing import ManualClock


def views(view: object) -> Iterator[type[BaseModel]]:
    """A view, and those in it."""
    if isinstance(view, type) and issubclass(view, BaseModel):
        yield view
        for field in view.model_fields.values():
            yield from views(field.annotation)
    for each in get_args(view):
        yield from views(each)


def declared() -> list[tuple[type[BaseModel], Fact]]:
    return [
        (view, each)
        for view in dict.fromkeys([*views(ShardView), *views(PendingStats)])
        for field in view.model_fields.values()
        for each in field.metadata
        if isinstance(each, Fact)
    ]


def test_sentences_and_phrases_name_fields_of_their_view() -> None:
    facts = declared()
    assert len(facts) > 30
    for view, each in facts:
        for text in (*dict(each.sentences).values(), each.says):
            names = {name for _, name, _, _ in string.Formatter().parse(text) if name}
            assert all(hasattr(view, n) or n in view.model_fields for n in names - {"key", "value"})


def test_no_metric_is_declared_twice_and_each_has_a_sentence_of_help() -> None:
    found = [*exported(ShardView), *exported(PendingStats)]
    names = [each.gauge.name for each in found]
    assert len(names) == len(set(names)) > 30
    assert all(not each.help[0].islower() and each.help.endswith(".") for each in found)


@pytest.mark.parametrize("standby", [False, True])
def test_each_metric_can_be_measured(tmp_path: Path, *, standby: bool) -> None:
    settings = settings_of(tmp_path, quotas={"timers": 20})
    data_dir = settings.storage.data_dir
    world = LocalWorld(data_dir, settings.wheel, starts={P0: 0})
    world.append(TimerRow(0, 1, NOW_MS + 5_000))
    world.stop()
    TopicSet(("timers",), {"orders": "no right"}).write(data_dir)
    QuotaWaiting(NOW_MS, {P0: (1, 41)}).write(data_dir)
    with State.open(data_dir) as state:
        state.set_standby(on=standby)
        facts = ConfiguredFacts(state, NOW_MS, settings, lambda: 1)
        known = {each.gauge.name: each.value(facts) for each in exported(ShardView)}
    assert known["standby"] == standby
    assert known["pending"] == 1
    assert (known["quota_waiting"], known["quota_waiting_seconds"]) == (
        {"timers": 40},
        {"timers": 2},
    )
    assert known["timer_topics_left_out"] == {"orders": "no right"}
    assert (known["standby_behind_seconds"] is None) != standby
    # A view has the numbers of the metrics.
    found = read_status(settings, ManualClock(NOW_MS))
    assert (found.pending, found.quotas["timers"].waiting) == (1, 40)
