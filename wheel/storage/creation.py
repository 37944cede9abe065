"""Creates the state file and the timeline of a data directory that lacks them.

A wheel of gigabytes takes minutes, and the supervisor kills a process that keeps engine.lock for
seconds. So:

    1. under engine.lock: makes a missing state file, and records a missing timeline as damage
    2. under wheel.lock alone: writes and syncs an empty timeline under a temporary name
    3. under engine.lock: renames it

A kill in 2. leaves the temporary files, which the next start overwrites. A directory without a
state file is new, and gets a new name and an empty timeline; one with a state file and no timeline
is damaged. The timeline is read before engine.lock is taken, because that takes long, too.
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
from duewheel.wheel.storage.runs import OnProgress
from duewheel.wheel.storage.timelines.kinds import (
    FILES,
    damage_without,
    remove_timelines,
    timeline_class,
)
from duewheel.wheel.storage.timelines.timeline import DirectoryFiles
from duewheel.wheel.storage.timer_log import TimerLog

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
    """Runs `work` under engine.lock, which the caller does not hold, with state file and timeline
    in place. `work` gets the newest batch in the timeline; `progress` gets bytes done and bytes in
    all while a timeline is made.

    Raises:
        Locked: a stuck process has engine.lock; or another process makes the timeline, and does not
            end.
        ConfigError: the directory was made with another geometry.
        DiskFull: there is too little room for the timeline.
    """
    while True:
        newest_batch = _newest_batch(path, config, fs)
        with engine_lock.held(deadline_s):
            if _has_timeline(path, config, fs):
                return work(newest_batch)
        with closing(FileLock(path / WHEEL_LOCK, fs)) as lock, lock.held(_MAKER_DEADLINE_S):
            _make_timeline(path, config, fs, engine_lock, deadline_s, progress or _Logged())


def _make_timeline(
    path: Path,
    config: WheelConfig,
    fs: FileSystem,
    engine_lock: FileLock,
    deadline_s: float,
    progress: OnProgress,
) -> None:
    """Runs 2. and 3. of the module's head, unless another process has done so meanwhile."""
    timeline = timeline_class(config.timeline)
    if timeline.exists(path, config, fs):
        return
    new = timeline.create(path, config, progress, fs)
    with closing(new), engine_lock.held(deadline_s):
        if not _has_timeline(path, config, fs):
            new.put_in_place()


def _newest_batch(path: Path, config: WheelConfig, fs: FileSystem) -> int:
    """Reads the newest batch in the timeline; 0 without one, or without a commit page."""
    try:
        with State.open(path, fs) as state:
            files = DirectoryFiles(path, config, state, TimerLog(path, fs), fs)
            with closing(timeline_class(config.timeline)(files)) as timeline:
                return timeline.newest_batch(state.commit().batch)
    except (FileNotFoundError, CorruptFile):
        return 0


def _has_timeline(path: Path, config: WheelConfig, fs: FileSystem) -> bool:
    """Runs 1. of the module's head; returns whether the timeline exists."""
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
        exists = timeline_class(config.timeline).exists(path, config, fs)
        if not exists and state.starts:
            _note_missing(path, config, state)
        if exists:
            # Otherwise a later start could find an old timeline of its kind.
            remove_timelines(path, [kind for kind in FILES if kind != config.timeline], fs)
        return exists


def _note_missing(path: Path, config: WheelConfig, state: State) -> None:
    """Records damage: the configured timeline is missing, or cannot be read."""
    damage = damage_without(path)
    if damage is Damage.FILES_LOST:
        log.error("the timeline is missing", kind=config.timeline, path=str(path))
    else:
        log.warning("the timeline is another one, or damaged: a new one is built", path=str(path))
    state.note_damage(damage)


def _new_state(path: Path, config: WheelConfig, fs: FileSystem) -> State:
    remove_timelines(path, FILES, fs)
    return State.create(path, config.precision_ms, config.slots, fs)


class _Logged:
    """Logs every few seconds how much of the timeline is written."""

    def __init__(self) -> None:
        self._next_s = time.monotonic() + _LOG_INTERVAL_S

    def __call__(self, done: int, size: int) -> None:
        if time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + _LOG_INTERVAL_S
            log.info("making the timeline", done_mib=done >> 20, size_mib=size >> 20)
