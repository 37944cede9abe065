"""A data directory seen from outside: what a start of dequeue would find, without making one.

Takes no lock, makes and changes nothing, so that it works beside running processes, and where there
is no data directory.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from duewheel.checkpoints.recovery_decision import Local, read_local_state
from duewheel.checkpoints.state_file import Damage, State
from duewheel.errors import CorruptFile
from duewheel.wheel.slots import WheelConfig
from duewheel.wheel.storage import cancel_log, message_store, timer_log, timer_wheel, topic_registry
from duewheel.wheel.storage.data_directory import DataDirectory
from duewheel.wheel.storage.integrity import files_are_there
from duewheel.wheel.storage.timer_wheel import TimerWheel

# Opening a directory that lacks one of them makes it.
_MADE_WHEN_OPENED = (
    timer_log.FOLDER,
    message_store.FOLDER,
    *cancel_log.FOLDERS,
    topic_registry.FILE_NAME,
)


def survey(path: Path, config: WheelConfig) -> Local:
    """What the data directory at `path` says of itself, damage included that a start would note.

    Raises:
        ConfigError: it was made with another geometry.
    """
    try:
        known = State.open(path)
    except (FileNotFoundError, CorruptFile):
        return Local.absent()
    with known:
        known.require(config.precision_ms, config.slots)
        damage = _damage(path, config, known)
        local = read_local_state(known, path)
        # Each mirror goes with the close page that is the same before and after it.
        while (now := read_local_state(known, path)).close != local.close:
            local = now
        return replace(local, damage=max(local.damage, damage))


def _damage(path: Path, config: WheelConfig, known: State) -> Damage:
    if not known.starts:
        return Damage.NONE
    there = all((path / name).exists() for name in _MADE_WHEN_OPENED)
    if not there or not TimerWheel.is_there(path / timer_wheel.FILE_NAME, config.ring):
        return Damage.FILES_LOST
    directory = DataDirectory(path, config)
    try:
        # In this order: a batch is in its page before it is in the wheel.
        newest_batch = directory.wheel.newest_batch(known.commit().batch)
        commit = known.commit()
        directory.require_whole_state(commit, newest_batch)
        return Damage.NONE if files_are_there(directory, commit) else Damage.FILES_LOST
    except CorruptFile:
        return Damage.CACHE_LOST
    finally:
        directory.close()
