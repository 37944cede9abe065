"""The small world of the tests of `wheel`: a shard on real files, without Kafka and Spark.

The test moves its clock; its publisher keeps Kafka's records in memory. Tests that need more state
derive a class from it; figures are parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.harness.publishers import RecordingPublisher
from tests.harness.timer_rows import P0, P1, TimerRow, ends_of
from tests.harness.timer_shard import TimerShard

from duewheel.checkpoints.fs import HOST_FS, FileSystem
from duewheel.checkpoints.process_role import Role
from duewheel.checkpoints.state_file import State
from duewheel.schemas.batches import TopicPartition
from duewheel.testing import ManualClock
from duewheel.wheel.append.engine import Appended, Engine
from duewheel.wheel.dequeue.lifecycle import Dequeue
from duewheel.wheel.dequeue_config import DequeueConfig
from duewheel.wheel.slots import WheelConfig

PRECISION_MS = 10
NOW_MS = 1_800_000_000_000
SLOT = NOW_MS // PRECISION_MS  # closed at the start
STARTS: Mapping[TopicPartition, int] = {P0: 0, P1: 0}


def ring(slots: int) -> WheelConfig:
    """A wheel whose window is its ring."""
    return WheelConfig(PRECISION_MS, slots, window_ms=slots * PRECISION_MS, margin_ms=0)


@contextmanager
def fated(publisher: RecordingPublisher, fate: Callable[[], str]) -> Iterator[None]:
    """Meanwhile `fate` decides what becomes of transactions: see RecordingPublisher."""
    before, publisher.fate = publisher.fate, fate
    try:
        yield
    finally:
        publisher.fate = before


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


class LocalWorld:
    """A started shard, and the clock and the Kafka that outlive it.

    Attributes:
        stopping: whether dequeue is to end.
        next_offset: the one of the first partition's next timer that `put` writes.
    """

    publisher: RecordingPublisher

    def __init__(
        self,
        path: Path,
        wheel: WheelConfig | None = None,
        *,
        starts: Mapping[TopicPartition, int] = STARTS,
        publisher: Callable[[ManualClock], RecordingPublisher] = RecordingPublisher,
        now_ms: int = NOW_MS,
        fs: FileSystem = HOST_FS,
        **settings: Any,
    ) -> None:
        """
        Args:
            path: of the data directory.
            wheel: a ring of 64 slots by default.
            starts: the first offset of each of its partitions.
            publisher: a class that remembers more than its base.
            now_ms: when it starts.
            fs: where its files are.
            settings: of DequeueConfig.
        """
        self.wheel = wheel or ring(64)
        self.config = DequeueConfig(**{"shard": 0, "shards": 1, "slot_config": {}, **settings})
        self.clock = BusyClock(now_ms)
        self.publisher = publisher(self.clock)
        self.stopping = False
        self.shard = TimerShard(
            path, self.wheel, self.publisher, self.clock, self.config, lambda: self.stopping, fs
        )
        self._start_ms, self.next_offset = now_ms, 0
        self.shard.start_dequeue(starts)
        self.shard.start_ingest()

    @property
    def path(self) -> Path:
        """The data directory."""
        return self.shard.path

    @property
    def engine(self) -> Engine:
        assert self.shard.ingest is not None, "ingest does not run"
        return self.shard.ingest

    @property
    def dequeue(self) -> Dequeue:
        assert self.shard.dequeue is not None, "dequeue does not run"
        return self.shard.dequeue

    @property
    def state(self) -> State:
        """As ingest has it open."""
        return self.shard.directory(Role.INGEST).state

    @property
    def floor(self) -> int:
        """The last closed slot."""
        close = self.shard.directory(Role.DEQUEUE).state.close()
        assert close is not None
        return close.floor

    def beside(
        self, path: Path, config: DequeueConfig | None = None, wheel: WheelConfig | None = None
    ) -> TimerShard:
        """A shard that is not started, on files of its own, with the same clock and Kafka."""
        shard = TimerShard(
            path, wheel or self.wheel, self.publisher, self.clock, config or self.config
        )
        shard.offsets_at = self.shard.offsets_at
        return shard

    def append(self, *timers: TimerRow) -> Appended:
        """In the order of their offsets, with marks behind the last row of each partition."""
        return self.shard.append(timers, ends_of(timers))

    def put(self, *due_ms: int) -> list[str]:
        """Timers of the first partition, numbered on, due so long after the start: their names."""
        first, self.next_offset = self.next_offset, self.next_offset + len(due_ms)
        timers = [TimerRow(0, first + n, self._start_ms + due) for n, due in enumerate(due_ms)]
        self.append(*timers)
        return [timer.source for timer in timers]

    def set_slot(self, slot: int) -> None:
        """The clock says that slots up to the start's + `slot` may be closed."""
        self.clock.set(self._start_ms + slot * self.wheel.precision_ms)

    def at_slot(self, slot: int, ticks: int = 10**6) -> None:
        """Set the clock, and deliver what is due."""
        self.set_slot(slot)
        self.drain(ticks)

    def tick(self) -> bool:
        return self.dequeue.tick()

    def drain(self, ticks: int = 10**6) -> None:
        """Until nothing more is to be done now, or for so many ticks."""
        for _ in range(ticks):
            if not self.dequeue.tick():
                break

    def kill(self) -> None:
        """End both processes without a word."""
        for role in Role:
            self.shard.kill(role)

    def stop(self) -> None:
        """Both processes end as they end themselves."""
        self.shard.stop(Role.INGEST)
        self.shard.stop(Role.DEQUEUE)

    def restart(self, *roles: Role) -> None:
        """Kill processes, both by default, and start them again."""
        roles = roles or tuple(Role)
        for role in roles:
            self.shard.kill(role)
        if Role.DEQUEUE in roles:
            self.shard.start_dequeue()
        if Role.INGEST in roles:
            self.shard.start_ingest()

    def sources(self) -> list[str]:
        """Of all that has left, replies and chases aside."""
        return [source.decode() for source in self.publisher.sources()]

    def offsets(self) -> list[int]:
        """The same, offsets only."""
        return [int(source.rpartition("@")[2]) for source in self.sources()]


def timer(partition: int, offset: int, slot: int) -> TimerRow:
    """Due at the very end of SLOT + `slot`."""
    return TimerRow(partition, offset, NOW_MS + slot * PRECISION_MS)
