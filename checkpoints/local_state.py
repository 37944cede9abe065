"""The files as a start finds them, and the record of dequeue's decision which of them are kept
(wheel/recovery/kept_files.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import ClassVar

from duewheel.checkpoints.commit_and_close_pages import NO_COMMIT, Close, Commit
from duewheel.checkpoints.durable_checkpoint import Durable
from duewheel.checkpoints.file_lock import lock_is_held
from duewheel.checkpoints.json_fields import StateFile
from duewheel.checkpoints.process_role import Role
from duewheel.checkpoints.progress import Progress
from duewheel.checkpoints.state_file import Damage, State
from duewheel.errors import CorruptFile, RecoveryRefused

FILE_NAME = "recovery"


class Keep(IntEnum):
    """How much of the local files a recovery keeps."""

    NOTHING = 0
    DURABLE = 1  # up to the lengths of the durable checkpoint
    ALL = 2  # up to the lengths of the commit page


@dataclass(frozen=True, slots=True)
class RecoveryRecord(StateFile):
    """Dequeue's decision for a starting ingest."""

    file_name: ClassVar[str] = FILE_NAME

    case: str  # as in kept_files.py
    keep: Keep
    generation: int  # number of this recovery; files of this generation need no further step
    boot_id: str  # of the host, at the decision
    dequeue_start: int  # number of the dequeue start that decided it


@dataclass(frozen=True, slots=True)
class Local:
    """The state of the data directory that a decision needs."""

    uuid: str
    # The one that its last start found in Kafka, and the one that it drew; no other progress is its
    # own.
    incarnations: tuple[int, int]
    damage: Damage
    commit: Commit
    close: Close | None
    mirror: Progress | None  # None before the first
    durable: Durable | None  # None if it is missing or damaged
    undone: bool  # whether a recovery was decided and is not applied yet
    pending: RecoveryRecord | None  # the record of that recovery, if it was written
    standby: bool = False

    @classmethod
    def absent(cls) -> Local:
        """Makes the state of a missing data directory, or of one whose name cannot be read."""
        return cls("", (0, 0), Damage.NONE, NO_COMMIT, None, None, None, undone=False, pending=None)

    @property
    def is_fresh(self) -> bool:
        """Whether the directory was never used: a boot of the host then lost nothing."""
        lost = self.damage is Damage.FILES_LOST
        return self.close is None and self.commit.batch == 0 and not lost


def read_local_state(state: State, directory: Path) -> Local:
    """Reads the state that a decision needs. An unreadable page or mirror, and a lost close page,
    count as damage, an unreadable durable checkpoint or recovery record as missing.
    """
    damage = state.damage
    commit, close, mirror = NO_COMMIT, None, None
    try:
        commit, close = state.commit(), state.close()
        mirrored = state.mirror()
        mirror = mirrored.progress if mirrored else None
    except (CorruptFile, RecoveryRefused):
        damage = max(damage, Damage.CACHE_LOST)
    if close is not None and close.floor < commit.floor:
        # The newest close page is lost. Late rows are in slots after those that it closed: by the
        # older page these slots would be closed again, and such rows count as done.
        damage = max(damage, Damage.CACHE_LOST)
    try:
        durable = Durable.read(directory)
    except CorruptFile:
        durable = None
    record = RecoveryRecord.read(directory)
    pending = record if record is not None and record.generation > state.recovered else None
    undone = pending is not None or state.generation > state.recovered
    return Local(
        state.uuid,
        state.incarnations,
        damage,
        commit,
        close,
        mirror,
        durable,
        undone,
        pending,
        state.standby,
    )


def is_own(progress: Progress, local: Local) -> bool:
    """Returns whether this directory, or an earlier state of it, has written the progress."""
    return progress.owner == local.uuid and progress.incarnation in local.incarnations


def dequeue_has_decided(state: State, directory: Path) -> RecoveryRecord | None:
    """Reads the recovery record of the running dequeue; None until that dequeue has written it."""
    record = RecoveryRecord.read(directory)
    if (
        record is not None
        and record.dequeue_start == state.dequeue_starts
        and record.boot_id == state.boot_id
        and lock_is_held(directory / Role.DEQUEUE.lock_name)
    ):
        return record
    return None
