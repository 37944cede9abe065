"""The files of a shard: opened for a command, identified, or verified. No lock is taken: the
shard's processes may run meanwhile.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from duewheel.api.files import CheckedFiles, FileFinding
from duewheel.checkpoints.fs import READING_FS, FileSystem
from duewheel.checkpoints.state_file import State
from duewheel.config.settings import Settings
from duewheel.errors import (
    AS_ITS_USER,
    ConfigError,
    CorruptFile,
    Misconfigured,
    NoDataDirectory,
    RecoveryPending,
    Unreadable,
)
from duewheel.runtime.shard_facts import ShardFacts
from duewheel.wheel.storage import full_check
from duewheel.wheel.storage.data_directory import DataDirectory
from duewheel.wheel.storage.findings import FINDINGS_MAX


def open_files(settings: Settings, fs: FileSystem = READING_FS) -> DataDirectory:
    """Opens the shard's data directory, in which its processes may run; by default only to read it.
    A with block, or the caller, closes it.

    Raises:
        NoDataDirectory: it does not exist yet.
    """
    with _existing(settings):
        return DataDirectory(settings.storage.data_dir, settings.wheel, fs)


def open_state(settings: Settings, fs: FileSystem = READING_FS) -> State:
    """Maps the directory's `state`, by default to read it; a with block, or the caller, releases
    it. Where nothing else depends on it, `suppress(DuewheelError, OSError)` stands before.

    Raises:
        NoDataDirectory: it does not exist yet.
    """
    with _existing(settings):
        return State.open(settings.storage.data_dir, fs)


def is_recovering(state: State) -> bool:
    """Whether a recovery is under way: pending timers may be missing in the files."""
    return ShardFacts(state, now_ms=0).is_recovering  # a fact without an age


def require_recovered(state: State) -> None:
    """Refuses a change that depends on the newest copy of a timer.

    Raises:
        RecoveryPending: a recovery is under way.
    """
    if is_recovering(state):
        raise RecoveryPending(
            "the shard recovers, and still reads its timer topics again: try later"
        )


@contextmanager
def _existing(settings: Settings) -> Iterator[None]:
    """Raises the lack of the data directory as NoDataDirectory, of rights as Unreadable;
    Misconfigured if it cannot be written.
    """
    data_dir = settings.storage.data_dir
    try:
        yield
    except (FileNotFoundError, NotADirectoryError) as error:
        raise settings.no_data_dir() from error
    except PermissionError as error:
        raise Unreadable(f"{data_dir} cannot be opened: {error}; {AS_ITS_USER}") from error
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        raise Misconfigured(f"{data_dir} cannot be written here: {error}") from error


def files_identity(settings: Settings) -> tuple[str, int, int]:
    """The directory's name, its last recovery, and the inode of `state`: one of them changes with
    the files. A restored copy has the same name, and another inode.

    Raises:
        NoDataDirectory: there is none.
        Unreadable: it is not of these settings, or not for this user.
        RecoveryPending: files may be cut at any moment.
    """
    try:
        with _existing(settings), open_state(settings) as state:
            if state.needs_recovery:
                raise RecoveryPending("the files are being recovered: try again")
            state.require(settings.wheel.precision_ms, settings.wheel.slots)
            return state.uuid, state.recovered, state.path.stat().st_ino
    except NoDataDirectory:
        raise
    except (ConfigError, CorruptFile, OSError) as error:
        raise Unreadable(f"{settings.storage.data_dir} cannot be read: {error}") from error


def check_files(settings: Settings) -> CheckedFiles:
    """Verifies all files of the data directory.

    Raises:
        ConfigError: there is no data directory, or it was made with another geometry.
    """
    with _existing(settings):
        report = full_check.check(settings.storage.data_dir, settings.wheel)
    findings = [
        FileFinding(file=each.file, offset=each.offset, code=each.code, detail=each.detail)
        for each in report.findings
    ]
    more = len(findings) >= FINDINGS_MAX
    return CheckedFiles(ok=report.ok, records=report.records, findings=findings, more=more)
