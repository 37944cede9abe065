"""The MessageStore: stored messages in one append-only file per slot hour, in run order.

Invariant: each read of a message verifies a checksum over its log record and the bytes that are
read. So every delivered byte was checked, and every field of its record. A cancel reads the prefix
and the id, which have a check of their own: a producer who writes large messages, and cancels of a
few bytes, would else have all of them read again and again.

The messages of a slot are scattered over the file if several batches have timers in the slot. A
read takes them in file order; one call reads neighbours with a small gap between them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from google_crc32c import value as crc32c

from duewheel.checkpoints.fs import HOST_FS, FileSystem, read_into
from duewheel.errors import CorruptFile
from duewheel.schemas import columns
from duewheel.schemas.arrays import Bool, Int64
from duewheel.schemas.columns import Column
from duewheel.schemas.hashing import id_hashes
from duewheel.wheel.storage.byte_layouts import PREFIX, PREFIX_BYTES, as_appended, head_checks
from duewheel.wheel.storage.hour_files import HourFiles
from duewheel.wheel.storage.timer_log import Records

FOLDER = "messages"

# A read across a gap of this size costs less than another call. Larger gaps would cost memory: a
# chunk may have one before each row.
_GAP_BYTES = 2 * 1024
CHECKED_AT_ONCE = 2_000  # rows whose bytes stay in the processor's cache
_PARTS = 5  # of a message: prefix, id, target, key and value, headers
_HEAD_BYTES_MAX = PREFIX_BYTES + 255  # of the prefix and the id
_HEADS_AT_ONCE = 10_000  # that one call reads; with gaps some 24 MB

Prefixes = npt.NDArray[np.void]  # of dtype PREFIX


@dataclass(frozen=True, slots=True)
class StoredMessages:
    """Messages that were read, one row each; columns as in schemas/batches.py."""

    prefix: Prefixes
    timer_id: Column  # empty for the default id
    target: Column
    key_value: Column
    headers: Column

    def take(self, rows: Int64) -> StoredMessages:
        columns_of = (self.timer_id, self.target, self.key_value, self.headers)
        return StoredMessages(self.prefix[rows], *(columns.take(each, rows) for each in columns_of))


def joined(parts: Sequence[StoredMessages]) -> StoredMessages:
    """Returns the rows of all parts, in their order."""
    texts = zip(*((p.timer_id, p.target, p.key_value, p.headers) for p in parts), strict=True)
    prefix = np.concatenate([part.prefix for part in parts])
    return StoredMessages(prefix, *(columns.concat(list(each)) for each in texts))


def checksums(records: Records, messages: Column) -> npt.NDArray[np.uint32]:
    """Computes CRC-32C of each log record followed by its stored message with a crc field of zero.

    No library computes one per row of a column. Joining the two and calling C once per row costs
    0.13 µs per message, in groups whose bytes stay in the processor's cache.
    """
    crc: Callable[..., int] = crc32c
    heads, crcs = as_column(records), np.empty(len(records), np.uint32)
    for first in range(0, len(records), CHECKED_AT_ONCE):
        parts = (column.slice(first, CHECKED_AT_ONCE) for column in (heads, messages))
        rows = columns.join(*parts).to_pylist()
        crcs[first : first + len(rows)] = np.fromiter(map(crc, rows), np.uint32)
    return crcs


def as_column(rows: npt.NDArray[np.void]) -> Column:
    """Views fixed-size rows as a binary column: it changes with them."""
    bounds = np.arange(len(rows) + 1, dtype=np.int64) * rows.dtype.itemsize
    return columns.from_parts(bounds, np.ascontiguousarray(rows).view(np.uint8))


def split_by_limits(
    records: Records, records_max: int = 20_000, bytes_max: int = 8 << 20
) -> Iterator[Records]:
    """Yields neighbours for one read: one row, or as many as stay below the bounds."""
    ends = np.cumsum(np.maximum(records["size_py"].astype(np.int64), 0))
    first = 0
    while first < len(records):
        before = ends[first - 1] if first else 0
        end = int(np.searchsorted(ends, before + bytes_max, "right"))
        end = min(max(end, first + 1), first + records_max)
        yield records[first:end]
        first = end


def split_by_count(records: Records, records_max: int = _HEADS_AT_ONCE) -> Iterator[Records]:
    """Yields neighbours for one call of `read_ids`."""
    for first in range(0, len(records), records_max):
        yield records[first : first + records_max]


class MessageStore:
    """The messages of every hour. Ingest writes, all processes read. Not thread-safe."""

    def __init__(self, directory: Path, fs: FileSystem = HOST_FS, folder: str = FOLDER) -> None:
        self.files = HourFiles(directory / folder, fs)

    def read(self, hour: int, records: Records) -> StoredMessages:
        """Reads the messages of these log records of one hour, in the records' order.

        Raises:
            CorruptFile: a message is outside the file or fails its checksum.
        """
        messages = self._verified(hour, records)
        prefix, bounds = _bounds(messages)
        return StoredMessages(prefix, *(_part(messages, bounds, place) for place in (1, 2, 3, 4)))

    def read_ids(self, hour: int, records: Records) -> tuple[Prefixes, Column]:
        """As `read`, but reads and returns only the prefixes and the ids, however large a message
        is. `split_by_count` divides records for it.
        """
        offset, size = self._inside(hour, records)
        order = np.argsort(offset)
        rank, size = np.argsort(order), np.minimum(size[order], _HEAD_BYTES_MAX)
        data, starts = self._read_sorted(hour, offset[order], size)
        octets = np.frombuffer(data, np.uint8)
        prefix = _prefixes_at(octets, starts)
        id_ends = np.minimum(starts + PREFIX_BYTES + prefix["id_size"], starts + size)
        # Alternately a gap between two ids, and an id.
        bounds = np.append(0, np.stack([starts + PREFIX_BYTES, id_ends], axis=1))
        ids = columns.take(columns.from_parts(bounds, octets), 2 * rank + 1)
        prefix = prefix[rank]
        check = prefix["head_check"].astype(np.uint32)
        prefix["crc"] = prefix["head_check"] = 0
        id_hash = np.where(columns.lengths(ids) > 0, id_hashes(ids), 0)
        self._require(hour, records, head_checks(as_appended(records), prefix, id_hash) == check)
        return prefix, ids

    def prefixes(self, hour: int, records: Records) -> Prefixes:
        """Reads only the prefixes of these messages, without verifying checksums: for counts, not
        for delivery. It does not read large messages.

        Raises:
            CorruptFile: a message is outside the file.
        """
        offset, _ = self._inside(hour, records)
        order = np.argsort(offset)
        data, starts = self._read_sorted(
            hour, offset[order], np.full(len(offset), PREFIX_BYTES, np.int64)
        )
        rows = np.empty(len(offset), PREFIX)
        rows[order] = _prefixes_at(np.frombuffer(data, np.uint8), starts)
        return rows

    def _inside(self, hour: int, records: Records) -> tuple[Int64, Int64]:
        """Returns offset and size of each message; raises CorruptFile for one outside the file."""
        offset = records["offset_py"].astype(np.int64)
        size = records["size_py"].astype(np.int64)
        path = self.files.path(hour)
        if np.any(offset < 0) or np.any(size < PREFIX_BYTES):
            raise CorruptFile(path, int(offset.min()), "a log record points at no message")
        # Checked before memory is allocated for a size that may be damaged.
        beyond = offset > self.files.size(hour) - size
        if np.any(beyond):
            at = int(offset[beyond][0])
            raise CorruptFile(path, at, "the file ends before a message that the log points at")
        return offset, size

    def _verified(self, hour: int, records: Records) -> Column:
        """Returns the bytes of each message, with crc fields of zero, once its checksum is
        verified; raises CorruptFile otherwise.
        """
        offset, size = self._inside(hour, records)
        order = np.argsort(offset)
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        data, starts = self._read_sorted(hour, offset[order], size[order])
        messages, crc = _in_order(data, starts, size[order], rank)
        del data  # frees a whole chunk's bytes, now copied
        self._require(hour, records, checksums(as_appended(records), messages) == crc)
        return messages

    def _require(self, hour: int, records: Records, good: Bool) -> None:
        if not good.all():
            at = int(records["offset_py"][np.flatnonzero(~good)[0]])
            path = self.files.path(hour)
            raise CorruptFile(path, at, "a stored message does not match its checksum")

    def target(self, hour: int, record: np.void) -> str:
        """Reads the target topic of one log record's message, without verifying the checksum: for
        display, not for delivery.

        Raises:
            CorruptFile: the file ends before the name.
        """
        offset = int(record["offset_py"])
        prefix = np.frombuffer(self.files.read(hour, offset, PREFIX_BYTES), PREFIX)[0]
        offset += PREFIX_BYTES + int(prefix["id_size"])
        size = min(int(prefix["target_size"]), int(record["size_py"]))
        return bytes(self.files.read(hour, offset, max(size, 0))).decode(errors="replace")

    def _read_sorted(self, hour: int, offset: Int64, size: Int64) -> tuple[bytearray, Int64]:
        """Reads the bytes at rising offsets, and returns the start of each message in them."""
        end = np.maximum.accumulate(offset + size)
        breaks = np.flatnonzero(offset[1:] > end[:-1] + _GAP_BYTES) + 1
        first = np.concatenate([[0], breaks])[: len(offset)]
        begin = offset[first]
        length = end[np.append(breaks, len(offset))[: len(first)] - 1] - begin
        at = np.cumsum(length) - length
        data = bytearray(int(length.sum()))
        view, fd, path = memoryview(data), self.files.fd(hour), self.files.path(hour)
        for source, target, count in zip(begin.tolist(), at.tolist(), length.tolist(), strict=True):
            read_into(fd, view[target : target + count], source, path)
        span = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(offset))))
        return data, offset - begin[span] + at[span]

    def close(self) -> None:
        self.files.close()


def _in_order(
    data: bytearray, starts: Int64, size: Int64, rank: Int64
) -> tuple[Column, npt.NDArray[np.uint32]]:
    """Sorts the messages at rising starts by `rank`; returns them with crc fields of zero, as a
    checksum is computed, and the checksums.
    """
    octets = np.frombuffer(data, np.uint8)
    fields = at_every_byte(octets, np.dtype(">u4"))
    crc = fields[starts][rank].astype(np.uint32)
    fields[starts] = 0
    # Alternately a gap between two messages, and a message.
    bounds = np.append(0, np.stack([starts, starts + size], axis=1).ravel())
    return columns.take(columns.from_parts(bounds, octets), 2 * rank + 1), crc


def _bounds(messages: Column) -> tuple[Prefixes, Int64]:
    """Returns the prefixes of verified messages, and the start of each part in the bytes of all."""
    octets, ends = columns.data(messages), columns.offsets(messages)
    starts = ends[:-1]
    prefix = _prefixes_at(octets, starts)
    id_start = starts + PREFIX_BYTES
    target_start = id_start + prefix["id_size"].astype(np.int64)
    key_value_start = target_start + prefix["target_size"].astype(np.int64)
    headers_start = key_value_start + prefix["key_value_size"].astype(np.int64)
    parts = [starts, id_start, target_start, key_value_start, headers_start]
    assert len(parts) == _PARTS
    return prefix, np.append(np.stack(parts, axis=1).ravel(), ends[-1])


def _prefixes_at(octets: npt.NDArray[np.uint8], starts: Int64) -> Prefixes:
    whole = np.dtype((np.void, PREFIX_BYTES))  # copied at once, not field by field
    prefix: Prefixes = at_every_byte(octets, whole)[starts].view(PREFIX)
    return prefix


def _part(messages: Column, bounds: Int64, place: int) -> Column:
    """Returns one part of each message, by its index; the prefix is the first."""
    blocks = columns.from_parts(bounds, columns.data(messages))
    return columns.take(blocks, _PARTS * np.arange(len(messages)) + place)


def at_every_byte(octets: npt.NDArray[np.uint8], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Returns a view of `octets` whose element i begins at byte i."""
    count = max(len(octets) - dtype.itemsize + 1, 0)
    return np.ndarray((count,), dtype, octets, strides=(1,))
