"""Detects damage that only several files of a data directory show together.

    the commit page and the files    each committed file exists, and is as long as the page says
    the wheel and the log            a slot that looks empty in the wheel has no record in the log

Checks of one file lie with that file. The caller records damage in `state`
(DataDirectory.mark_damaged): the next start recovers.
"""

from __future__ import annotations

import numpy as np
import structlog

from duewheel.checkpoints.commit_and_close import Commit
from duewheel.checkpoints.recovery_decision import Local, read_local_state
from duewheel.checkpoints.state_file import Damage
from duewheel.errors import CorruptFile
from duewheel.schemas.arrays import Int64
from duewheel.wheel.slots import hour_of
from duewheel.wheel.storage.data_directory import DataDirectory
from duewheel.wheel.storage.layout import ENTRY_BYTES

log = structlog.get_logger(__name__)


def survey_files(directory: DataDirectory) -> Local:
    """The state of the directory, with missing and cut files noted as damage. Under engine.lock."""
    local = read_local_state(directory.state, directory.path)
    if local.damage is Damage.NONE and not has_all_files(directory, local.commit):
        directory.state.note_damage(Damage.FILES_LOST)
        return read_local_state(directory.state, directory.path)
    return local


def has_all_files(directory: DataDirectory, commit: Commit) -> bool:
    """Whether every file that counts is as long as the commit page says."""
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
    """Refuse slots that look empty in the wheel because their entry is damaged. Only before
    they are delivered: once the progress has passed a slot, its messages count as done, and a
    later lap may have its entry.

    The place of an empty slot was never used, or still is an earlier lap's. If damage to `time`
    makes a slot's own entry look like that, then its last_pos leads to a record of the slot:
    a committed one, for ingest may have been killed over any other.

    Raises:
        CorruptFile: naming the first one.
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
        found = directory.log.slots_at(
            hour, log_bytes, last_pos[rows], directory.config.precision_ms
        )
        lost = rows[found == slots[rows]]
        if len(lost):
            place = int(slots[lost[0]]) % directory.config.ring
            detail = f"slot {slots[lost[0]]} has records and no entry"
            raise CorruptFile(directory.wheel.path, place * ENTRY_BYTES, detail)
