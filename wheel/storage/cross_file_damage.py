"""Compares the commit page with the files: each committed one exists, and has its length.

Other damage that shows only between two files: a slot that seems empty in the timeline has no
record in the log (`Timeline.require_sound`). The module of a file has the checks of that file
alone. The caller records damage in `state` (DataDirectory.mark_damaged): the next start recovers.
"""

from __future__ import annotations

import structlog

from duewheel.checkpoints.commit_and_close_pages import Commit
from duewheel.checkpoints.local_state import Local, read_local_state
from duewheel.checkpoints.state_file import Damage
from duewheel.errors import CorruptFile
from duewheel.wheel.storage.data_directory import DataDirectory

log = structlog.get_logger(__name__)


def survey_files(directory: DataDirectory) -> Local:
    """Records missing and cut files as damage, then reads the state of the directory. Under
    engine.lock.
    """
    local = read_local_state(directory.state, directory.path)
    if local.damage is Damage.NONE and not has_all_files(directory, local.commit):
        directory.state.note_damage(Damage.FILES_LOST)
        return read_local_state(directory.state, directory.path)
    return local


def has_all_files(directory: DataDirectory, commit: Commit) -> bool:
    """Returns whether every committed file has the length in the commit page."""
    try:
        directory.topics.require(commit.topics)
    except CorruptFile as error:
        log.warning("topic names are missing", reason=str(error))
        return False
    hours = {hour: files.lengths for hour, files in commit.hours.items()}
    return all(
        folder.size(hour) >= length
        for folders, lengths, gc_hour in (
            (directory.hour_folders, hours, directory.state.live.gc_hour),
            (directory.cancels.folders, commit.cancels, directory.state.live.gc_cancels),
        )
        for hour, of_hour in lengths.items()
        if hour >= gc_hour
        for folder, length in zip(folders, of_hour, strict=True)
    )
