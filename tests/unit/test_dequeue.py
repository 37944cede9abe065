"""The dequeue loop: what is closed, what is delivered, what is written about it, and where it goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from duewheel.checkpoints.recovery import RecoveryRecord
from duewheel.checkpoints.state import Close
from duewheel.errors import CorruptFile, Fenced, Locked, PublishDoubt, RecoveryRefused
from duewheel.schemas.timers import TopicPartition
from duewheel.testing import TIMER_TOPIC, LocalShard, ManualClock, RecordingPublisher, Timer
from duewheel.wheel import data_directory
from duewheel.wheel.data_directory import Role
from duewheel.wheel.dequeue import Dequeue, DequeueConfig
from duewheel.wheel.layout import WheelConfig

P0: TopicPartition = (TIMER_TOPIC, 0)
P1: TopicPartition = (TIMER_TOPIC, 1)
NOW_MS = 1_800_000_000_000
PRECISION_MS = 10
SLOT = NOW_MS // PRECISION_MS  # closed at the start


class World:
    """A started shard and what it stands on."""

    def __init__(self, path: Path, slots: int, chunk_records: int) -> None:
        self.wheel = WheelConfig(PRECISION_MS, slots, window_ms=slots * PRECISION_MS, margin_ms=0)
        self.clock = ManualClock(NOW_MS)
        self.publisher = RecordingPublisher()
        self.config = DequeueConfig(0, 1, {"precision": PRECISION_MS}, chunk_records)
        self.shard = LocalShard(path, self.wheel, self.publisher, self.clock, self.config)
        self.dequeue = self.shard.start_dequeue({P0: 0, P1: 0})
        self.engine = self.shard.start_ingest()

    @property
    def state(self):  # type: ignore[no-untyped-def]
        return self.shard.directory(Role.INGEST).state

    def append(self, *timers: Timer) -> None:
        """In the order of their offsets, marks behind the last of each partition."""
        ends = {}
        for timer in timers:
            ends[TIMER_TOPIC, timer.partition] = timer.offset + 1
        self.shard.append(timers, ends)

    def at_slot(self, slot: int) -> None:
        """The clock says that slots up to SLOT + `slot` may be closed."""
        self.clock.set(NOW_MS + slot * PRECISION_MS)

    def drain(self) -> None:
        assert self.shard.dequeue is not None
        while self.shard.dequeue.tick():
            pass

    def sources(self) -> list[str]:
        return [source.decode() for source in self.publisher.sources()]

    def progress(self) -> dict[int, tuple[int, int, int | None, int | None]]:
        """Per partition: R (from SLOT), C, C1, D as last committed."""
        return {
            number: (p.r - SLOT, p.c, p.c1, p.d)
            for (_, number), p in self.publisher.committed[-1][1].partitions.items()
        }


MakeWorld = Callable[..., World]


@pytest.fixture
def make_world(tmp_path: Path) -> MakeWorld:
    def make(slots: int = 64, chunk_records: int = 100) -> World:
        return World(tmp_path / "data", slots, chunk_records)

    return make


def timer(partition: int, offset: int, slot: int) -> Timer:
    """Due at the very end of SLOT + `slot`."""
    return Timer(partition, offset, NOW_MS + slot * PRECISION_MS)


def test_a_range_longer_than_the_ring_is_scanned(make_world: MakeWorld) -> None:
    world = make_world(slots=8)
    world.append(timer(0, 0, 3), timer(0, 1, 9))
    world.at_slot(1_000)
    world.drain()
    assert world.sources() == ["timers-0@0", "timers-0@1"]


def test_a_kill_in_the_middle_of_a_slot_loses_and_doubles_nothing(make_world: MakeWorld) -> None:
    world = make_world(chunk_records=2)
    world.append(*(timer(offset % 2, offset, 1) for offset in range(7)))
    world.at_slot(1)
    assert world.dequeue.tick() and world.dequeue.tick()
    assert world.progress() == {0: (0, 0, 7, 3), 1: (0, 0, 6, 4)}
    world.shard.kill(Role.DEQUEUE)
    world.shard.start_dequeue()
    world.drain()
    assert world.sources() == [f"timers-{offset % 2}@{offset}" for offset in range(7)]
    assert world.progress() == {0: (1, 7, None, None), 1: (1, 6, None, None)}
    assert world.state.mirror()[:2] == (SLOT + 1, world.state.commit().placed)


def test_an_entry_that_names_another_slot_s_record_is_damage(make_world: MakeWorld) -> None:
    world = make_world()
    world.append(timer(0, 0, 1), timer(0, 1, 9))
    wheel = world.shard.directory(Role.INGEST).wheel
    first, later = (SLOT + 1) % wheel.ring, (SLOT + 9) % wheel.ring
    for name in ("first_pos", "last_pos"):
        wheel._entries[name][first] = wheel._entries[name][later]
    world.at_slot(1)
    with pytest.raises(CorruptFile, match=f"slot {SLOT + 1} leads to a record of slot {SLOT + 9}"):
        world.dequeue.tick()
    assert world.sources() == []
