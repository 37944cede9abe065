"""A standby of a world's shard, on real files, for tests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.harness.recovery_world import RecoveryWorld, half_delivered
from tests.harness.timer_rows import TIMER_TOPIC

from duewheel.checkpoints.local_state import RecoveryRecord
from duewheel.checkpoints.process_role import Role
from duewheel.checkpoints.state_file import State
from duewheel.schemas.batches import TopicPartition
from duewheel.wheel.dequeue.standby import Follower
from duewheel.wheel.storage.data_directory import DataDirectory


class Standby:
    """Another directory beside a world's own, that follows it."""

    def __init__(self, world: RecoveryWorld, path: Path, chunk_records: int = 2) -> None:
        self.world = world
        self.path = path
        self.config = replace(world.config, chunk_records=chunk_records)
        self.shard = world.beside(path, self.config)
        self.follow()

    def follow(self) -> Follower:
        """Start the follower; the first look begins."""
        self.directory = DataDirectory.start(self.path, self.world.wheel, Role.DEQUEUE)
        world = self.world
        self.follower = Follower(self.directory, world.publisher, world.clock, self.config)
        assert self.follower.tick() is None
        return self.follower

    @property
    def state(self) -> State:
        return self.directory.state

    def case(self) -> tuple[str, str]:
        record = RecoveryRecord.read(self.path)
        assert record is not None
        return record.case, record.keep.name.lower()

    def ingest(self, rows: int = 1_000) -> bool:
        """A batch of up to `rows` per partition; whether something of it has to wait."""
        engine = self.shard.ingest or self.shard.start_ingest()
        batch, ends = [], {}
        for number, timers in self.world.kafka.items():
            partition: TopicPartition = (TIMER_TOPIC, number)
            begin = engine.marks.get(partition, 0)
            batch += timers[begin : begin + rows]
            ends[partition] = min(begin + rows, len(timers))
        return self.shard.append(batch, ends).ahead

    def kill(self) -> None:
        self.shard.kill(Role.INGEST)
        self.directory.close()

    def take_over(self, *, promoted: bool = True) -> None:
        """The follower's process starts the loop; ingest runs on."""
        self.directory.close()
        self.shard.start_dequeue(take_over=promoted)

    def become_the_world(self) -> None:
        """The old owner is gone."""
        self.world.kill()
        self.world.shard = self.shard

    def finish(self) -> None:
        """It takes over, the old owner is gone, and each timer has left once."""
        self.take_over()
        self.become_the_world()
        self.world.finish()


def half_way(world: RecoveryWorld, path: Path) -> Standby:
    """A standby that has heard that a slot is half delivered."""
    standby = Standby(world, path / "standby")
    half_delivered(world)
    standby.follower.tick()
    return standby


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RecoveryWorld:
    return RecoveryWorld(tmp_path, monkeypatch)


def marks_of(state: State) -> dict[TopicPartition, int]:
    return dict(state.commit().marks)
