"""An engine on real files, with a dequeue that closes when a test says so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.harness.timer_rows import P0, P1, ends_of

from duewheel.checkpoints.role import Role
from duewheel.checkpoints.state_file import State
from duewheel.testing import (
    LocalShard,
    ManualClock,
    RecordingPublisher,
    TimerRow,
)
from duewheel.wheel.append.engine import Appended
from duewheel.wheel.dequeue_config import DequeueConfig
from duewheel.wheel.slots import WheelConfig

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


class EngineWorld:
    """A started shard and what it stands on."""

    def __init__(self, path: Path, slots: int, chunk_records: int) -> None:
        self.wheel = WheelConfig(PRECISION_MS, slots, window_ms=slots * PRECISION_MS, margin_ms=0)
        self.clock = BusyClock(NOW_MS)
        self.publisher = RecordingPublisher(self.clock)
        config = DequeueConfig(
            0, 1, {"precision": PRECISION_MS}, chunk_records, progress_interval_ms=PRECISION_MS
        )
        self.shard = LocalShard(path, self.wheel, self.publisher, self.clock, config)
        self.dequeue = self.shard.start_dequeue({P0: 0, P1: 0})
        self.engine = self.shard.start_ingest()

    @property
    def state(self) -> State:
        return self.shard.directory(Role.INGEST).state

    def append(self, *timers: TimerRow) -> Appended:
        return self.shard.append(timers, ends_of(timers))

    def at_slot(self, slot: int) -> None:
        """The clock says that slots up to SLOT + `slot` may be closed."""
        self.clock.set(NOW_MS + slot * PRECISION_MS)

    def drain(self) -> None:
        while self.dequeue.tick():
            pass

    def offsets(self) -> list[int]:
        return [int(source.rpartition(b"@")[2]) for source in self.publisher.sources()]


def timer(partition: int, offset: int, slot: int) -> TimerRow:
    """Due at the very end of SLOT + `slot`."""
    return TimerRow(partition, offset, NOW_MS + slot * PRECISION_MS)
