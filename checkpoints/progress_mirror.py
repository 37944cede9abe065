"""Dequeue's copy of its progress in Kafka, a file of its own, written after each commit.

The file has two pages, its halves. A write goes to the one that is not the newest whole one, so it
spoils that for no kill and no reader. Only a first record, or one larger than a page, makes a new
file: a rename takes milliseconds. Little-endian:

     0  u4  crc          CRC-32 of the rest, the record included
     4  u8  sequence     rises by one with every write; its lowest bit is the page
    12  i8  r            R of the record
    20  i8  rows         timers delivered since the directory was made; -1: not counted yet
    28  u4  length       of the record
    32  ..  record       as Kafka has it

Invariant: the mirror is written after Kafka's commit, so it is never ahead of Kafka. It is synced
together with the state file: after a loss of power it may be missing, damaged or older.
"""

from __future__ import annotations

import os
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
_HEAD = struct.Struct("<QqqI")
_PAGE_BYTES_MIN = 4096


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
    """Writes the mirror; a reader sees the old or the new one. One process writes at a time.

    Raises:
        OSError: the disk is full, or fails; the old mirror stays.
    """
    with suppress(FileNotFoundError):
        fd = fs.open_existing(path)
        try:
            data = os.pread(fd, os.fstat(fd).st_size, 0)
            newest, sequence = _newest(data)
            page = _page(mirror, sequence + 1)
            if newest is not None and len(page) <= len(data) // 2:
                fs.write_at(fd, page, len(data) // 2 * (sequence + 1 & 1))
                return
        finally:
            fs.close(fd)
    page = _page(mirror, 0)
    page_bytes = max(_PAGE_BYTES_MIN, 1 << len(page).bit_length())
    fs.swap_file(path, page.ljust(2 * page_bytes, b"\0"))


def read(path: Path) -> Mirror | None:
    """Reads the file; None if it is missing.

    Raises:
        CorruptFile: the file is damaged.
    """
    # A writer that overtakes this reader can spoil both pages, but not many times in a row.
    for _ in range(100):
        try:
            newest, _ = _newest(path.read_bytes())
        except FileNotFoundError:
            return None
        if newest is not None:
            return newest
    raise CorruptFile(path, 0, "this is no mirror of a progress record")


def _page(mirror: Mirror, sequence: int) -> bytes:
    head = _HEAD.pack(sequence, mirror.delivered_slot, mirror.delivered_rows, len(mirror.record))
    payload = head + mirror.record
    return _CRC.pack(zlib.crc32(payload)) + payload


def _newest(data: bytes) -> tuple[Mirror | None, int]:
    """Returns the mirror in the newest whole page of a file, if there is one, and its sequence."""
    found, newest, half = None, -1, len(data) // 2
    pages = (data[:half], data[half:]) if half >= _CRC.size + _HEAD.size else ()
    for number, page in enumerate(pages):
        sequence, delivered_slot, delivered_rows, length = _HEAD.unpack_from(page, _CRC.size)
        payload = page[_CRC.size : _CRC.size + _HEAD.size + length]
        is_whole = _CRC.unpack_from(page)[0] == zlib.crc32(payload)
        if is_whole and sequence & 1 == number and sequence > newest:
            mirror = Mirror(delivered_slot, delivered_rows, payload[_HEAD.size :])
            found, newest = mirror, sequence
    return found, newest


def sync(path: Path, fs: FileSystem) -> None:
    """Makes the file durable, if it exists."""
    with suppress(FileNotFoundError):
        fs.sync_path(path)
        fs.sync_directory(path.parent)
