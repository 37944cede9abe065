"""A shard that loses files or progress in a test, and starts again: files real, Kafka recorded."""

from __future__ import annotations

import shutil
import uuid
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.harness.local_world import NOW_MS, PRECISION_MS, STARTS, LocalWorld
from tests.harness.timer_rows import TIMER_TOPIC, TimerRow

from duewheel.checkpoints.fs import FileSystem
from duewheel.checkpoints.local_state import RecoveryRecord
from duewheel.config.settings import Settings, load
from duewheel.runtime.checkpointer import DurableCheckpoints
from duewheel.schemas.batches import TopicPartition
from duewheel.wheel.slots import TimelineKind, WheelConfig
from duewheel.wheel.storage.full_check import check

PARTITIONS = 2


class RecoveryWorld(LocalWorld):
    """A shard, and the Kafka that outlives it.

    Attributes:
        kafka: all timers ever written, by partition; the offset is the index.
        boot: id of the host's boot.
    """

    def __init__(self, path: Path, host: pytest.MonkeyPatch, chunk_records: int = 2) -> None:
        """
        Args:
            path: below which the files are.
            host: where this world's `boot` is the id of the boot.
            chunk_records: of a transaction.
        """
        self.boot = str(uuid.uuid4())
        host.setattr(FileSystem, "boot_id", lambda _: self.boot)
        self.kafka: dict[int, list[TimerRow]] = {p: [] for p in range(PARTITIONS)}
        wheel = WheelConfig(PRECISION_MS, 4096, window_ms=40_000, margin_ms=0)
        super().__init__(
            path / "data",
            wheel,
            chunk_records=chunk_records,
            progress_interval_ms=PRECISION_MS,
        )
        self.shard.offsets_at = lambda _: dict(STARTS)

    def write(self, partition: int, *due_slots: int) -> None:
        """Timers due at the end of slots, counted from the start."""
        timers = self.kafka[partition]
        for slot in due_slots:
            timers.append(TimerRow(partition, len(timers), NOW_MS + slot * PRECISION_MS))

    def ingest(self, rows: int = 1_000) -> None:
        """A batch of up to `rows` per partition."""
        batch, ends = [], {}
        for number, timers in self.kafka.items():
            partition: TopicPartition = (TIMER_TOPIC, number)
            begin = self.engine.marks[partition]
            batch += timers[begin : begin + rows]
            ends[partition] = min(begin + rows, len(timers))
        self.shard.append(batch, ends)

    def checkpoint(self) -> Path:
        """Make the durable checkpoint; returns what would be on the disk then."""
        checkpoints = DurableCheckpoints(self.path)
        checkpoints.write()
        checkpoints.close()
        disk = self.path.with_name("disk")
        shutil.rmtree(disk, ignore_errors=True)
        shutil.copytree(self.path, disk)
        return disk

    def become(self, directory: Path) -> None:
        """Everything is killed, and the files are those of another time."""
        self.kill()
        shutil.rmtree(self.path)
        shutil.copytree(directory, self.path)

    def start(self, *, take_over: bool = False) -> str:
        """Both processes; returns how the start went on."""
        self.shard.start_dequeue(take_over=take_over)
        self.shard.start_ingest()
        record = RecoveryRecord.read(self.path)
        assert record is not None
        return record.case

    def take_timeline(self, kind: TimelineKind) -> None:
        """Its processes have this timeline from their next start on."""
        self.wheel = self.shard.wheel = replace(self.wheel, timeline=kind)

    def restart_with(self, kind: TimelineKind) -> str:
        """Both processes stop and start with this timeline; returns how the start went on."""
        self.stop()
        self.take_timeline(kind)
        return self.start()

    def finish(self) -> None:
        """Everything is delivered, once, in order; the files are whole."""
        for _ in range(3):
            self.ingest()
            self.at_slot(5_000)
        counted = Counter(self.publisher.sources())
        everything = {timer.source.encode() for timers in self.kafka.values() for timer in timers}
        assert {s: n for s, n in counted.items() if n > 1} == {}
        assert everything - counted.keys() == set()
        assert check(self.path, self.wheel).findings == []
        self.kill()


def settings_of_files(world: RecoveryWorld) -> Settings:
    """With which its files are served."""
    timer: dict[str, Any] = {"topics": TIMER_TOPIC, "targets": "*", "slots": 4096, "margin": "0s"}
    timer |= {"precision_ms": PRECISION_MS, "roll_window": "40s"}
    timer["topic"] = {TIMER_TOPIC: {"recurring": True}}
    return load(None, {"timer": timer, "storage": {"data_dir": world.path}})


def rereading(world: RecoveryWorld, timers: int) -> None:
    """It had so many timers of each partition pending, lost its disk, and has yet to read them."""
    for partition in range(PARTITIONS):
        world.write(partition, *range(100, 100 + timers))
    world.ingest()
    world.at_slot(3)
    world.kill()
    shutil.rmtree(world.path)
    world.start(take_over=True)


def half_delivered(world: RecoveryWorld) -> None:
    """Some are delivered, one slot is half delivered, some are pending, some not yet taken."""
    world.write(0, 1, 5, 5, 5, 5, 900, 9)
    world.write(1, 2, 5, 5, 30, 5, 5)
    world.ingest()
    world.at_slot(3)
    world.at_slot(6, ticks=2)
    world.write(0, 4, 4, 8)
    world.write(1, 7)
