"""Creates the state file and the wheel of a data directory that lacks them.

A wheel of gigabytes takes minutes, and the supervisor kills a process that keeps engine.lock for
seconds. So:

    1. under engine.lock: makes a missing state file, and records a missing wheel as damage
    2. under wheel.lock alone: writes and syncs an empty wheel under a temporary name
    3. under engine.lock: renames the wheel

A kill in 2. leaves the temporary file, which the next start overwrites. A directory without a state
file is new, and gets a new name and an empty wheel; one with a state file and no wheel is damaged.
The wheel is read before engine.lock is taken, because that takes long, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import structlog

from duewheel.checkpoints import state_file
from duewheel.checkpoints.file_lock import FileLock
from duewheel.checkpoints.fs import FileSystem
from duewheel.checkpoints.state_file import Damage, State
from duewheel.errors import CorruptFile
from duewheel.wheel.slots import WheelConfig
from duewheel.wheel.storage import timer_wheel
from duewheel.wheel.storage.timer_wheel import OnProgress, TimerWheel

WHEEL_LOCK = "wheel.lock"

_MAKER_DEADLINE_S = 600.0  # for another process that makes the wheel
_LOG_INTERVAL_S = 5.0

Result = TypeVar("Result")

log = structlog.get_logger(__name__)


def with_files(
    path: Path,
    config: WheelConfig,
    fs: FileSystem,
    engine_lock: FileLock,
    deadline_s: float,
    progress: OnProgress | None,
    work: Callable[[int], Result],
) -> Result:
    """Runs `work` under engine.lock, with state file and wheel in place.

    Args:
        path: the data directory.
        config: its geometry.
        fs: where it lies.
        engine_lock: not held by the caller.
        deadline_s: how long to wait for it.
        progress: called with bytes done and bytes in all while a wheel is made.
        work: given the newest batch that the wheel names.

    Raises:
        Locked: a stuck process has engine.lock; or another process makes the wheel, and does not
            end.
        ConfigError: the directory was made with another geometry.
        DiskFull: there is too little room for the wheel.
    """
    while True:
        newest_batch = _newest_batch(path, config.ring, fs)
        with engine_lock.held(deadline_s):
            if _has_wheel(path, config, fs):
                return work(newest_batch)
        with closing(FileLock(path / WHEEL_LOCK, fs)) as lock, lock.held(_MAKER_DEADLINE_S):
            _make_wheel(path, config, fs, engine_lock, deadline_s, progress or _Logged())


def _make_wheel(
    path: Path,
    config: WheelConfig,
    fs: FileSystem,
    engine_lock: FileLock,
    deadline_s: float,
    progress: OnProgress,
) -> None:
    """Runs 2. and 3. of the module's head, unless another process has done so meanwhile."""
    if TimerWheel.exists(path / timer_wheel.FILE_NAME, config.ring):
        return
    new = TimerWheel.create(path / timer_wheel.FILE_NAME, config.ring, progress, fs)
    with closing(new), engine_lock.held(deadline_s):
        if not _has_wheel(path, config, fs):
            new.put_in_place()


def _newest_batch(path: Path, ring: int, fs: FileSystem) -> int:
    """Reads the newest batch in the wheel; 0 without a wheel, or without a commit page."""
    try:
        with State.open(path, fs) as state:
            near = state.commit().batch
        return TimerWheel(path / timer_wheel.FILE_NAME, ring, fs).newest_batch(near)
    except (FileNotFoundError, CorruptFile):
        return 0


def _has_wheel(path: Path, config: WheelConfig, fs: FileSystem) -> bool:
    """Runs 1. of the module's head; returns whether the wheel exists.

    Raises:
        ConfigError: the directory was made with another geometry.
    """
    try:
        state = State.open(path, fs)
    except FileNotFoundError:
        state = _new_state(path, config, fs)
    except CorruptFile as error:
        aside = state_file.set_aside(path, fs)
        log.warning("the state file is damaged: set aside", reason=str(error), aside=str(aside))
        state = _new_state(path, config, fs)
    with state:
        state.require(config.precision_ms, config.slots)
        exists = TimerWheel.exists(path / timer_wheel.FILE_NAME, config.ring)
        if not exists and state.starts:
            log.error("the wheel is missing or cut", path=str(path))
            state.note_damage(Damage.FILES_LOST)
        return exists


def _new_state(path: Path, config: WheelConfig, fs: FileSystem) -> State:
    fs.remove(path / timer_wheel.FILE_NAME)
    return State.create(path, config.precision_ms, config.slots, fs)


class _Logged:
    """Logs every few seconds how much of the wheel is written."""

    def __init__(self) -> None:
        self._next_s = time.monotonic() + _LOG_INTERVAL_S

    def __call__(self, done: int, size: int) -> None:
        if time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + _LOG_INTERVAL_S
            log.info("making the wheel", done_mib=done >> 20, size_mib=size >> 20)
