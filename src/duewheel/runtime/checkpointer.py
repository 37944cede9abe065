"""Writes the durable checkpoint every few seconds, in a thread of the ingest process.

A failed checkpoint leaves the last one valid; the next turn tries again.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import structlog

from duewheel.checkpoints.durable_checkpoint import Durable, take_durable
from duewheel.checkpoints.file_lock import ENGINE_LOCK, FileLock
from duewheel.checkpoints.fs import HOST_FS, FileSystem
from duewheel.checkpoints.state_file import State
from duewheel.errors import CorruptFile, Locked
from duewheel.threads import Worker
from duewheel.wheel.storage import (
    cancel_log,
    cancelled_records,
    message_store,
    timer_log,
    topic_numbers,
)
from duewheel.wheel.storage.byte_layouts import hour_name
from duewheel.wheel.storage.data_directory import LOCK_DEADLINE_S

log = structlog.get_logger(__name__)

_FOLDERS = (timer_log.FOLDER, message_store.FOLDER, cancelled_records.FOLDER)


class DurableCheckpoints:
    """Writes checkpoints of one data directory. It opens its own files, so it may run beside the
    engine; one thread uses an instance.
    """

    def __init__(self, directory: Path, fs: FileSystem = HOST_FS) -> None:
        self._directory = directory
        self._fs = fs
        self._state = State.open(directory, fs)
        self._lock = FileLock(directory / ENGINE_LOCK, fs)
        self._last = self._read_last()

    def _read_last(self) -> Durable | None:
        try:
            return Durable.read(self._directory)
        except CorruptFile as error:
            log.warning("durable checkpoint unreadable: writing a new one", reason=str(error))
            return None

    def write(self) -> Durable:
        """Take and write one checkpoint; the steps are those of checkpoints/durable_checkpoint.py.

        Raises:
            Locked: a stopped or stuck process holds engine.lock.
            OSError: a file could not be synced; the last checkpoint still holds.
        """
        with self._lock.held(LOCK_DEADLINE_S):
            durable = take_durable(self._state)
        if durable == self._last:
            return durable
        synced, state = self._last, self._state
        hours, segments = (synced.hours, synced.cancels) if synced else ({}, {})
        self._sync(_FOLDERS, hours, durable.hours, lambda: state.live.gc_hour)
        self._sync(cancel_log.FOLDERS, segments, durable.cancels, lambda: state.live.gc_cancels)
        self._fs.sync_path(self._directory / topic_numbers.FILE_NAME)
        durable.write(self._directory, self._fs)
        self._last = durable
        return durable

    def _sync(
        self,
        folders: Sequence[str],
        synced: Mapping[int, tuple[int, ...]],
        lengths: Mapping[int, tuple[int, ...]],
        first_kept: Callable[[], int],
    ) -> None:
        """Sync the files of these folders that have grown; hours below `first_kept` have none."""
        for hour, length in lengths.items():
            if synced.get(hour) != length and hour >= first_kept():
                # A length of 0: the file does not exist yet.
                for folder in itertools.compress(folders, length):
                    self._sync_hour(folder, hour, first_kept)
        if lengths.keys() != synced.keys():
            for folder in folders:
                self._fs.sync_directory(self._directory / folder)

    def _sync_hour(self, folder: str, hour: int, first_kept: Callable[[], int]) -> None:
        try:
            self._fs.sync_path(self._directory / folder / hour_name(hour))
        except FileNotFoundError:
            # Dequeue has unlinked it meanwhile: it is not needed.
            assert hour < first_kept(), "only unlinked hours vanish"

    def close(self) -> None:
        """Close the files."""
        self._lock.close()
        self._state.release()


class CheckpointThread(Worker):
    """Writes a checkpoint every `interval_s` until the process stops.

    A failure of the disk or the lock is logged, and the next turn tries again. Any other error ends
    the thread, and `require_alive` raises it: without checkpoints no hour is ever unlinked.
    """

    def __init__(self, directory: Path, interval_s: float, stopping: threading.Event) -> None:
        super().__init__("durable", self._write_all)
        self._directory = directory
        self._interval_s = interval_s
        self._stopping = stopping

    def _write_all(self) -> None:
        with closing(DurableCheckpoints(self._directory)) as checkpoints:
            while not self._stopping.wait(self._interval_s):
                self._write(checkpoints)

    def _write(self, checkpoints: DurableCheckpoints) -> None:
        begun_s = time.monotonic()
        try:
            checkpoints.write()
        except (OSError, Locked) as error:
            log.warning("durable checkpoint failed", reason=str(error))
        took_s = time.monotonic() - begun_s
        if took_s > self._interval_s:
            log.warning("durable checkpoint is slow", took_s=round(took_s, 1))
