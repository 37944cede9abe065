"""A shard without Kafka and Spark: engine and loop on real files, in one process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from duewheel.checkpoints.fs import HOST_FS, FileSystem
from duewheel.checkpoints.local_state import RecoveryRecord
from duewheel.checkpoints.process_role import Role
from duewheel.clock import Clock
from duewheel.schemas.batches import TopicPartition
from duewheel.wheel.append.cancel_lookup import CancelLimits
from duewheel.wheel.append.engine import Engine
from duewheel.wheel.dequeue.lifecycle import Dequeue
from duewheel.wheel.dequeue_config import DequeueConfig
from duewheel.wheel.publisher_protocol import Publisher
from duewheel.wheel.recovery.first_offsets import OffsetsAt
from duewheel.wheel.recovery.rebuild import apply_recovery
from duewheel.wheel.recovery.startup import first_progress
from duewheel.wheel.slots import WheelConfig
from duewheel.wheel.storage.data_directory import DataDirectory


class LocalShard:
    """Both processes of one shard in this process, without Kafka and Spark. Not thread-safe.

    Attributes:
        path: the data directory.
        ingest: the engine; None while ingest does not run.
        dequeue: the loop; None while it does not run.
        config, cancel_limits: count from the next start of the loop, or of the engine.
        offsets_at: where a time begins in Kafka; see `apply_recovery`.
    """

    def __init__(
        self,
        path: Path,
        wheel: WheelConfig,
        publisher: Publisher,
        clock: Clock,
        config: DequeueConfig,
        stopping: Callable[[], bool] = lambda: False,
        fs: FileSystem = HOST_FS,
    ) -> None:
        self.path = path
        self.ingest: Engine | None = None
        self.dequeue: Dequeue | None = None
        self.offsets_at: OffsetsAt = lambda _: {}
        self.cancel_limits = CancelLimits()
        self.wheel = wheel
        self._publisher = publisher
        self._clock = clock
        self.config = config
        self._stopping = stopping
        self._fs = fs
        self._directories: dict[Role, DataDirectory] = {}

    def directory(self, role: Role) -> DataDirectory:
        """The directory that a running process has opened."""
        return self._directories[role]

    def start_dequeue(
        self,
        starts: Mapping[TopicPartition, int] | None = None,
        *,
        take_over: bool = False,
        draw: Callable[[int], int] | None = None,
    ) -> Dequeue:
        """Starts the loop.

        Args:
            starts: the first offsets of a shard that never had any progress.
            take_over: see `Dequeue.start`.
            draw: draws the key with which a new shard signs copies; without it they have no MAC.
        """
        directory = self._directories[Role.DEQUEUE] = DataDirectory.start(
            self.path, self.wheel, Role.DEQUEUE, fs=self._fs
        )
        self.dequeue = Dequeue(directory, self._publisher, self._clock, self.config, self._stopping)
        first = None
        if starts is not None:
            first = first_progress(directory, self.config, starts, self._clock.now_ms())
            if draw is not None:
                first = replace(first, epochs=first.epochs.drawing_key(draw))
        self.dequeue.start(first, take_over=take_over)
        return self.dequeue

    def start_ingest(self, topic_ids: Mapping[str, str] | None = None) -> Engine:
        """Starts the engine, after applying the decision of dequeue's last start."""
        directory = self._directories[Role.INGEST] = DataDirectory.start(
            self.path, self.wheel, Role.INGEST, fs=self._fs
        )
        record = RecoveryRecord.read(self.path)
        assert record is not None, "dequeue must have started here once"
        apply_recovery(directory, record, self.offsets_at)
        self.ingest = Engine(directory, self._clock, topic_ids, self.cancel_limits)
        return self.ingest

    def kill(self, role: Role) -> None:
        """Kills a process, if it runs."""
        self._forget(role)
        directory = self._directories.pop(role, None)
        if directory is not None:
            directory.close()

    def stop(self, role: Role) -> None:
        """Stops a process cleanly."""
        self._forget(role)
        self._directories.pop(role).stop()

    def _forget(self, role: Role) -> None:
        if role is Role.INGEST:
            self.ingest = None
        elif self.dequeue is not None:
            self.dequeue.close()
            self.dequeue = None
