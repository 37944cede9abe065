"""Puts the seam in place: the calls of the operating system that make stores, and mapped files.

- Calls of `os` that write, cut, make, rename and remove; what is opened outside of the simulated
  folder, and reading, passes.
- fsync and msync are recorded in the disk's shadow (disk.py); the kernel is not asked for them.
- Assignments to mapped pages, the wheel's entries, which are linked by `TimerWheel.apply`, and the
  marks of cancelled records. Between the lookup of timers for cancels and engine.lock there is no
  store: what may come between is planned as one.
- The threads of dequeue's pipeline run in their caller's turn: a seed must not be a matter of luck.
- The boot id of the host is the simulation's, and so is what is drawn: incarnations, names.
"""

from __future__ import annotations

import mmap
import os
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from tests.simulation.seam import SEAM

from duewheel.checkpoints import fs, state_file
from duewheel.checkpoints.commit_and_close import Close
from duewheel.checkpoints.progress import Progress
from duewheel.checkpoints.state_file import State
from duewheel.ops import reshard
from duewheel.schemas.arrays import Bool, Int64
from duewheel.schemas.batches import TimerBatch
from duewheel.wheel.append import cancel_lookup, cancel_outcomes, id_index, placement
from duewheel.wheel.append.cancel_lookup import CancelLookup
from duewheel.wheel.dequeue import bounded_queue, cancel_replies, pipeline
from duewheel.wheel.recovery import startup
from duewheel.wheel.storage.timer_log import TimerLog
from duewheel.wheel.storage.timer_wheel import Runs, TimerWheel

Call = Callable[..., Any]


class WatchedMap(mmap.mmap):
    """A mapped file whose stores are counted."""

    path: Path | None = None

    def __setitem__(self, key: Any, value: Any) -> None:
        if SEAM.actor is not None:
            small = len(value) <= 8  # one store of the processor
            middle = (key.start + key.stop) // 2
            part = slice(key.start, middle)
            SEAM.store(
                "page",
                None
                if small
                else lambda: mmap.mmap.__setitem__(self, part, value[: middle - key.start]),
                fails=False,
            )
        super().__setitem__(key, value)

    def flush(self, *args: int, **keywords: int) -> None:
        if self.path is not None and SEAM.disk is not None:
            SEAM.store("sync")
            SEAM.disk.synced(self.path)


class Now:
    """Stands in for a Worker: what it is to do is done when it is started.

    The other order, a thread that falls behind, is that of a range with one chunk.
    """

    def __init__(self, _name: str, work: Callable[[], object]) -> None:
        self._work = work

    def start(self) -> None:
        self._work()

    def join(self) -> None:
        pass


def install() -> None:
    """Put the seam in place, for the rest of this Python process."""
    _watch_opening()
    _watch_descriptors()
    _watch_names()
    _watch_maps()
    _watch_placing()
    _watch_cancels()
    _replace_everywhere(fs.boot_id, lambda: SEAM.boot_id)
    for module in (startup, reshard):
        vars(module)["secrets"] = SimpleNamespace(randbits=_drawn_bits)
    vars(state_file)["uuid"] = SimpleNamespace(uuid4=_drawn_uuid, UUID=uuid.UUID)
    vars(pipeline)["Worker"] = Now
    bounded_queue.BoundedQueue._fits = lambda *_: True  # type: ignore[method-assign]


def _drawn_bits(count: int) -> int:
    return SEAM.rng.getrandbits(count)


def _drawn_uuid() -> uuid.UUID:
    return uuid.UUID(int=_drawn_bits(128))


def _watch_opening() -> None:
    os_open, os_close = os.open, os.close

    def watched_open(path: Any, flags: int, mode: int = 0o777, *, dir_fd: Any = None) -> int:
        inside = SEAM.inside(path)
        if inside is None or SEAM.actor is None:
            fd = os_open(path, flags, mode, dir_fd=dir_fd)
            if SEAM.actor is not None and SEAM.disk is not None and str(path).endswith(".lock"):
                SEAM.actor.fds[fd] = Path(path)
            return fd
        new = bool(flags & os.O_CREAT) and not inside.exists()
        if new:
            SEAM.store("make")
        fd = os_open(path, flags, mode, dir_fd=dir_fd)
        if new:
            assert SEAM.disk is not None
            SEAM.disk.made(os.fstat(fd).st_ino)
        SEAM.actor.fds[fd] = inside
        return fd

    def watched_close(fd: int) -> None:
        if SEAM.actor is not None:
            SEAM.actor.fds.pop(fd, None)
        os_close(fd)

    vars(os).update(open=watched_open, close=watched_close)


def _watch_descriptors() -> None:
    pwrite = os.pwrite

    def watched(fd: int) -> Path | None:
        path = SEAM.path_of(fd)
        return None if path is None or path.suffix == ".lock" else path

    def watched_pwrite(fd: int, data: Any, offset: int) -> int:
        if watched(fd) is not None:
            SEAM.store("write", lambda: pwrite(fd, memoryview(data)[: len(data) // 2], offset))
        return pwrite(fd, data, offset)

    def watched_fsync(fd: int) -> None:
        path = SEAM.path_of(fd)
        if path is not None and SEAM.disk is not None:
            SEAM.store("sync")
            # The name may be another file's by now, or nobody's.
            if path.exists() and path.stat().st_ino == os.fstat(fd).st_ino:
                SEAM.disk.synced(path)

    def sized(kind: str, original: Callable[..., None], *, fails: bool) -> Callable[..., None]:
        def call(fd: int, *sizes: int) -> None:
            if watched(fd) is not None:
                SEAM.store(kind, fails=fails)
            original(fd, *sizes)

        return call

    vars(os).update(
        pwrite=watched_pwrite,
        fsync=watched_fsync,
        ftruncate=sized("cut", os.ftruncate, fails=False),
        posix_fallocate=sized("write", os.posix_fallocate, fails=True),
    )


def _watch_names() -> None:
    def watched(
        kind: str, original: Callable[..., Any], *, makes: bool = False
    ) -> Callable[..., Any]:
        def call(path: Any, *args: Any, **keywords: Any) -> Any:
            inside = SEAM.inside(path)
            if inside is not None and SEAM.actor is not None:
                SEAM.store(kind)
            answer = original(path, *args, **keywords)
            if makes and inside is not None and SEAM.disk is not None:
                SEAM.disk.made(inside.stat().st_ino)
            return answer

        return call

    for name in ("replace", "rename"):
        setattr(os, name, watched("name", getattr(os, name)))
    for name in ("unlink", "rmdir"):
        setattr(os, name, watched("unlink", getattr(os, name)))
    os.mkdir = watched("make", os.mkdir, makes=True)


def _watch_maps() -> None:
    def map_file(fd: int, size: int, *, writable: bool) -> mmap.mmap:
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        new_map: Callable[..., WatchedMap] = WatchedMap
        mapped = new_map(fd, size, access=access)
        mapped.path = SEAM.path_of(fd)
        return mapped

    apply = TimerWheel.apply

    def watched_apply(self: TimerWheel, runs: Runs, batch: int) -> None:
        def some() -> None:
            apply(self, runs.where(_some_of(len(runs))), batch)

        SEAM.applied(self.path.parent, runs)
        SEAM.store("wheel", some, fails=False)
        apply(self, runs, batch)

    def watched_rebuilding(original: Callable[..., None]) -> Callable[..., None]:
        def call(self: TimerWheel, *args: Any) -> None:
            SEAM.store("wheel", fails=False)
            original(self, *args)

        return call

    link, set_linked = TimerWheel.link, State.set_linked

    def watched_link(self: TimerWheel, runs: Runs, batch: int) -> None:
        def some() -> None:
            link(self, runs.where(_some_of(len(runs))), batch)

        SEAM.linked(len(runs))
        SEAM.store("wheel", some, fails=False)
        link(self, runs, batch)

    def watched_set_linked(self: State, slot: int) -> None:
        SEAM.store("page", fails=False)
        set_linked(self, slot)

    fs.map_file = map_file
    TimerWheel.apply = watched_apply  # type: ignore[method-assign]
    TimerWheel.link = watched_link  # type: ignore[method-assign]
    TimerWheel.clear = watched_rebuilding(TimerWheel.clear)  # type: ignore[method-assign]
    State.set_linked = watched_set_linked  # type: ignore[method-assign]


def _watch_placing() -> None:
    place_replayed = placement.place_replayed

    def watched(batch: TimerBatch, slot: Int64, close: Close, progress: Progress) -> Any:
        pending, slots = place_replayed(batch, slot, close, progress)
        SEAM.place_replayed(batch, slots, close)
        return pending, slots

    _replace_everywhere(place_replayed, watched)


def _watch_cancels() -> None:
    mark_cancelled, find = TimerLog.mark_cancelled, CancelLookup.find

    def watched_marks(
        self: TimerLog, hour: int, log_bytes: int, positions: Int64, *, alone: bool = False
    ) -> None:
        def some() -> None:
            mark_cancelled(self, hour, log_bytes, positions[_some_of(len(positions))], alone=alone)

        SEAM.store("mark", some, fails=False)
        mark_cancelled(self, hour, log_bytes, positions, alone=alone)

    def watched_find(self: CancelLookup, *args: Any) -> Any:
        found = find(self, *args)
        SEAM.store("look up", fails=False)
        return found

    TimerLog.mark_cancelled = watched_marks  # type: ignore[method-assign]
    CancelLookup.find = watched_find  # type: ignore[assignment,method-assign]


def a_few_at_once(replies: int, pairs: int, rows: int, steps: int, forgets: int) -> None:
    """So many replies leave in one transaction at most; so many pairs are compared at once; an
    index of ids has room for so many rows, chains of so many steps, and forgets of an id with so
    many rows.
    """
    vars(cancel_lookup)["FORGET_FROM"] = forgets
    vars(cancel_replies)["ROWS_MAX"] = replies
    vars(cancel_outcomes)["_PAIRS_AT_ONCE"] = pairs
    vars(id_index).update(ROWS_MIN=rows, STEPS_MAX=steps)


def _some_of(count: int) -> Bool:
    return np.array([SEAM.rng.random() < 0.5 for _ in range(count)], np.bool_)


def _replace_everywhere(original: Any, replacement: Any) -> None:
    """Also where it was imported by name."""
    for name, module in list(sys.modules.items()):
        if name.startswith("duewheel"):
            for attribute, value in list(vars(module).items()):
                if value is original:
                    setattr(module, attribute, replacement)
