"""Reads raw Kafka record batches: the other direction of record_batch.py.

A broker answers a fetch with batches end to end; the last may be cut off:

    batch    header of 61 bytes (record_batch.py) | records, perhaps compressed

`committed_batches` goes from batch header to batch header. A broker sends the records of aborted
transactions too, with a list of these transactions: every client has to drop them. The records
themselves are read by record_reader.py.

Brokers accept batches that no reader can read: they check the checksum and little else. Such a
batch is passed on without content, for the reason that it has (`Defect`), and the next one is read.
A producer cannot write a wrong checksum, length, format or place in the log: these are damage of
the broker or on the way, another fetch may be right, and they raise CorruptBatch.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from duewheel.schemas.wire.batch_header import CRC_END, HEADER, HEADER_BYTES, LENGTH_END, MAGIC
from duewheel.schemas.wire.codec_names import CODECS, Codec
from duewheel.schemas.wire.crc32c import crc32c
from duewheel.schemas.wire.defects import Defect

_FORMAT = 16  # where a batch has the number of its format
_LAST_DELTA = 23  # where a batch has its last offset delta
_BASE_AND_LENGTH = struct.Struct(">qi")
_LENGTH_MIN = HEADER_BYTES - LENGTH_END  # of a batch without records
# Bits of a batch's attributes.
_CODEC, _LOG_APPEND_TIME, _TRANSACTIONAL, _CONTROL = 7, 1 << 3, 1 << 4, 1 << 5
# The key of a transaction marker, the one record of a control batch, after five fields of one byte
# each: version and type, two bytes each. A commit has type 1.
_MARKER_KEY, _ABORT = slice(5, 9), b"\0\0\0\0"
# Of one batch. Without the bound a small compressed batch of empty records would take all memory.
RECORDS_MAX = 2_000_000
# Of all records of one batch. A header of two bytes takes 150 bytes of memory while it is read, so
# without the bound a compressed batch of 25 KB could take 18 GB.
HEADERS_MAX = 1_000_000
# A record without key, value and headers: length, attributes, two deltas, two nulls, no headers.
_NO_BYTES, _EMPTY_RECORD = memoryview(b""), b"\x0c\0\0\0\1\1\0"
_EMPTY_BODY = (memoryview(_EMPTY_RECORD), 0, len(_EMPTY_RECORD))

BatchId = tuple[int, int]
"""First offset and checksum of a batch."""
_NO_PLAIN: Mapping[BatchId, memoryview] = MappingProxyType({})


class CorruptBatch(Exception):
    """A checksum or a length is wrong, or the format is not known."""


class Undecodable(Exception):
    """The records of a batch cannot be decompressed; `defect` says why. `tried_bytes`: at most so
    many were decompressed before that was found.
    """

    def __init__(self, defect: Defect, tried_bytes: int) -> None:
        super().__init__(defect.name)
        self.defect, self.tried_bytes = defect, tried_bytes


@dataclass(frozen=True, slots=True)
class BatchBody:
    """The records of one batch, not compressed."""

    octets: memoryview  # a buffer with their bytes, and perhaps others
    first: int  # the first of their bytes in the buffer; `end` is after the last one
    end: int
    count: int
    base_offset: int  # the deltas of records count from it
    base_ms: int  # likewise
    # Timestamp of all its records, if the broker stamps them (LogAppendTime); else -1
    append_ms: int
    partition: int  # as the caller of `committed_batches` numbers it
    last_offset: int
    crc: int = 0
    # Of a batch without content: it has one empty record instead of its own
    defect: Defect = Defect.NONE
    read_bytes: int = 0  # the bytes that the broker sent, or the decompressed ones if more

    @property
    def id(self) -> BatchId:
        """Distinguishes the batch from others of its partition."""
        return self.base_offset, self.crc

    def without_content(self, defect: Defect) -> BatchBody:
        """The same batch with one empty record at its first offset."""
        place = (self.base_offset, self.base_ms, self.append_ms, self.partition, self.last_offset)
        # Not by replace(), which takes three times as long: all batches of a fetch may need it.
        return BatchBody(*_EMPTY_BODY, 1, *place, self.crc, defect)


def uncounted(_octets: int, _reached: int, _share: int = 0) -> None:
    """For callers to whom the bytes of a log do not matter."""


def committed_batches(
    octets: memoryview,
    aborted: Iterable[tuple[int, int]],
    decompress: Callable[[Codec, memoryview], bytes | bytearray],
    partition: int = 0,
    until: int = 1 << 62,
    skipped: Collection[int] = (),
    plain_of: Mapping[BatchId, memoryview] = _NO_PLAIN,
    left_out: Callable[[int, int], None] = uncounted,
) -> Iterator[BatchBody]:
    """The batches in a broker's answer for one partition, without aborted and control batches.

    Args:
        aborted: the answer's list of aborted transactions: producer id, first offset.
        decompress: returns the records of a compressed batch; may raise Undecodable.
        partition: passed on in each `BatchBody`.
        until: an offset; the first batch that begins there or later ends the reading.
        skipped: first offsets of batches that are not read if they are compressed or damaged.
        plain_of: the decompressed records of some batches.
        left_out: called for each aborted and control batch with its bytes, and the offset after it.

    Raises:
        CorruptBatch: a batch has another format, a wrong length or checksum, or is out of place.
    """
    transactions = _Transactions(aborted)
    at, after = 0, -1
    while at + HEADER_BYTES <= len(octets):
        _require_header(octets, at)
        base, length, _, _, crc, attributes, last_delta, *rest = HEADER.unpack_from(octets, at)
        base_ms, max_ms, producer_id, _, _, count = rest
        first, end = at + HEADER_BYTES, at + LENGTH_END + length
        if end > len(octets) or base >= until:
            break
        is_whole = crc32c(octets[at + CRC_END : end]) == crc and last_delta >= 0 and base > after
        if not is_whole and base not in skipped:
            raise CorruptBatch(f"wrong checksum, or a wrong place, of the batch at offset {base}")
        at, after = end, base + max(last_delta, 0)
        is_left_out = transactions.drop_next(attributes, producer_id, after, octets[first:end])
        # Compaction keeps the header of a producer's last batch.
        if is_left_out or (count == 0 and first == end):
            left_out(end - first, after + 1)
            continue
        append_ms = max_ms if attributes & _LOG_APPEND_TIME else -1
        body, defect, read_bytes = (octets, first, end), Defect.NONE, end - first
        codec = attributes & _CODEC
        if base in skipped and (codec or not is_whole):
            defect = Defect.SKIPPED
        elif not 0 < count <= RECORDS_MAX:
            defect = Defect.COUNT
        elif codec:
            plain = plain_of.get((base, crc))
            if plain is None:
                plain, defect, tried_bytes = _plain(codec, octets[first:end], decompress)
                read_bytes = max(read_bytes, tried_bytes)
            body = (plain, 0, len(plain))
            read_bytes = max(read_bytes, len(plain))
        if defect:
            body, count = _EMPTY_BODY, 1
        place = (base, base_ms, append_ms, partition, after, crc)
        yield BatchBody(*body, count, *place, defect, read_bytes)


class _Transactions:
    """The aborted transactions of one answer. It sees all batches of the answer, in their order."""

    def __init__(self, aborted: Iterable[tuple[int, int]]) -> None:
        # First offset and producer id of those that follow, the next one last: an answer may name
        # 100,000 of them, and `pop(0)` moves all others.
        self._pending = sorted(((first, by) for by, first in aborted), reverse=True)
        # Producers between the first batch of an aborted transaction and its marker. Without the
        # marker, a producer's next transaction would be dropped with the aborted one.
        self._aborting: set[int] = set()

    def drop_next(
        self, attributes: int, producer_id: int, last_offset: int, records: memoryview
    ) -> bool:
        """Notes the next batch; returns whether it is dropped: aborted, or a marker."""
        if not attributes & (_TRANSACTIONAL | _CONTROL):
            return False
        while self._pending and self._pending[-1][0] <= last_offset:
            self._aborting.add(self._pending.pop()[1])
        if not attributes & _CONTROL:
            return producer_id in self._aborting
        if bytes(records[_MARKER_KEY]) == _ABORT:
            self._aborting.discard(producer_id)
        return True


def _plain(
    codec: int, body: memoryview, decompress: Callable[[Codec, memoryview], bytes | bytearray]
) -> tuple[memoryview, Defect, int]:
    """The decompressed records; none if they have a defect: then also its `tried_bytes`."""
    if codec >= len(CODECS):
        return _NO_BYTES, Defect.CODEC, 0
    try:
        return memoryview(decompress(CODECS[codec], body)), Defect.NONE, 0
    except Undecodable as error:
        return _NO_BYTES, error.defect, error.tried_bytes


def _require_header(octets: memoryview, at: int) -> None:
    """Refuses a batch with a wrong header: the next batch could not be found. The formats before
    Kafka 0.11 have their number at the same place, in shorter headers.
    """
    base, length = _BASE_AND_LENGTH.unpack_from(octets, at)
    if octets[at + _FORMAT] != MAGIC:
        raise CorruptBatch(
            f"message format {octets[at + _FORMAT]} at offset {base}: only format 2, of Kafka 0.11 "
            "and later, is read"
        )
    if length < _LENGTH_MIN:
        raise CorruptBatch(f"wrong length {length} of the batch at offset {base}")


def end_offset(octets: memoryview, until: int = 1 << 62) -> int:
    """The offset after the last whole batch, dropped ones included; -1 if there is none. It looks
    no further than the first batch that begins at `until` or later, for which that is the offset.

    Raises:
        CorruptBatch: a batch has another format, or a wrong length.
    """
    at, after = 0, -1
    while at + _FORMAT < len(octets):
        _require_header(octets, at)
        if at + HEADER_BYTES > len(octets):
            break
        base, length = _BASE_AND_LENGTH.unpack_from(octets, at)
        if base >= until:
            return until
        (last,) = struct.unpack_from(">i", octets, at + _LAST_DELTA)
        if at + LENGTH_END + length > len(octets):
            break
        at, after = at + LENGTH_END + length, base + max(last, 0) + 1
    return after
