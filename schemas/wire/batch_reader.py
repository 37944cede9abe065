"""Reads raw Kafka record batches into columns: the other direction of record_batch.py.

A broker answers a fetch with batches end to end; the last may be cut off:

    batch    header of 61 bytes (record_batch.py) | records, perhaps compressed
    record   length | attributes, one byte | timestamp delta | offset delta
             | key length | key | value length | value | number of headers | headers
    header   name length | name | value length | value

Lengths, deltas and numbers of a record are zigzag varints (varint.py); the length of a null is -1.

    1. `committed_batches` goes from batch header to batch header. A broker sends the records of
       aborted transactions too, with a list of these transactions: every client has to drop them
    2. `read_batches` reads the records of many batches as columns. A record starts where the one
       before it ends, so the starts come first: in lockstep, the n-th record of every batch in one
       numpy step; of few batches record by record. Every other field is then read for all records
       at once

Columns of byte strings are positions in the fetched bytes (`Spans`): only the strings that are used
are copied out.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from crc32c import crc32c

from duewheel.schemas.arrays import Bool, Int64, bounds_of
from duewheel.schemas.batches import TopicPartition
from duewheel.schemas.columns import Bytes
from duewheel.schemas.wire.compression import CODECS, Codec
from duewheel.schemas.wire.kafka_records import KafkaRecords
from duewheel.schemas.wire.record_batch import CRC_END, HEADER, HEADER_BYTES, LENGTH_END, MAGIC
from duewheel.schemas.wire.spans import RawHeaders, Spans
from duewheel.schemas.wire.varint import read_varint

_LAST_DELTA = 23  # where a batch has its last offset delta
# Bits of a batch's attributes.
_CODEC, _LOG_APPEND_TIME, _TRANSACTIONAL, _CONTROL = 7, 1 << 3, 1 << 4, 1 << 5
# The key of a transaction marker, the one record of a control batch, behind five fields of one byte
# each: version and type, two bytes each. A commit has type 1.
_MARKER_KEY, _ABORT = slice(5, 9), b"\0\0\0\0"
_LOCKSTEP_FROM = 48  # batches: with fewer it is faster to follow the records one by one


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
        CorruptBatch: a batch has another format, a wrong checksum or an unknown compression.
    """
    transactions = _Transactions(aborted)
    at = 0
    while at + HEADER_BYTES <= len(octets):
        base, length, _, magic, crc, attributes, last_delta, *rest = HEADER.unpack_from(octets, at)
        base_ms, max_ms, producer_id, _, _, count = rest
        first, end = at + HEADER_BYTES, at + LENGTH_END + length
        if end > len(octets) or base >= until:
            break
        if magic != MAGIC:
            raise CorruptBatch(f"message format {magic} at offset {base}: only format 2 is read")
        if crc32c(octets[at + CRC_END : end]) != crc:
            raise CorruptBatch(f"wrong checksum of the batch at offset {base}")
        at = end
        if transactions.drop_next(attributes, producer_id, base + last_delta, octets[first:end]):
            continue
        append_ms = max_ms if attributes & _LOG_APPEND_TIME else -1
        body = (octets, first, end)
        if codec := attributes & _CODEC:
            if codec >= len(CODECS):
                raise CorruptBatch(f"unknown compression of the batch at offset {base}")
            plain = memoryview(decompress(CODECS[codec], octets[first:end]))
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


def end_offset(octets: memoryview) -> int:
    """The offset behind the last whole batch, dropped ones included; -1 if there is none."""
    at, after = 0, -1
    while at + HEADER_BYTES <= len(octets):
        base, length = struct.unpack_from(">qi", octets, at)
        (last,) = struct.unpack_from(">i", octets, at + _LAST_DELTA)
        if at + LENGTH_END + length > len(octets):
            break
        at, after = at + LENGTH_END + length, base + last + 1
    return after


def read_batches(
    batches: Sequence[BatchBody], partitions: Sequence[TopicPartition]
) -> KafkaRecords:
    """The records of the batches, in their order.

    Args:
        batches: of any partitions.
        partitions: that `BatchBody.partition` indexes.

    Raises:
        CorruptBatch: a length does not fit.
    """
    try:
        return _read(batches, list(partitions))
    except IndexError as error:
        raise CorruptBatch("a record ends beyond its batch") from error


def _read(batches: Sequence[BatchBody], partitions: list[TopicPartition]) -> KafkaRecords:
    """As `read_batches`. `at` has a position for each record: that of its next unread field.

    Raises:
        IndexError: a position lies beyond the bytes.
    """
    octets, firsts, ends = _joined(batches)
    counts = np.array([batch.count for batch in batches], np.int64)
    batch_of = np.repeat(np.arange(len(batches)), counts)
    of_batches = partial(_of_batches, batches, batch_of)
    at = _starts(octets, firsts, counts)
    length, at = _varints(octets, at)
    end = at + length
    delta_ms, at = _varints(octets, at + 1)  # behind the attributes
    delta, at = _varints(octets, at)
    key_value_at = at
    key_length, key_at = _varints(octets, at)
    value_length, value_at = _varints(octets, key_at + np.maximum(key_length, 0))
    key_value_end = value_at + np.maximum(value_length, 0)
    header_count, at = _varints(octets, key_value_end)
    _require(end <= ends[batch_of], "a record ends beyond its batch")
    # A header has two bytes at least; without the bound a wrong count would take all memory.
    _require((header_count >= 0) & (2 * header_count <= end - at), "a wrong number of headers")
    headers, at = _headers(octets, at, header_count)
    _require(at == end, "a record ends elsewhere than its length says")
    append_ms = of_batches(lambda each: each.append_ms)
    timestamp_ms = of_batches(lambda each: each.base_ms) + delta_ms
    return KafkaRecords(
        partitions,
        of_batches(lambda each: each.partition).astype(np.int32),
        of_batches(lambda each: each.base_offset) + delta,
        np.where(append_ms >= 0, append_ms, timestamp_ms),
        Spans(octets, key_at, key_length),
        Spans(octets, value_at, value_length),
        Spans(octets, key_value_at, key_value_end - key_value_at),
        headers,
    )


def _require(fits: Bool, otherwise: str) -> None:
    if not fits.all():
        raise CorruptBatch(otherwise)


def _of_batches(
    batches: Sequence[BatchBody], batch_of: Int64, value: Callable[[BatchBody], int]
) -> Int64:
    """For each record the value of its batch; `batch_of`: record → index in `batches`."""
    of_records: Int64 = np.array([value(each) for each in batches], np.int64)[batch_of]
    return of_records


def _joined(batches: Sequence[BatchBody]) -> tuple[Bytes, Int64, Int64]:
    """One buffer with the records of all batches; where those of each begin and end in it."""
    firsts = np.array([batch.first for batch in batches], np.int64)
    ends = np.array([batch.end for batch in batches], np.int64)
    if all(batch.octets is batches[0].octets for batch in batches):
        return np.frombuffer(batches[0].octets, np.uint8), firsts, ends
    parts = [np.frombuffer(b.octets, np.uint8, b.end - b.first, b.first) for b in batches]
    sizes = ends - firsts
    ends = np.cumsum(sizes)
    return np.concatenate(parts), ends - sizes, ends


def _headers(octets: Bytes, at: Int64, counts: Int64) -> tuple[RawHeaders, Int64]:
    """The headers of all records, and where those of each record end.

    One step reads the n-th header of every record that has so many.

    Args:
        octets: the records.
        at: where the first header of each record begins.
        counts: of each record's headers.
    """
    firsts = bounds_of(counts)
    # Rows: start and length of names, of values, of both. Columns: the headers.
    found = np.empty((6, firsts[-1]), np.int64)
    ends, record = at.copy(), np.arange(len(counts))
    same_count = counts[0] if len(counts) and (counts == counts[0]).all() else 0
    first, number = firsts[:-1], 0
    while True:
        more = counts > number
        if not more.all():
            first, at, counts, record = first[more], at[more], counts[more], record[more]
        if not len(record):
            break
        # Where all records have as many headers, those of one step are evenly spaced: numpy stores
        # through a slice faster than through indexes.
        index = slice(number, None, same_count) if same_count else first + number
        name_length, name_at = _varints(octets, at)
        _require(name_length >= 0, "a header without a name")
        value_length, value_at = _varints(octets, name_at + name_length)
        after = value_at + np.maximum(value_length, 0)
        found[0, index], found[1, index] = name_at, name_length
        found[2, index], found[3, index] = value_at, value_length
        found[4, index], found[5, index] = at, after - at
        ends[record] = at = after
        number += 1
    names, values, both = (Spans(octets, found[i], found[i + 1]) for i in (0, 2, 4))
    return RawHeaders(firsts, names, values, both), ends


def _varints(octets: Bytes, at: Int64) -> tuple[Int64, Int64]:
    """The zigzag varints at these positions, and the positions behind them."""
    low = octets[at]
    at = at + 1
    value = (low & 127).astype(np.int64)
    long = np.flatnonzero(low & 128)
    shift = 7
    while len(long):
        if shift > 63:
            raise CorruptBatch("a number without an end")
        septet = octets[at[long]]
        at[long] += 1
        value[long] |= (septet & 127).astype(np.int64) << shift
        long = long[septet >= 128]
        shift += 7
    return (value >> 1) ^ -(value & 1), at


def _starts(octets: Bytes, firsts: Int64, counts: Int64) -> Int64:
    """Where each record starts, those of a batch after those of the batch before.

    Args:
        octets: the records of all batches.
        firsts: where the first record of each batch starts.
        counts: of each batch's records.
    """
    if len(firsts) < _LOCKSTEP_FROM:
        return _starts_one_by_one(octets, firsts, counts)
    # Batches with the most records first: those that have an n-th record are a prefix.
    order = np.argsort(-counts, kind="stable")
    at, row = firsts[order], (np.cumsum(counts) - counts)[order]
    prefixes = np.searchsorted(-counts[order], -np.arange(1, int(counts.max()) + 1), "right")
    starts = np.empty(int(counts.sum()), np.int64)
    for number, prefix in enumerate(prefixes.tolist()):
        at = at[:prefix]
        starts[row[:prefix] + number] = at
        length, after = _varints(octets, at)
        at = after + length
    return starts


def _starts_one_by_one(octets: Bytes, firsts: Int64, counts: Int64) -> Int64:
    """As `_starts`. A numpy call costs as much as following some dozen records in Python."""
    starts = [0] * int(counts.sum())
    raw, ends = octets.data, np.cumsum(counts).tolist()
    for at, count, end in zip(firsts.tolist(), counts.tolist(), ends, strict=True):
        for record in range(end - count, end):
            starts[record] = at
            octet = raw[at]
            if octet < 128:  # a length is a varint, mostly of two bytes
                at += 1 + (octet >> 1)
                continue
            second = raw[at + 1]
            if second < 128:
                at += 2 + ((octet & 127 | second << 7) >> 1)
                continue
            length, after = read_varint(raw, at)
            at = after + length
    return np.array(starts, np.int64)
