"""Reads raw Kafka record batches: the other direction of record_batch.py.

A broker answers a fetch with batches end to end; the last may be cut off:

    batch    header of 61 bytes (record_batch.py) | records, perhaps compressed

`committed_batches` goes from batch header to batch header. A broker sends the records of aborted
transactions too, with a list of these transactions: every client has to drop them. The records
themselves are read by record_reader.py.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from crc32c import crc32c

from duewheel.schemas.wire.compression import CODECS, Codec
from duewheel.schemas.wire.record_batch import CRC_END, HEADER, HEADER_BYTES, LENGTH_END, MAGIC

_FORMAT = 16  # where a batch has the number of its format
_LAST_DELTA = 23  # where a batch has its last offset delta
# Bits of a batch's attributes.
_CODEC, _LOG_APPEND_TIME, _TRANSACTIONAL, _CONTROL = 7, 1 << 3, 1 << 4, 1 << 5
# The key of a transaction marker, the one record of a control batch, behind five fields of one byte
# each: version and type, two bytes each. A commit has type 1.
_MARKER_KEY, _ABORT = slice(5, 9), b"\0\0\0\0"
# Of one batch. Without the bound a small compressed batch of empty records would take all memory.
RECORDS_MAX = 2_000_000


class CorruptBatch(Exception):
    """A checksum is wrong, a length does not fit, or the format is not known."""


@dataclass(frozen=True, slots=True)
class BatchBody:
    """The records of one batch, not compressed.

    Attributes:
        octets: a buffer with their bytes, and perhaps others.
        first, end: their range of bytes in the buffer.
        count: of records.
        base_offset, base_ms: what the deltas of records count from.
        append_ms: timestamp of all its records, if the broker stamps them (LogAppendTime); else -1.
        partition: as the caller of `committed_batches` numbers it.
    """

    octets: memoryview
    first: int
    end: int
    count: int
    base_offset: int
    base_ms: int
    append_ms: int
    partition: int


def committed_batches(
    octets: memoryview,
    aborted: Iterable[tuple[int, int]],
    decompress: Callable[[Codec, memoryview], bytes],
    partition: int = 0,
    until: int = 1 << 62,
) -> Iterator[BatchBody]:
    """The batches in a broker's answer for one partition, without aborted and control batches.

    Args:
        octets: the batches.
        aborted: the answer's list of aborted transactions: producer id, first offset.
        decompress: gives the records of a compressed batch; may raise CorruptBatch.
        partition: a number of the caller's, passed on in each `BatchBody`.
        until: an offset; the first batch that begins there or behind it ends the reading.

    Raises:
        CorruptBatch: a batch has another format, a wrong checksum, an unknown compression or too
            many records.
    """
    transactions = _Transactions(aborted)
    at = 0
    while at + HEADER_BYTES <= len(octets):
        _require_format(octets, at)
        base, length, _, _, crc, attributes, last_delta, *rest = HEADER.unpack_from(octets, at)
        base_ms, max_ms, producer_id, _, _, count = rest
        first, end = at + HEADER_BYTES, at + LENGTH_END + length
        if end > len(octets) or base >= until:
            break
        if crc32c(octets[at + CRC_END : end]) != crc:
            raise CorruptBatch(f"wrong checksum of the batch at offset {base}")
        if count > RECORDS_MAX:
            raise CorruptBatch(f"the batch at offset {base} has {count} records: too many")
        at = end
        if transactions.drop_next(attributes, producer_id, base + last_delta, octets[first:end]):
            continue
        append_ms = max_ms if attributes & _LOG_APPEND_TIME else -1
        body = (octets, first, end)
        if codec := attributes & _CODEC:
            if codec >= len(CODECS):
                raise CorruptBatch(f"unknown compression of the batch at offset {base}")
            try:
                plain = memoryview(decompress(CODECS[codec], octets[first:end]))
            except CorruptBatch as error:
                raise CorruptBatch(f"the batch at offset {base}: {error}") from error
            body = (plain, 0, len(plain))
        yield BatchBody(*body, count, base, base_ms, append_ms, partition)


class _Transactions:
    """The aborted transactions of one answer. It sees all batches of the answer, in their order."""

    def __init__(self, aborted: Iterable[tuple[int, int]]) -> None:
        # First offset and producer id of those that lie ahead.
        self._pending = sorted((first, producer_id) for producer_id, first in aborted)
        # Producers between the first batch of an aborted transaction and its marker. Without the
        # marker, a producer's next transaction would be dropped with the aborted one.
        self._aborting: set[int] = set()

    def drop_next(
        self, attributes: int, producer_id: int, last_offset: int, records: memoryview
    ) -> bool:
        """Take note of the next batch; returns whether it is dropped: aborted, or a marker."""
        if not attributes & (_TRANSACTIONAL | _CONTROL):
            return False
        while self._pending and self._pending[0][0] <= last_offset:
            self._aborting.add(self._pending.pop(0)[1])
        if not attributes & _CONTROL:
            return producer_id in self._aborting
        if bytes(records[_MARKER_KEY]) == _ABORT:
            self._aborting.discard(producer_id)
        return True


def _require_format(octets: memoryview, at: int) -> None:
    """The formats before Kafka 0.11 have their number at the same place, in shorter headers."""
    if octets[at + _FORMAT] != MAGIC:
        (base,) = struct.unpack_from(">q", octets, at)
        raise CorruptBatch(
            f"message format {octets[at + _FORMAT]} at offset {base}: only format 2, of Kafka 0.11 "
            "and later, is read"
        )


def end_offset(octets: memoryview) -> int:
    """The offset behind the last whole batch, dropped ones included; -1 if there is none.

    Raises:
        CorruptBatch: a batch has another format.
    """
    at, after = 0, -1
    while at + _FORMAT < len(octets):
        _require_format(octets, at)
        if at + HEADER_BYTES > len(octets):
            break
        base, length = struct.unpack_from(">qi", octets, at)
        (last,) = struct.unpack_from(">i", octets, at + _LAST_DELTA)
        if at + LENGTH_END + length > len(octets):
            break
        at, after = at + LENGTH_END + length, base + last + 1
    return after
