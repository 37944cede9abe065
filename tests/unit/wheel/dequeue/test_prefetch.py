"""Timers due soon are in the page cache before they are read, within the budget."""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.harness.launcher import wait_until
from tests.harness.local_world import LocalWorld
from tests.harness.timer_rows import P0

from duewheel.checkpoints.process_role import Role
from duewheel.schemas.arrays import Int64, ranges
from duewheel.threads import failures
from duewheel.wheel.dequeue import prefetch
from duewheel.wheel.dequeue.prefetch import ReadAhead, ReadAheadConfig, ReadAheadThread
from duewheel.wheel.slots import HOUR_MS, WheelConfig

PAGE = mmap.PAGESIZE
WHEEL = WheelConfig(precision_ms=50, slots=100_000, window_ms=HOUR_MS, margin_ms=0)
START_MS = 1_800_000_000_000 // HOUR_MS * HOUR_MS
HOUR = START_MS // HOUR_MS
ROWS = 6_000
SLOT = START_MS // WHEEL.precision_ms


def resident(path: Path) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which pages of a file are in the page cache."""
    libc = ctypes.CDLL(None, use_errno=True)
    size = path.stat().st_size
    pages = -(-size // PAGE)
    found = (ctypes.c_ubyte * pages)()
    with path.open("r+b") as file, mmap.mmap(file.fileno(), size) as mapped:
        view = (ctypes.c_char * size).from_buffer(mapped)
        assert libc.mincore(view, ctypes.c_size_t(size), found) == 0, os.strerror(
            ctypes.get_errno()
        )
        del view
    flags: np.ndarray[tuple[int], np.dtype[np.bool_]] = (
        np.frombuffer(bytes(found), np.uint8) & 1 == 1
    )
    return flags


def drop(path: Path) -> None:
    """Take a file out of the page cache."""
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


class ColdFiles(LocalWorld):
    """A directory with timers scattered over an hour and its cold files."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, WHEEL, starts={P0: 0}, now_ms=START_MS)
        dice = random.Random(1)
        for _ in range(0, ROWS, 500):
            self.put(*(1000 + dice.randrange(HOUR_MS - 2000) for _ in range(500)))
        name = self.shard.directory(Role.INGEST).log.files.path(HOUR).name
        self.log, self.messages = path / "timerlog" / name, path / "messages" / name
        # Pages that are mapped are not dropped.
        self.stop()
        drop(self.log)
        drop(self.messages)

    def needed(self, until_ms: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Pages with messages due up to then."""
        dequeue = self.shard.start_dequeue()
        directory = self.shard.directory(Role.DEQUEUE)
        runs, _ = directory.timeline.runs(SLOT, until_ms // WHEEL.precision_ms, 1 << 20)
        view = directory.log.view(HOUR, self.log.stat().st_size)
        offsets = [
            int(view["offset_py"][at])
            for first, count in zip(runs.first_pos // 52, runs.count, strict=True)
            for at in range(first, first + count)
        ]
        del view
        dequeue.close()
        self.shard.stop(Role.DEQUEUE)
        return np.unique(np.array(offsets) // PAGE)

    def look(self, ahead_ms: int, bytes_max: int, delivered: int = SLOT) -> int:
        config = ReadAheadConfig(ahead_ms, bytes_max)
        ahead = ReadAhead(self.path, WHEEL, config)
        try:
            return ahead.read(delivered, self.clock.now_ms())
        finally:
            ahead.close()


@pytest.fixture
def pending(tmp_path: Path, require: Callable[[object, str], None]) -> ColdFiles:
    pending = ColdFiles(tmp_path / "data")
    cold = not resident(pending.log).any() and not resident(pending.messages).any()
    require(cold, "this file system's cache cannot be dropped")
    return pending


def eventually(condition: Callable[[], bool]) -> None:
    """What was only asked for comes a little later."""
    wait_until(condition, "it was not read", every_s=0.01)


def test_an_hour_that_fits_is_read_whole(pending: ColdFiles) -> None:
    size = pending.log.stat().st_size + pending.messages.stat().st_size
    assert pending.look(60_000, 2 * size) == size
    assert resident(pending.log).all()
    assert resident(pending.messages).all()


def test_of_a_large_hour_only_what_comes_soon(pending: ColdFiles) -> None:
    needed = pending.needed(START_MS + 60_000)
    drop(pending.log)
    drop(pending.messages)
    budget = pending.log.stat().st_size + len(needed) * PAGE + 10 * PAGE
    assert budget < pending.log.stat().st_size + pending.messages.stat().st_size
    asked = pending.look(60_000, budget)
    assert asked <= budget
    assert resident(pending.log).all()
    eventually(lambda: bool(resident(pending.messages)[needed].all()))
    assert not resident(pending.messages).all()


def test_the_budget_is_spent_on_what_comes_first(pending: ColdFiles) -> None:
    soon = pending.needed(START_MS + 10_000)
    later = pending.needed(START_MS + 1_800_000)
    drop(pending.log)
    drop(pending.messages)
    budget = pending.log.stat().st_size + (len(soon) + 5) * PAGE
    config = ReadAheadConfig(1_800_000, budget)
    ahead = ReadAhead(pending.path, WHEEL, config)
    assert ahead.read(SLOT, START_MS) <= budget
    eventually(lambda: bool(resident(pending.messages)[soon].all()))
    assert not resident(pending.messages)[later].all()
    # Nothing more until some of it is delivered.
    assert ahead.read(SLOT, START_MS) < PAGE
    assert ahead.read(SLOT + 20_000, START_MS) > PAGE
    ahead.close()


def test_memory_follows_the_budget_and_not_the_bytes_of_a_slot(
    pending: ColdFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A team may have gigabytes due at one instant: their pages would be a percent of that."""
    counted: list[int] = []

    def counting(firsts: Int64, counts: Int64) -> Int64:
        counted.append(int(counts.sum()))
        return ranges(firsts, counts)

    monkeypatch.setattr(prefetch, "ranges", counting)
    monkeypatch.setattr(prefetch, "_PAGE", 1)  # so each message has a hundred pages
    asked = pending.look(1_800_000, pending.log.stat().st_size + 1_000)
    assert asked == pending.log.stat().st_size + 1_000
    assert max(counted) < 5_000  # of 150,000


def test_a_log_beyond_the_budget_and_no_files_at_all(pending: ColdFiles, tmp_path: Path) -> None:
    assert pending.look(60_000, PAGE) == 0
    assert not resident(pending.messages).any()
    assert pending.look(60_000, 1 << 30, delivered=SLOT + 10 * 72_000) == 0
    names = sorted(path.name for path in (pending.path / "timerlog").iterdir())
    assert names == [pending.log.name], "no file was made by looking"


def test_the_thread_outlives_any_error(pending: ColdFiles) -> None:
    asked: list[int] = []

    def delivered() -> int:
        asked.append(len(asked))
        if len(asked) < 3:
            raise ValueError("by design")
        return SLOT

    config = ReadAheadConfig(60_000, 1 << 30)
    failures.clear()
    with ReadAheadThread(pending.path, WHEEL, config, pending.clock, delivered, round_s=0.001):
        eventually(lambda: bool(resident(pending.messages).all()))
    assert failures.pop("read ahead") == 2


def test_the_thread_reads_ahead_beside_the_loop_and_stops(pending: ColdFiles) -> None:
    config = ReadAheadConfig(60_000, 1 << 30)
    with ReadAheadThread(pending.path, WHEEL, config, pending.clock, lambda: SLOT):
        eventually(lambda: bool(resident(pending.messages).all()))
    drop(pending.log)
    drop(pending.messages)
    off = ReadAheadConfig(0, 1 << 30)
    with ReadAheadThread(pending.path, WHEEL, off, pending.clock, lambda: SLOT):
        time.sleep(0.2)
    assert not resident(pending.messages).any()
