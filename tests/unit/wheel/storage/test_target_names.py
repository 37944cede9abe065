"""Target topics are named by producers: their names live and die with the messages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from duewheel.checkpoints.role import Role
from duewheel.testing import (
    TIMER_TOPIC,
    LocalShard,
    ManualClock,
    RecordingPublisher,
    TimerRow,
    timer_batch,
)
from duewheel.wheel.dequeue_config import DequeueConfig
from duewheel.wheel.inspect import pending_counts
from duewheel.wheel.inspect.pending_counts import OTHER, PendingTimers
from duewheel.wheel.slots import WheelConfig
from duewheel.wheel.storage.data_directory import DataDirectory

NOW_MS = 1_800_000_000_000
WHEEL = WheelConfig(50, 4096, window_ms=60_000, margin_ms=0)


class World:
    """A shard whose timers all have targets of their own."""

    def __init__(self, path: Path) -> None:
        self.clock, self.path = ManualClock(NOW_MS), path
        self.publisher = RecordingPublisher(self.clock)
        config = DequeueConfig(0, 1, {"precision": WHEEL.precision_ms}, 50_000, 64 << 20)
        self.shard = LocalShard(path, WHEEL, self.publisher, self.clock, config)
        self.shard.start_dequeue({(TIMER_TOPIC, 0): 0})
        self.shard.start_ingest()
        self.end = 0

    def append(self, count: int, due_ms: int) -> None:
        assert self.shard.ingest is not None
        batch = timer_batch([TimerRow(0, self.end + n, due_ms) for n in range(count)])
        names = [f"none.{self.end + n}" for n in range(count)]
        batch = replace(batch, targets=names, target=np.arange(count, dtype=np.int32))
        self.end += count
        self.shard.ingest.append(batch, {(TIMER_TOPIC, 0): self.end})

    def deliver(self, until_ms: int) -> None:
        assert self.shard.dequeue is not None
        self.clock.sleep((until_ms - self.clock.now_ms()) / 1000)
        for _ in range(20):
            self.shard.dequeue.tick()


def test_names_of_targets_are_gone_with_their_messages(tmp_path: Path) -> None:
    world = World(tmp_path / "data")
    for step in range(1, 4):
        due_ms = NOW_MS + step * 1_000
        world.append(20_000, due_ms)
        world.deliver(due_ms + 100)
    assert len(world.publisher.sources()) == 60_000
    assert (world.path / "topics").stat().st_size < 100  # the timer topic alone
    for role in (Role.INGEST, Role.DEQUEUE):
        assert len(world.shard.directory(role).topics) == 1


def test_pending_timers_are_counted_by_name_up_to_a_bound(tmp_path: Path) -> None:
    world = World(tmp_path / "data")
    for _ in range(3):
        world.append(1_000, NOW_MS + 10_000)
    seen = DataDirectory(world.path, WHEEL)
    found = PendingTimers(seen).count()
    assert (found.total, len(found.by_topic)) == (3_000, pending_counts.TOPICS_MAX + 1)
    assert found.by_topic[OTHER] == 3_000 - pending_counts.TOPICS_MAX
    world.deliver(NOW_MS + 10_100)
    assert PendingTimers(seen).count().by_topic == {}
    seen.close()
