"""Reads a data directory from outside: the state from which a start of dequeue would decide.

Takes no lock, changes no file and makes none, so it works beside running processes, and where there
is no data directory.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from duewheel.checkpoints.fs import HOST_FS, FileSystem
from duewheel.checkpoints.local_state import Local, read_local_state
from duewheel.checkpoints.state_file import Damage, State
from duewheel.errors import CorruptFile
from duewheel.wheel.slots import WheelConfig
from duewheel.wheel.storage.cross_file_damage import has_all_files
from duewheel.wheel.storage.data_directory import DataDirectory
from duewheel.wheel.storage.timelines.kinds import damage_without, timeline_class


def survey(path: Path, config: WheelConfig, fs: FileSystem = HOST_FS) -> Local:
    """Reads the state of the data directory at `path`, with the damage that a start would record.

    Raises:
        ConfigError: it was made with another geometry.
    """
    try:
        state = State.open(path, fs)
    except (FileNotFoundError, CorruptFile):
        return Local.absent()
    with state:
        state.require(config.precision_ms, config.slots)
        damage = _damage(path, config, state, fs)
        local = read_local_state(state, path)
        # Dequeue may close meanwhile: the mirror would be newer than the close page read before it.
        while (now := read_local_state(state, path)).close != local.close:
            local = now
        return replace(local, damage=max(local.damage, damage))


def _damage(path: Path, config: WheelConfig, state: State, fs: FileSystem) -> Damage:
    if not state.starts:
        return Damage.NONE
    if not timeline_class(config.timeline).exists(path, config, fs):
        return damage_without(path)
    directory = DataDirectory(path, config, fs)
    try:
        # Timeline before page: a batch that is committed in between would seem to be a lost page.
        newest_batch = directory.timeline.newest_batch(state.commit().batch)
        commit = state.commit()
        directory.require_whole_state(commit, newest_batch)
        return Damage.NONE if has_all_files(directory, commit) else Damage.FILES_LOST
    except CorruptFile:
        return Damage.CACHE_LOST
    finally:
        directory.close()
