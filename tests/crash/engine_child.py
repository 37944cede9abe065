"""Runs both halves of a shard on real files and kills itself before a chosen store.

Started once as a script; for every line of JSON on stdin it forks a child that does the work, and
answers with a line: how the child ended, and how many stores it had made. What counts as a store:
a write to a file, a cut, a rename, an unlinking, an assignment to a mapped page or to the wheel's
entries, a write to RocksDB and what makes, opens or removes a database; those that can be half done
are killed twice, before them and in the middle.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

# The last place to look for modules: a folder called `wheel` is there.
sys.path.append(str(Path(__file__).resolve().parents[2]))

from tests.harness.publishers import JournalPublisher
from tests.harness.timer_rows import TIMER_TOPIC, TimerRow, timer_batch
from tests.harness.timer_shard import TimerShard

from duewheel.checkpoints.commit_and_close_pages import Marks
from duewheel.checkpoints.fs import HOST_FS, Bytes, FileSystem
from duewheel.checkpoints.live_fields import LiveFields
from duewheel.checkpoints.process_role import Role
from duewheel.checkpoints.state_file import State
from duewheel.runtime.checkpointer import DurableCheckpoints
from duewheel.schemas.batches import TopicPartition
from duewheel.testing import ManualClock
from duewheel.testing.unsynced import Unsynced
from duewheel.wheel.admin.accept_loss import KafkaTopics, accept, losses
from duewheel.wheel.dequeue_config import DequeueConfig
from duewheel.wheel.recovery.survey import survey
from duewheel.wheel.slots import TimelineKind, WheelConfig
from duewheel.wheel.storage.data_directory import DataDirectory, hold_role
from duewheel.wheel.storage.timelines import rocksdb_files
from duewheel.wheel.storage.timelines.rocksdb_timeline import RocksdbTimeline
from duewheel.wheel.storage.timelines.timer_wheel import TimerWheel
from duewheel.wheel.storage.timer_log import TimerLog

HOLDER_BYTES = 11  # a lock's holder, which is only told
LIVE_STORES = (
    "begin",
    "count_dequeue_start",
    "set_stopped_cleanly",
    "set_linked",
)
GC_STORES = ("raise_gc_hour", "set_gc_cancels")


class Stores:
    """How many this process has made, and before which it dies."""

    made = 0
    last = 0


def before_store(half: Callable[[], object] | None = None) -> None:
    """Die here, or after `half` of the store, if it is time."""
    for first_half in (None, half) if half else (None,):
        Stores.made += 1
        if Stores.made == Stores.last:
            if first_half is not None:
                first_half()
            os.kill(os.getpid(), signal.SIGKILL)


class KillingMap(mmap.mmap):
    def __setitem__(self, key: Any, value: Any) -> None:
        assert isinstance(key, slice)
        middle = (key.start + key.stop) // 2
        # Up to eight bytes are one store of the processor.
        small = len(value) <= 8

        def half() -> None:
            mmap.mmap.__setitem__(self, slice(key.start, middle), value[: middle - key.start])

        before_store(None if small else half)
        super().__setitem__(key, value)


class KillingArray(np.ndarray[Any, Any]):
    def __setitem__(self, key: Any, value: Any) -> None:
        def half() -> None:
            some = len(key) // 2
            np.ndarray.__setitem__(self, key[:some], np.asarray(value)[:some])

        before_store(half)
        np.ndarray.__setitem__(self, key, value)


def counted(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **keywords: Any) -> Any:
        before_store()
        return function(*args, **keywords)

    return call


def remove_some(path: Path) -> None:
    for each in sorted(each for each in path.rglob("*") if not each.is_dir())[::2]:
        each.unlink()


class KillingFiles(Unsynced):
    """Counts the stores of this process."""

    def pwrite(self, fd: int, data: Bytes, offset: int) -> int:
        if len(data) > HOLDER_BYTES:
            before_store(lambda: os.pwrite(fd, memoryview(data)[: len(data) // 2], offset))
        return super().pwrite(fd, data, offset)

    def cut(self, fd: int, size: int) -> None:
        before_store()
        super().cut(fd, size)

    def allocate(self, fd: int, size: int) -> None:
        before_store()
        super().allocate(fd, size)

    def replace(self, path: Path, target: Path) -> None:
        before_store()
        super().replace(path, target)

    def unlink(self, path: Path) -> None:
        before_store()
        super().unlink(path)

    def remove_tree(self, path: Path) -> None:
        if path.exists():
            before_store(lambda: remove_some(path))
        super().remove_tree(path)

    def map(self, fd: int, size: int, *, writable: bool) -> mmap.mmap:
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        return KillingMap(fd, size, access=access)


def count_stores(kind: TimelineKind) -> None:
    """From here on the stores of this process that KillingFiles does not see are counted, too.

    Args:
        kind: of the timeline.
    """

    def killing_wheel(self: TimerWheel, path: Path, ring: int, fs: FileSystem = HOST_FS) -> None:
        make_wheel(self, path, ring, fs)
        self._entries = self._entries.view(KillingArray)
        self._num_magic = self._num_magic.view(KillingArray)

    make_wheel = TimerWheel.__init__
    TimerWheel.__init__ = killing_wheel  # type: ignore[method-assign]
    if kind == "rocksdb":
        for name in ("hold", "clear", "_write"):
            setattr(RocksdbTimeline, name, counted(getattr(RocksdbTimeline, name)))
        for name in ("make", "_spare_readers"):
            setattr(rocksdb_files, name, counted(getattr(rocksdb_files, name)))
    TimerLog.mark_cancelled = counted(TimerLog.mark_cancelled)  # type: ignore[method-assign]
    for name in LIVE_STORES:
        setattr(State, name, counted(getattr(State, name)))
    for name in GC_STORES:
        setattr(LiveFields, name, counted(getattr(LiveFields, name)))


class ChildClock(ManualClock):
    """Runs `meanwhile` once when next asked: the engine asks between its slots and its lock."""

    meanwhile: Callable[[], None] | None = None

    def now_ms(self) -> int:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        return super().now_ms()


def timer_from(row: dict[str, Any]) -> TimerRow:
    timer_id = row.pop("timer_id")
    return TimerRow(timer_id=None if timer_id is None else timer_id.encode(), **row)


def accept_cut(
    path: Path,
    wheel: WheelConfig,
    config: DequeueConfig,
    journal: JournalPublisher,
    clock: ManualClock,
    ends: Marks,
) -> None:
    """Accept that partitions end at `ends`, while nobody runs; all of them are cut short."""
    fs = KillingFiles()
    directory = DataDirectory.start(path, wheel, Role.DEQUEUE, fs=fs)
    ingest = hold_role(path, Role.INGEST, fs)
    try:
        topics = KafkaTopics({TIMER_TOPIC: "an id"}, dict.fromkeys(ends, 0), ends)
        found = journal.start()
        progress, told = losses(ends, found, survey(path, wheel, fs), config, topics)
        accept(directory, journal, progress, told, topics.ids)
    finally:
        ingest.close()
        directory.close()


def work(task: dict[str, Any]) -> None:
    """Do the steps of a task."""
    fs = KillingFiles()
    clock = ChildClock(task["now_ms"])
    journal = JournalPublisher(Path(task["journal"]), clock, fs)
    config, wheel = DequeueConfig(**task["dequeue"]), WheelConfig(*task["wheel"])
    shard = TimerShard(Path(task["path"]), wheel, journal, clock, config, fs=fs)

    def pass_time(ms: int, ticks: int) -> None:
        clock.set(clock.now_ms() + ms)
        for _ in range(ticks if shard.dequeue else 0):
            assert shard.dequeue is not None
            if not shard.dequeue.tick():
                break

    def append(rows: list[dict[str, Any]], ends: list[int], ms: int, ticks: int) -> None:
        clock.meanwhile = lambda: pass_time(ms, ticks)
        marks: dict[TopicPartition, int] = {(TIMER_TOPIC, p): e for p, e in enumerate(ends)}
        journal.ends = marks
        shard.append([timer_from(row) for row in rows], marks)
        clock.meanwhile = None

    def accept_loss(ends: dict[str, int]) -> None:
        marks = {(TIMER_TOPIC, int(number)): end for number, end in ends.items()}
        accept_cut(shard.path, wheel, config, journal, clock, marks)

    steps: dict[str, Callable[..., Any]] = {
        "accept_loss": accept_loss,
        "start_dequeue": shard.start_dequeue,
        "start_ingest": shard.start_ingest,
        "append": append,
        "pass_time": pass_time,
        "write_durable": lambda: DurableCheckpoints(shard.path, fs).write(),
        "stop": lambda role: shard.stop(Role[role]),
    }
    for name, *arguments in task["steps"]:
        steps[name](*arguments)


def fork(task: dict[str, Any]) -> dict[str, int]:
    """Do a task in a child; how it ended and how many stores it made."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            Stores.last = task["kill_at"]
            count_stores(task["wheel"][-1])
            work(task)
            os.write(writer, str(Stores.made).encode())
            os._exit(0)
        except BaseException:  # noqa: BLE001 - a child must never come back
            sys.excepthook(*sys.exc_info())
            os._exit(1)
    os.close(writer)
    with os.fdopen(reader) as answer:
        made = answer.read()
    _, status = os.waitpid(child, 0)
    return {"code": os.waitstatus_to_exitcode(status), "stores": int(made or 0)}


if __name__ == "__main__":
    timer_batch([TimerRow(0, 0, 0)])  # what is imported and tabulated at first use, each child has
    for line in sys.stdin:
        print(json.dumps(fork(json.loads(line))), flush=True)
