"""Dequeue's copy of its progress in Kafka, a file of its own, replaced after each commit.

     0  u4  crc          CRC-32 of all that follows
     4  i8  r            R of the record
    12  i8  rows         timers delivered since the directory was made; -1: not counted yet
    20  ..  record       as Kafka has it

Invariant: the mirror is written after Kafka's commit, so it is never ahead of Kafka. It is synced
together with the state file: after a loss of power it may be missing, damaged or older.
"""

from __future__ import annotations

import struct
import zlib
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from duewheel.checkpoints.fs import FileSystem
from duewheel.errors import CorruptFile, RecoveryRefused

if TYPE_CHECKING:
    from duewheel.checkpoints.progress import Progress

FILE_NAME = "mirror"
UNCOUNTED = -1  # from a start until dequeue has all pending timers

_CRC = struct.Struct("<I")
_HEAD = struct.Struct("<qq")


class MirrorFields(NamedTuple):
    """The content of the file: R, the timers delivered since the directory was made or UNCOUNTED,
    the record of Kafka.
    """

    delivered_slot: int
    delivered_rows: int
    record: bytes


class Mirror(MirrorFields):
    """The content of the file, and the progress in it."""

    @classmethod
    def of(cls, progress: Progress, delivered_rows: int) -> Mirror:
        """Makes the mirror of a progress that Kafka has committed."""
        return cls(progress.delivered_slot, delivered_rows, progress.encode())

    @cached_property
    def progress(self) -> Progress:
        """The record, decoded.

        Raises:
            RecoveryRefused: another version wrote it.
        """
        # Not at the top: it imports numpy and pyarrow, and the supervisor reads no progress.
        from duewheel.checkpoints.progress import Progress

        return Progress.decode(self.record)

    @property
    def signs_copies(self) -> bool | None:
        """Whether copies carry a MAC: not in a shard that an older version began; None if another
        version wrote the progress.
        """
        try:
            return bool(self.progress.epochs.newest.copy_keys)
        except RecoveryRefused:
            return None


def write(path: Path, mirror: Mirror, fs: FileSystem) -> None:
    """Replaces the file; a reader sees the old or the new one.

    Raises:
        OSError: the disk is full, or fails; the old file stays.
    """
    payload = _HEAD.pack(mirror.delivered_slot, mirror.delivered_rows) + mirror.record
    fs.swap_file(path, _CRC.pack(zlib.crc32(payload)) + payload)


def read(path: Path) -> Mirror | None:
    """Reads the file; None if it is missing.

    Raises:
        CorruptFile: the file is damaged.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    payload = memoryview(data)[_CRC.size :]
    if len(payload) < _HEAD.size or _CRC.unpack_from(data)[0] != zlib.crc32(payload):
        raise CorruptFile(path, 0, "this is no mirror of a progress record")
    delivered_slot, delivered_rows = _HEAD.unpack_from(payload)
    return Mirror(delivered_slot, delivered_rows, bytes(payload[_HEAD.size :]))


def sync(path: Path, fs: FileSystem) -> None:
    """Makes the file durable, if it exists."""
    with suppress(FileNotFoundError):
        fs.sync_path(path)
        fs.sync_directory(path.parent)
