"""Cancels and reschedules: whom they meet, what they are told, and for how long they are kept."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from duewheel.schemas.timers import TopicPartition
from duewheel.schemas.varint import read_varint
from duewheel.testing import TIMER_TOPIC, LocalShard, ManualClock, RecordingPublisher, Timer
from duewheel.wheel.data_directory import Role
from duewheel.wheel.dequeue_config import DequeueConfig
from duewheel.wheel.layout import WheelConfig

P0: TopicPartition = (TIMER_TOPIC, 0)
P1: TopicPartition = (TIMER_TOPIC, 1)
NOW_MS = 1_800_000_000_000
PRECISION_MS = 10
REPLIES = "replies"


class World:
    """A started shard, and what its publisher has kept."""

    def __init__(self, path: Path, **settings: Any) -> None:
        slots = settings.pop("slots", 64)
        self.wheel = WheelConfig(PRECISION_MS, slots, window_ms=slots * PRECISION_MS, margin_ms=0)
        self.clock = ManualClock(NOW_MS)
        self.publisher = RecordingPublisher(self.clock)
        config = DequeueConfig(
            0, 1, {"precision": PRECISION_MS}, **{"reply_topic": REPLIES, **settings}
        )
        self.shard = LocalShard(path, self.wheel, self.publisher, self.clock, config)
        self.shard.start_dequeue({P0: 0, P1: 0})
        self.engine = self.shard.start_ingest()
        self.path = path

    def append(self, *timers: Timer) -> None:
        ends = {}
        for timer in timers:
            ends[TIMER_TOPIC, timer.partition] = timer.offset + 1
        self.shard.append(timers, ends)

    def at_slot(self, slot: int) -> None:
        """Slots up to this one may be closed, and all of them are delivered."""
        self.clock.set(NOW_MS + slot * PRECISION_MS)
        self.drain()

    def drain(self) -> None:
        assert self.shard.dequeue is not None
        while self.shard.dequeue.tick():
            pass

    def restart(self, *roles: Role) -> None:
        for role in roles:
            self.shard.kill(role)
        if Role.DEQUEUE in roles:
            self.shard.start_dequeue()
        if Role.INGEST in roles:
            self.engine = self.shard.start_ingest()

    def sources(self) -> list[str]:
        return [source.decode() for source in self.publisher.sources()]

    def answers(self) -> list[tuple[str, str]]:
        """Source and word of each, in the order in which they have left."""
        return [(value["source"], value["answer"]) for value in self.values()]

    def values(self) -> list[dict[str, str]]:
        found = []
        for deliveries, _ in self.publisher.committed:
            if deliveries is None:
                continue
            for row in np.flatnonzero(deliveries.answer).tolist():
                data = deliveries.key_value[row].as_py()
                size, at = read_varint(data, 0)
                size, at = read_varint(data, at + max(size, 0))
                found.append(json.loads(data[at : at + size]))
        return found

    def known(self) -> tuple[int, int]:
        """Live and remembered cancels."""
        assert self.shard.dequeue is not None
        counts = self.shard.dequeue.cancel_counts
        return counts.live, counts.remembered

    def progress(self, partition: TopicPartition = P0) -> tuple[int | None, int]:
        """K and a, as committed last."""
        part = self.publisher.committed[-1][1].partitions[partition]
        return part.k, part.a


MakeWorld = Callable[..., World]


@pytest.fixture
def make_world(tmp_path: Path) -> MakeWorld:
    return lambda **settings: World(tmp_path / "data", **settings)


def timer(offset: int, slot: int, *, partition: int = 0, **more: Any) -> Timer:
    return Timer(partition, offset, NOW_MS + slot * PRECISION_MS, timer_id=b"a", **more)


def cancel(offset: int, *, partition: int = 0, timer_id: bytes = b"a") -> Timer:
    return Timer(partition, offset, 0, timer_id=timer_id, request="cancel")


def test_a_cancelled_timer_does_not_leave_and_its_cancel_is_told(make_world: MakeWorld) -> None:
    world = make_world()
    world.append(timer(0, 5), timer(1, 5, partition=1))
    world.append(cancel(1))
    world.at_slot(1)
    assert world.answers() == [("timers-0@1", "cancelled")]
    world.at_slot(9)
    assert world.sources() == ["timers-1@1"]
    assert world.known() == (0, 1)
    assert world.progress() == (None, 2)
