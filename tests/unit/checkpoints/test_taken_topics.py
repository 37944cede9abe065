"""A shard's timer topics from its files, before the topics in Kafka are listed."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.harness.publishers import RecordingPublisher
from tests.harness.state_pages import damage_both_commits
from tests.harness.timer_rows import TIMER_TOPIC, TimerRow
from tests.harness.timer_shard import TimerShard

from duewheel.checkpoints.process_role import Role
from duewheel.checkpoints.state_file import State
from duewheel.checkpoints.taken_topics import TakenTopics
from duewheel.errors import CorruptFile
from duewheel.testing import ManualClock
from duewheel.wheel.dequeue_config import DequeueConfig
from duewheel.wheel.slots import WheelConfig

WHEEL = WheelConfig(precision_ms=10, slots=64, window_ms=640, margin_ms=0)
ID = {TIMER_TOPIC: "id 1"}


@pytest.fixture
def shard(tmp_path: Path) -> TimerShard:
    clock = ManualClock()
    config = DequeueConfig(0, 1, {})
    made = TimerShard(tmp_path / "data", WHEEL, RecordingPublisher(clock), clock, config)
    made.start_dequeue({(TIMER_TOPIC, 0): 0, ("of the progress", 0): 0})
    made.start_ingest(ID)
    return made


def state(shard: TimerShard) -> State:
    return shard.directory(Role.INGEST).state


def test_what_was_taken_and_what_the_progress_names(shard: TimerShard) -> None:
    shard.append([], {(TIMER_TOPIC, 0): 0, ("of the marks", 3): 0})
    assert TakenTopics.of(state(shard)) == TakenTopics(
        {TIMER_TOPIC: 1, "of the progress": 1, "of the marks": 1}, ID
    )


def test_a_standby_follows_its_owner(shard: TimerShard) -> None:
    state(shard).set_standby(on=True)
    assert TakenTopics.of(state(shard)).only


def test_a_commit_page_that_cannot_be_read_says_nothing(shard: TimerShard) -> None:
    """A recovery sees to it, and has to know where to read."""
    shard.append([TimerRow(0, 0, 1_800_000_000_000)], {(TIMER_TOPIC, 0): 1})
    damage_both_commits(shard.path)
    with pytest.raises(CorruptFile, match="neither"):
        state(shard).commit()
    assert TakenTopics.of(state(shard)).topics == {TIMER_TOPIC, "of the progress"}
