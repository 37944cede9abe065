"""The MessageStore: stored messages in one append-only file per slot hour, in run order.

A checksum over the log record and the stored message is verified whenever a message is read: a
delivered byte has been checked, and so has every field of the record that led to it.

Messages that a slot needs lie scattered over the file wherever several batches fed the slot. They
are read in file order in stretches: neighbours with a small gap between them in one call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from duewheel.checkpoints import files
from duewheel.errors import CorruptFile
from duewheel.schemas import columns
from duewheel.schemas.columns import Column
from duewheel.schemas.timers import Int64
from duewheel.wheel.hour_files import HourFiles
from duewheel.wheel.layout import PREFIX, PREFIX_BYTES
from duewheel.wheel.timer_log import Records

FOLDER = "messages"

# A call costs about what copying this many bytes from the page cache does.
_GAP_BYTES = 8 * 1024

Prefixes = npt.NDArray[np.void]  # of dtype PREFIX


@dataclass(frozen=True, slots=True)
class StoredMessages:
    """Messages read back, one row each.

    Attributes:
        prefix: array of dtype PREFIX.
        timer_id: large_binary, empty for the default id.
        key_value, headers: large_binary, as in schemas/timers.py.
    """

    prefix: Prefixes
    timer_id: Column
    key_value: Column
    headers: Column


def checksums(records: Records, messages: Column) -> npt.NDArray[np.uint32]:
    """CRC-32C of each log record followed by its stored message, whose crc field is zero.

    No library computes one per row of a column; two passes of C calls cost 0.2 µs per message.
    """
    crc: Callable[..., int] = crc32c
    seeds = map(crc, as_column(records).to_pylist())
    return np.fromiter(map(crc, messages.to_pylist(), seeds), np.uint32, len(records))


def as_column(rows: npt.NDArray[np.void]) -> Column:
    """Fixed-size rows as a binary column, without a loop."""
    bounds = np.arange(len(rows) + 1, dtype=np.int64) * rows.dtype.itemsize
    return columns.from_parts(bounds, np.frombuffer(rows.tobytes(), np.uint8))


class MessageStore:
    """The messages of every hour. Ingest writes, everybody reads. Not thread-safe."""

    def __init__(self, directory: Path) -> None:
        self.files = HourFiles(directory / FOLDER)

    def read(self, hour: int, records: Records) -> StoredMessages:
        """The messages of the given log records of one hour, in the records' order.

        Raises:
            CorruptFile: a message lies outside the file or fails its checksum.
        """
        offset = records["offset_py"].astype(np.int64)
        size = records["size_py"].astype(np.int64)
        path = self.files.path(hour)
        if np.any(offset < 0) or np.any(size < PREFIX_BYTES):
            raise CorruptFile(path, int(offset.min()), "a log record points at no message")
        order = np.argsort(offset, kind="stable")
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        data, starts = self._read_sorted(hour, offset[order], size[order])
        return self._take_apart(path, records, data, starts[rank], order, rank)

    def _read_sorted(self, hour: int, offset: Int64, size: Int64) -> tuple[bytearray, Int64]:
        """The bytes at rising offsets, and where each message begins in them."""
        end = np.maximum.accumulate(offset + size)
        breaks = np.flatnonzero(offset[1:] > end[:-1] + _GAP_BYTES) + 1
        first = np.concatenate([[0], breaks])[: len(offset)]
        begin = offset[first]
        length = end[np.append(breaks, len(offset))[: len(first)] - 1] - begin
        at = np.cumsum(length) - length
        data = bytearray(int(length.sum()))
        view, fd, path = memoryview(data), self.files.fd(hour), self.files.path(hour)
        for source, target, count in zip(begin.tolist(), at.tolist(), length.tolist(), strict=True):
            files.read_into(fd, view[target : target + count], source, path)
        stretch = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(offset))))
        return data, offset - begin[stretch] + at[stretch]

    def _take_apart(
        self,
        path: Path,
        records: Records,
        data: bytearray,
        starts: Int64,
        order: Int64,
        rank: Int64,
    ) -> StoredMessages:
        """Split each message into its parts and verify it."""
        octets = np.frombuffer(data, np.uint8)
        heads = octets[starts[:, None] + np.arange(PREFIX_BYTES)]
        prefix: Prefixes = heads.view(PREFIX)[:, 0]
        crc = prefix["crc"].astype(np.uint32)
        # The checksum was taken with its own field zero.
        octets[(starts[:, None] + np.arange(4)).ravel()] = 0
        size = records["size_py"].astype(np.int64)
        whole = _pieces(data, starts[order], [np.zeros_like(size), size[order]])
        bad = checksums(records, columns.take(whole[0], rank)) != crc
        if np.any(bad):
            at = int(records["offset_py"][np.flatnonzero(bad)[0]])
            raise CorruptFile(path, at, "a stored message does not match its checksum")
        id_end = PREFIX_BYTES + prefix["id_size"].astype(np.int64)
        key_value_end = id_end + prefix["key_value_size"].astype(np.int64)
        cuts = [np.full_like(size, PREFIX_BYTES), id_end, key_value_end, size]
        parts = _pieces(data, starts[order], [cut[order] for cut in cuts])
        return StoredMessages(prefix, *(columns.take(part, rank) for part in parts))

    def close(self) -> None:
        """Let go of every file."""
        self.files.close()


def _pieces(data: bytearray, starts: Int64, cuts: list[Int64]) -> list[Column]:
    """Columns of the bytes between neighbouring cuts, for messages at rising starts.

    One array over `data` whose elements are gap, piece, piece, …, gap, piece, … by turns; every
    column is a strided pick from it.
    """
    edges = np.stack([starts + cut for cut in cuts], axis=1)
    count, width = edges.shape
    offsets = np.append(0, edges.ravel())
    array = columns.from_parts(offsets, np.frombuffer(data, np.uint8))
    rows = np.arange(count) * width
    return [columns.take(array, rows + column) for column in range(1, width)]
