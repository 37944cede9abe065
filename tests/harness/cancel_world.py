"""A shard on real files whose timers are cancelled, and what comes of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tests.harness.timer_rows import P0, P1, ends_of

from duewheel.checkpoints.role import Role
from duewheel.schemas.batches import TopicPartition
from duewheel.testing import (
    LocalShard,
    ManualClock,
    RecordingPublisher,
    TimerRow,
    answer_value,
    chases_in,
)
from duewheel.wheel.dequeue_config import DequeueConfig
from duewheel.wheel.slots import WheelConfig

NOW_MS = 1_800_000_000_000
PRECISION_MS = 10
REPLIES = "replies"


class CancelWorld:
    """A started shard, and what its publisher has kept."""

    def __init__(self, path: Path, **settings: Any) -> None:
        slots = settings.pop("slots", 64)
        self.wheel = WheelConfig(PRECISION_MS, slots, window_ms=slots * PRECISION_MS, margin_ms=0)
        self.clock = ManualClock(NOW_MS)
        self.publisher = RecordingPublisher(self.clock)
        self.config = DequeueConfig(
            0, 1, {"precision": PRECISION_MS}, **{"reply_topic": REPLIES, **settings}
        )
        self.shard = LocalShard(path, self.wheel, self.publisher, self.clock, self.config)
        self.shard.start_dequeue({P0: 0, P1: 0})
        self.engine = self.shard.start_ingest()
        self.path = path
        self.drain()  # Kafka says where the partitions end

    def lose_files(self, path: Path, reads_from: Mapping[TopicPartition, int]) -> None:
        """Both are killed, and others take over in an empty directory.

        Args:
            path: the directory.
            reads_from: offsets by the time from which timers are read again.
        """
        for role in Role:
            self.shard.kill(role)
        self.shard = LocalShard(path, self.wheel, self.publisher, self.clock, self.config)
        self.shard.offsets_at = lambda _: dict(reads_from)
        self.shard.start_dequeue(take_over=True)
        self.engine = self.shard.start_ingest()
        self.path = path

    def append(self, *timers: TimerRow) -> None:
        self.shard.append(timers, ends_of(timers))

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
        """Of all that has left but replies and chases."""
        return [
            source.as_py().decode()
            for deliveries, _ in self.publisher.committed
            if deliveries is not None
            for source, answer in zip(deliveries.source, deliveries.answer.tolist(), strict=True)
            if not answer
        ]

    def answers(self) -> list[tuple[str, str]]:
        """Source and word of each, in the order in which they have left."""
        return [(value["source"], value["answer"]) for value in self.values()]

    def values(self) -> list[dict[str, str]]:
        found = []
        for deliveries, _ in self.publisher.committed:
            if deliveries is None:
                continue
            replies = np.flatnonzero(deliveries.answer & ~deliveries.rolled).tolist()
            found += [answer_value(deliveries.key_value[row].as_py()) for row in replies]
        return found

    def chases(self) -> list[TimerRow]:
        """All that have left so far."""
        committed = [d for d, _ in self.publisher.committed if d is not None]
        return [chase for deliveries in committed for chase in chases_in(deliveries)]

    def answered(self, partition: TopicPartition = P0) -> int:
        """`a`, as committed last."""
        return self.publisher.committed[-1][1].partitions[partition].replied_below


def timer(offset: int, slot: int, *, partition: int = 0, **more: Any) -> TimerRow:
    return TimerRow(partition, offset, NOW_MS + slot * PRECISION_MS, timer_id=b"a", **more)


def cancel(offset: int, *, partition: int = 0, timer_id: bytes = b"a") -> TimerRow:
    return TimerRow(partition, offset, 0, timer_id=timer_id, request="cancel")
