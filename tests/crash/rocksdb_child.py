"""Processes of a shard on RocksDB, which work until they are killed: ingest, and readers beside it.

    python -P rocksdb_child.py FOLDER append | closing | looking

FOLDER has the data directory `data`, in which dequeue has started.

append      appends batches; RocksDB's buffers are small: it flushes, compacts and drops logs all
            the time. Prints a line after each batch
closing     compares the timeline with the logs under engine.lock, as dequeue sees them when it
            closes slots, and finishes a killed ingest's batch
looking     the same without a lock, as serve

A reader takes some slots at each look; in them every batch has timers. Prints a line for each LOOKS
looks, before it opens the files again: "sound", or a fault, with which it ends.
"""

from __future__ import annotations

import logging
import sys
from contextlib import closing
from pathlib import Path
from random import Random

import numpy as np
import structlog

# The last place to look for modules: a folder called `wheel` is there.
sys.path.append(str(Path(__file__).resolve().parents[2]))

from tests.harness.publishers import RecordingPublisher
from tests.harness.timer_rows import TIMER_TOPIC, TimerRow, timer_batch
from tests.harness.timer_shard import TimerShard

from duewheel.checkpoints.commit_and_close_pages import Commit
from duewheel.schemas.arrays import Int64
from duewheel.testing import ManualClock
from duewheel.wheel.dequeue_config import DequeueConfig
from duewheel.wheel.slots import WheelConfig, hour_of
from duewheel.wheel.storage.data_directory import DataDirectory
from duewheel.wheel.storage.timelines import rocksdb_files

NOW_MS = 1_800_000_000_000
SPAN_MS = 60_000
WHEEL = WheelConfig(10, 16_384, SPAN_MS, margin_ms=0, timeline="rocksdb")
CONFIG = DequeueConfig(0, 1, {})
P0 = (TIMER_TOPIC, 0)
BATCH = 500
FIRST, LAST = NOW_MS // WHEEL.precision_ms, (NOW_MS + SPAN_MS) // WHEEL.precision_ms + 1
SLOTS_AT_ONCE, LOOKS = 500, 20


def timer(offset: int) -> TimerRow:
    """Neighbours are in slots of their own."""
    return TimerRow(0, offset, NOW_MS + 1 + offset * 7_919 % SPAN_MS)


def append(folder: Path) -> None:
    rocksdb_files.CACHE_BYTES = rocksdb_files.BUFFER_BYTES = 64 << 10
    rocksdb_files.LOG_BYTES = 256 << 10
    clock = ManualClock(NOW_MS)
    shard = TimerShard(folder / "data", WHEEL, RecordingPublisher(clock), clock, CONFIG)
    engine = shard.start_ingest()
    while True:
        first = engine.marks.get(P0, 0)
        rows = [timer(offset) for offset in range(first, first + BATCH)]
        engine.append(timer_batch(rows), {P0: first + BATCH})
        print(first + BATCH, flush=True)


class Logged:
    """Slot and position of each record of the log, as far as it is committed."""

    def __init__(self, directory: DataDirectory) -> None:
        self._directory = directory
        self._read = 0
        self.slot: Int64 = np.empty(0, np.int64)
        self.position: Int64 = np.empty(0, np.int64)

    def follow(self, commit: Commit) -> int:
        """Reads what was committed since; returns the committed length."""
        hour = hour_of(FIRST, WHEEL.precision_ms)
        end = commit.hours[hour].log_bytes if hour in commit.hours else 0
        for position, slot, _ in self._directory.blocks(hour, self._read, end):
            self.slot = np.append(self.slot, slot)
            self.position = np.append(self.position, position)
        self._read = end
        return end


def committed(directory: DataDirectory, role: str) -> Commit | None:
    """The newest batch, once the timeline is refreshed up to there; None if there is none."""
    if role == "closing":
        with directory.locked() as commit:
            return commit
    commit = directory.state.commit()
    if not commit.applied:
        return None
    directory.timeline.refresh()
    return commit


def fault(directory: DataDirectory, logged: Logged, commit: Commit, after: int) -> str:
    """What is wrong in the slots behind `after`."""
    end, until = logged.follow(commit), after + SLOTS_AT_ONCE
    runs, _ = directory.timeline.runs(after, until, 1 << 40)
    slot, position = np.repeat(runs.slot, runs.count), runs.positions()
    rows = (logged.slot > after) & (logged.slot <= until)
    expected = set(zip(logged.slot[rows].tolist(), logged.position[rows].tolist(), strict=True))
    found = list(zip(slot.tolist(), position.tolist(), strict=True))
    if len(found) != len(set(found)):
        return f"doubled in {after}"
    if lost := expected - set(found):
        return f"missing {len(lost)} of {len(expected)}, first {min(lost)}"
    if unknown := [row for row in set(found) - expected if row[1] < end]:
        return f"unknown {len(unknown)}, first {min(unknown)}"
    return ""


def looked(folder: Path, role: str, dice: Random) -> str:
    """The first fault of some looks."""
    with closing(DataDirectory(folder / "data", WHEEL)) as directory:
        logged = Logged(directory)
        for _ in range(LOOKS):
            commit = committed(directory, role)
            after = dice.randrange(FIRST, LAST - SLOTS_AT_ONCE)
            if commit is not None and (found := fault(directory, logged, commit, after)):
                return f"batch {commit.batch}: {found}"
    return ""


def read(folder: Path, role: str) -> None:
    dice = Random(role)
    while not (found := looked(folder, role, dice)):
        print("sound", flush=True)
    print(found)


def main(folder: Path, role: str) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    if role == "append":
        append(folder)
    read(folder, role)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
