"""Ingest's side of the wheel: what a batch puts where, what waits, and what dequeue may do meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from duewheel.checkpoints.state import State
from duewheel.errors import Locked, RecoveryRefused
from duewheel.schemas.timers import TopicPartition
from duewheel.testing import (
    TIMER_TOPIC,
    LocalShard,
    ManualClock,
    RecordingPublisher,
    Timer,
    timer_batch,
)
from duewheel.wheel import data_directory
from duewheel.wheel.check import check
from duewheel.wheel.data_directory import DataDirectory, Role
from duewheel.wheel.dequeue import DequeueConfig
from duewheel.wheel.engine import Appended, Engine
from duewheel.wheel.layout import MAGIC_ABANDONED, RECORD, WheelConfig, hour_name

P0: TopicPartition = (TIMER_TOPIC, 0)
P1: TopicPartition = (TIMER_TOPIC, 1)
PRECISION_MS = 10
NOW_MS = 1_800_000_000_000
SLOT = NOW_MS // PRECISION_MS  # closed at the start


class BusyClock(ManualClock):
    """Runs `meanwhile` once when next asked: the engine asks between its slots and its lock."""

    def __init__(self, now_ms: int) -> None:
        super().__init__(now_ms)
        self.meanwhile: Callable[[], object] | None = None

    def now_ms(self) -> int:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        return super().now_ms()


class World:
    """A started shard and what it stands on."""

    def __init__(self, path: Path, slots: int, chunk_records: int) -> None:
        self.wheel = WheelConfig(PRECISION_MS, slots, window_ms=slots * PRECISION_MS, margin_ms=0)
        self.clock = BusyClock(NOW_MS)
        self.publisher = RecordingPublisher()
        config = DequeueConfig(0, 1, {"precision": PRECISION_MS}, chunk_records)
        self.shard = LocalShard(path, self.wheel, self.publisher, self.clock, config)
        self.dequeue = self.shard.start_dequeue({P0: 0, P1: 0})
        self.engine = self.shard.start_ingest()

    @property
    def state(self) -> State:
        return self.shard.directory(Role.INGEST).state

    def append(self, *timers: Timer) -> Appended:
        ends = {}
        for timer in timers:
            ends[TIMER_TOPIC, timer.partition] = timer.offset + 1
        return self.shard.append(timers, ends)

    def at_slot(self, slot: int) -> None:
        """The clock says that slots up to SLOT + `slot` may be closed."""
        self.clock.set(NOW_MS + slot * PRECISION_MS)

    def drain(self) -> None:
        while self.dequeue.tick():
            pass

    def offsets(self) -> list[int]:
        return [int(source.rpartition(b"@")[2]) for source in self.publisher.sources()]


MakeWorld = Callable[..., World]


@pytest.fixture
def make_world(tmp_path: Path) -> MakeWorld:
    def make(slots: int = 64, chunk_records: int = 100) -> World:
        return World(tmp_path / "data", slots, chunk_records)

    return make


def timer(partition: int, offset: int, slot: int) -> Timer:
    """Due at the very end of SLOT + `slot`."""
    return Timer(partition, offset, NOW_MS + slot * PRECISION_MS)


def test_rows_of_slots_closed_meanwhile_wait_if_the_earliest_open_slot_does_not_fit(
    make_world: MakeWorld,
) -> None:
    world = make_world(slots=8, chunk_records=1)
    world.append(timer(0, 0, 2), timer(0, 1, 10))

    def close_more_than_a_lap() -> None:
        world.at_slot(25)
        assert world.dequeue.tick()  # delivers offset 0 only

    world.clock.meanwhile = close_more_than_a_lap
    # Slot 26 has the entry of slot 10, which is not delivered.
    assert world.append(timer(0, 2, 1)) == Appended(0, waiting=True)
    assert world.engine.marks[P0] == 2
    world.drain()
    assert world.append(timer(0, 2, 1)) == Appended(1, waiting=False)
    world.at_slot(26)
    world.drain()
    assert world.offsets() == [0, 1, 2]
    assert check(world.shard.path, world.wheel).findings == []
