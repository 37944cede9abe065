"""A data directory and an engine whose stores to mapped memory are counted as those to files are.

- numpy makes them, so that no file system sees them: the entries of the wheel, the marks of
  cancelled records, `linked`. A process that dies may have made those of some rows.
- Between the lookup of timers for cancels and engine.lock there is no store: what may come between
  is planned as one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.simulation.watched_files import WatchedFileSystem

from duewheel.checkpoints.commit_and_close_pages import Commit
from duewheel.checkpoints.fs import HOST_FS, FileSystem
from duewheel.checkpoints.state_file import State
from duewheel.clock import Clock
from duewheel.schemas.arrays import Int64
from duewheel.schemas.batches import TimerBatch
from duewheel.wheel.append.cancel_files import CancelFiles
from duewheel.wheel.append.cancel_lookup import CancelLimits, Candidates
from duewheel.wheel.append.engine import Engine
from duewheel.wheel.append.placement import CatchUp, PlacedRows, Policy, Standby
from duewheel.wheel.storage.data_directory import DataDirectory
from duewheel.wheel.storage.runs import Runs
from duewheel.wheel.storage.timelines.timeline import DirectoryFiles, Timeline
from duewheel.wheel.storage.timelines.timer_wheel import TimerWheel
from duewheel.wheel.storage.timelines.wheel_timeline import WheelTimeline
from duewheel.wheel.storage.timer_log import TimerLog


class _WatchedState(State):
    def set_linked(self, slot: int) -> None:
        _watched(self._fs).store("page", fails=False)
        super().set_linked(slot)


class _WatchedWheel(TimerWheel):
    def __init__(self, path: Path, ring: int, fs: FileSystem = HOST_FS) -> None:
        super().__init__(path, ring, fs)
        self._fs = _watched(fs)

    def apply(self, runs: Runs, batch: int) -> None:
        def some() -> None:
            super(_WatchedWheel, self).apply(runs.where(self._fs.some_of(len(runs))), batch)

        self._fs.seam.applied(self.path.parent, runs)
        self._fs.store("wheel", some, fails=False)
        super().apply(runs, batch)

    def link(self, runs: Runs, batch: int) -> None:
        def some() -> None:
            super(_WatchedWheel, self).link(runs.where(self._fs.some_of(len(runs))), batch)

        self._fs.seam.linked(len(runs))
        self._fs.store("wheel", some, fails=False)
        super().link(runs, batch)

    def clear(self) -> None:
        self._fs.store("wheel", fails=False)
        super().clear()


class _WatchedTimeline(WheelTimeline):
    wheel_class = _WatchedWheel


class _WatchedLog(TimerLog):
    def mark_cancelled(self, hour: int, log_bytes: int, positions: Int64) -> None:
        fs = _watched(self._fs)

        def some() -> None:
            marked = positions[fs.some_of(len(positions))]
            super(_WatchedLog, self).mark_cancelled(hour, log_bytes, marked)

        fs.store("mark", some, fails=False)
        super().mark_cancelled(hour, log_bytes, positions)

    def remove_marks(self, hour: int, log_bytes: int) -> None:
        _watched(self._fs).store("mark", fails=False)
        super().remove_marks(hour, log_bytes)


def _rocksdb() -> type[Timeline]:
    """RocksDB's writes are atomic: each is one store. What a process has opened, a kill closes."""
    from duewheel.wheel.storage.timelines.rocksdb_timeline import RocksdbTimeline

    class _WatchedRocksdb(RocksdbTimeline):
        def __init__(self, directory: DirectoryFiles) -> None:
            super().__init__(directory)
            self._watched = _watched(directory.fs)
            self._watched.opened(self)

        def append(self, runs: Runs, batch: int) -> None:
            self._watched.seam.applied(self._path, runs)
            self._watched.store("wheel", fails=False)
            super().append(runs, batch)

        def clear(self, batch: int) -> None:
            self._watched.store("wheel", fails=False)
            super().clear(batch)

        def forget_below(self, slot: int) -> None:
            self._watched.store("wheel", fails=False)
            super().forget_below(slot)

    return _WatchedRocksdb


def _timeline_class(kind: str) -> type[Timeline]:
    return _WatchedTimeline if kind == "wheel" else _rocksdb()


class WatchedDirectory(DataDirectory):
    """Of one process; its file system is a watched one."""

    state_class, log_class = _WatchedState, _WatchedLog
    timeline_class = staticmethod(_timeline_class)


class _WatchedResolver(CancelFiles):
    def __init__(self, directory: DataDirectory, limits: CancelLimits) -> None:
        super().__init__(directory, limits)
        self._fs = _watched(directory.fs)

    def load_candidates(
        self, cancels: TimerBatch, batch: TimerBatch, commit: Commit
    ) -> Candidates | None:
        found = super().load_candidates(cancels, batch, commit)
        if found is not None:
            self._fs.store("look up", fails=False)
        return found


class WatchedEngine(Engine):
    """Of a watched directory; tells where it places the rows of a catch-up."""

    def __init__(
        self,
        directory: DataDirectory,
        clock: Clock,
        topic_ids: Mapping[str, str],
        limits: CancelLimits,
    ) -> None:
        super().__init__(directory, clock, topic_ids, limits)
        self._cancels = _WatchedResolver(directory, limits)

    def _place(self, batch: TimerBatch, policy: Policy) -> PlacedRows:
        rows = super()._place(batch, policy)
        beneath = policy.beneath if isinstance(policy, Standby) else policy
        if isinstance(beneath, CatchUp):
            _watched(self._directory.fs).seam.place_replayed(rows.batch, rows.slot, beneath.close)
        return rows


def _watched(fs: FileSystem) -> WatchedFileSystem:
    assert isinstance(fs, WatchedFileSystem)
    return fs
