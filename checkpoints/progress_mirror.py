"""Dequeue's copy of its progress in Kafka, a file of its own, replaced after each commit.

     0  u4  crc          CRC-32 of all that follows
     4  i8  r            R of the record
    12  i8  delivered    timers delivered since the directory was made
    20  ..  record       as Kafka has it

It is written after Kafka's commit, so it is never ahead of Kafka, and durable when the state file
is: after a loss of power it may be missing, damaged or older.
"""

from __future__ import annotations

import struct
import zlib
from contextlib import suppress
from pathlib import Path

from duewheel.checkpoints import fs
from duewheel.errors import CorruptFile

FILE_NAME = "mirror"

_CRC = struct.Struct("<I")
_HEAD = struct.Struct("<qq")


def write(path: Path, r: int, delivered: int, record: bytes) -> None:
    """Replace the file; a reader sees the old or the new one.

    Raises:
        OSError: the disk is full, or fails; the old one is still there.
    """
    told = _HEAD.pack(r, delivered) + record
    fs.swap_file(path, _CRC.pack(zlib.crc32(told)) + told)


def read(path: Path) -> tuple[int, int, bytes] | None:
    """R, the number of timers delivered so far, and the record; None if nothing was written.

    Raises:
        CorruptFile: it is not what was written.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    told = memoryview(data)[_CRC.size :]
    if len(told) < _HEAD.size or _CRC.unpack_from(data)[0] != zlib.crc32(told):
        raise CorruptFile(path, 0, "this is no mirror of a progress record")
    r, delivered = _HEAD.unpack_from(told)
    return r, delivered, bytes(told[_HEAD.size :])


def sync(path: Path) -> None:
    """Make it durable, if it is there."""
    with suppress(FileNotFoundError):
        fs.sync_path(path)
        fs.sync_directory(path.parent)
