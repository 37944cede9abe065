"""Detects damage that shows only in the comparison of several files.

    the commit page and the files    each committed file exists, and has the length in the page
    the wheel and the log            a slot that seems empty in the wheel has no record in the log

The module of a file has the checks of that file alone. The caller records damage in `state`
(DataDirectory.mark_damaged): the next start recovers.
"""

from __future__ import annotations

import numpy as np
import structlog

from duewheel.checkpoints.commit_and_close_pages import Commit
from duewheel.checkpoints.recovery_decision import Local, read_local_state
from duewheel.checkpoints.state_file import Damage
from duewheel.errors import CorruptFile
from duewheel.schemas.arrays import Int64
from duewheel.wheel.slots import hour_of
from duewheel.wheel.storage.byte_layouts import ENTRY_BYTES
from duewheel.wheel.storage.data_directory import DataDirectory

log = structlog.get_logger(__name__)


def survey_files(directory: DataDirectory) -> Local:
    """Records missing and cut files as damage, then reads the state of the directory. Called under
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


def require_entries(directory: DataDirectory, slots: Int64) -> None:
    """Refuses slots that seem empty in the wheel because their entry is damaged. Only valid before
    their delivery: afterwards a later lap may have the entry.

    The entry of an empty slot was never used, or is still an earlier lap's. If damage to `time`
    makes a slot's own entry look like that, its last_pos leads to a committed record of the slot.
    An uncommitted record proves nothing: ingest may have been killed before the commit.

    Raises:
        CorruptFile: names the first such slot.
    """
    try:
        slots, last_pos = directory.wheel.require_sound(slots)
    except CorruptFile:
        close = directory.state.close()
        open_slots = slots[slots > close.lower] if close else slots
        if len(open_slots) == len(slots):
            raise
        require_entries(directory, open_slots)
        return
    if not len(slots):
        return
    hours, committed = hour_of(slots, directory.config.precision_ms), directory.state.commit().hours
    for hour in committed.keys() & np.unique(hours).tolist():
        rows = np.flatnonzero(hours == hour)
        log_bytes = committed[hour].log_bytes
        slot_in_log = directory.log.slots_at(
            hour, log_bytes, last_pos[rows], directory.config.precision_ms
        )
        lost = rows[slot_in_log == slots[rows]]
        if len(lost):
            place = int(slots[lost[0]]) % directory.config.ring
            detail = f"slot {slots[lost[0]]} has records and no entry"
            raise CorruptFile(directory.wheel.path, place * ENTRY_BYTES, detail)
