"""Reads raw Kafka record batches into columns: the other direction of record_batch.py.

A fetched range is record batches one after the other. Each is a header of 61 bytes and records,
each with its length before it: where a record starts is known only when the one before it is. The
starts are followed through all batches at once, one step for the n-th record of every batch; where
there are few batches, record by record. All other fields are then read of all records at once.

The broker only says which transactions were aborted: read_committed is applied here, as every Kafka
client must. Columns are positions in the fetched bytes (`Spans`); only what is used is copied out.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from crc32c import crc32c

from duewheel.schemas.arrays import Bool, Int32, Int64
from duewheel.schemas.columns import Bytes
from duewheel.schemas.wire.compression import CODECS, Codec
from duewheel.schemas.wire.spans import Spans
from duewheel.schemas.wire.varint import read_varint

_HEADER = struct.Struct(">qiibIhiqqqhii")  # see record_batch.py
HEADER_BYTES = _HEADER.size
_LENGTH_END, _CRC_END, _LAST_DELTA = 12, 21, 23
_CODEC, _LOG_APPEND_TIME, _TRANSACTIONAL, _CONTROL = 7, 1 << 3, 1 << 4, 1 << 5
_LOCKSTEP_FROM = 48  # batches: with fewer it is faster to follow the records one by one


class CorruptBatch(Exception):
    """A checksum is wrong, a length does not fit, or the format is not known."""


@dataclass(frozen=True, slots=True)
class BatchBody:
    """The records of one batch, not compressed.

    Attributes:
        octets: their bytes and perhaps others.
        first, end: of the records in it.
        count: of records.
        base_offset, base_ms: what the deltas of records count from.
        append_ms: timestamp of all its records, if the broker gives it; else -1.
        partition: index of its partition, for the caller.
    """

    octets: Any
    first: int
    end: int
    count: int
    base_offset: int
    base_ms: int
    append_ms: int
    partition: int


def committed_chunks(
    octets: memoryview,
    aborted: Iterable[tuple[int, int]],
    decompress: Callable[[Codec, memoryview], bytes],
    partition: int = 0,
    until: int = 1 << 62,
) -> Iterator[BatchBody]:
    """The batches of one response for one partition, without aborted ones and control batches.

    Args:
        octets: the response's records; the last batch may be cut off.
        aborted: the response's aborted transactions: producer id, first offset.
        decompress: gives the records of a compressed batch.
        partition: for the chunks.
        until: of batches that begin at this offset or behind it, nothing is read.

    Raises:
        CorruptBatch: see there.
    """
    transactions = _Transactions(aborted)
    at = 0
    while at + HEADER_BYTES <= len(octets):
        base, length, _, magic, crc, kind, last, base_ms, max_ms, producer, _, _, count = (
            _HEADER.unpack_from(octets, at)
        )
        first, end = at + HEADER_BYTES, at + _LENGTH_END + length
        if end > len(octets) or base >= until:
            break
        if magic != 2:
            raise CorruptBatch(f"message format {magic} at offset {base}: only format 2 is read")
        if crc32c(octets[at + _CRC_END : end]) != crc:
            raise CorruptBatch(f"wrong checksum of the batch at offset {base}")
        at = end
        if transactions.leave_out(kind, producer, base + last, octets[first:end]):
            continue
        append_ms = max_ms if kind & _LOG_APPEND_TIME else -1
        body = (octets, first, end)
        if kind & _CODEC:
            if kind & _CODEC >= len(CODECS):
                raise CorruptBatch(f"unknown compression of the batch at offset {base}")
            plain = memoryview(decompress(CODECS[kind & _CODEC], octets[first:end]))
            body = (plain, 0, len(plain))
        yield BatchBody(*body, count, base, base_ms, append_ms, partition)


class _Transactions:
    """The transactions of one response, batch by batch in their order."""

    def __init__(self, aborted: Iterable[tuple[int, int]]) -> None:
        self._pending = sorted((first, producer) for producer, first in aborted)
        self._aborting: set[int] = set()  # producers inside an aborted transaction

    def leave_out(self, kind: int, producer: int, last: int, body: memoryview) -> bool:
        """Whether this batch is aborted, or a marker."""
        if not kind & (_TRANSACTIONAL | _CONTROL):
            return False
        while self._pending and self._pending[0][0] <= last:
            self._aborting.add(self._pending.pop(0)[1])
        if not kind & _CONTROL:
            return producer in self._aborting
        # Its key is a version and a type, 0 for an abort, behind the record's four one-byte fields
        # and the key's length.
        if bytes(body[5:9]) == b"\0\0\0\0":
            self._aborting.discard(producer)
        return True


def end_offset(octets: memoryview) -> int:
    """The offset behind the last whole batch; -1 if there is none."""
    at, after = 0, -1
    while at + HEADER_BYTES <= len(octets):
        base, length = struct.unpack_from(">qi", octets, at)
        (last,) = struct.unpack_from(">i", octets, at + _LAST_DELTA)
        if at + _LENGTH_END + length > len(octets):
            break
        at, after = at + _LENGTH_END + length, base + last + 1
    return after


@dataclass(frozen=True, slots=True)
class RawRecords:
    """Records as columns; the first four have a row for each record.

    Attributes:
        partition: of its chunk.
        offset, timestamp_ms: of each.
        key, value: with nulls.
        key_value: both as they stand in the record, with their lengths.
        firsts: record → index of its first header; one more entry at the end.
        names, values: of all headers; a value may be null.
        headers: of all headers: name and value as they stand in the record, with their lengths.
    """

    partition: Int32
    offset: Int64
    timestamp_ms: Int64
    key: Spans
    value: Spans
    key_value: Spans
    firsts: Int64
    names: Spans
    values: Spans
    headers: Spans

    def __len__(self) -> int:
        return len(self.offset)


def read(chunks: Sequence[BatchBody]) -> RawRecords:
    """The records of the chunks, in their order.

    Raises:
        CorruptBatch: a length does not fit.
    """
    try:
        return _read(chunks)
    except IndexError as error:
        raise CorruptBatch("a record ends beyond its batch") from error


def _read(chunks: Sequence[BatchBody]) -> RawRecords:
    octets, firsts, ends = _joined(chunks)
    counts = np.array([chunk.count for chunk in chunks], np.int64)
    chunk = np.repeat(np.arange(len(chunks)), counts)
    of_chunks = partial(_of_chunks, chunks, chunk)
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
    _require(end <= ends[chunk], "a record ends beyond its batch")
    # A header has two bytes at least; without the bound a wrong count would take all memory.
    _require((header_count >= 0) & (2 * header_count <= end - at), "a wrong number of headers")
    first_header = np.zeros(len(at) + 1, np.int64)
    np.cumsum(header_count, out=first_header[1:])
    names, values, headers, at = _headers(octets, at, header_count, first_header)
    _require(at == end, "a record ends elsewhere than its length says")
    append_ms = of_chunks(lambda each: each.append_ms)
    timestamp_ms = of_chunks(lambda each: each.base_ms) + delta_ms
    return RawRecords(
        of_chunks(lambda each: each.partition).astype(np.int32),
        of_chunks(lambda each: each.base_offset) + delta,
        np.where(append_ms >= 0, append_ms, timestamp_ms),
        Spans(octets, key_at, key_length),
        Spans(octets, value_at, value_length),
        Spans(octets, key_value_at, key_value_end - key_value_at),
        first_header,
        names,
        values,
        headers,
    )


def _require(fits: Bool, otherwise: str) -> None:
    if not fits.all():
        raise CorruptBatch(otherwise)


def _of_chunks(
    chunks: Sequence[BatchBody], chunk: Int64, value: Callable[[BatchBody], int]
) -> Int64:
    """A value of its chunk for each record."""
    of_record: Int64 = np.array([value(each) for each in chunks], np.int64)[chunk]
    return of_record


def _joined(chunks: Sequence[BatchBody]) -> tuple[Bytes, Int64, Int64]:
    """One buffer for all chunks; first and end of each in it."""
    firsts = np.array([chunk.first for chunk in chunks], np.int64)
    ends = np.array([chunk.end for chunk in chunks], np.int64)
    if all(chunk.octets is chunks[0].octets for chunk in chunks):
        return np.frombuffer(chunks[0].octets, np.uint8), firsts, ends
    parts = [np.frombuffer(c.octets, np.uint8, c.end - c.first, c.first) for c in chunks]
    sizes = ends - firsts
    ends = np.cumsum(sizes)
    return np.concatenate(parts), ends - sizes, ends


def _headers(
    octets: Bytes, at: Int64, counts: Int64, firsts: Int64
) -> tuple[Spans, Spans, Spans, Int64]:
    """Names, values and both with their lengths; and the end of each record's headers. The n-th
    header of every record is read at once.
    """
    found = np.empty((6, firsts[-1]), np.int64)
    ends, row = at.copy(), np.arange(len(counts))
    same = counts[0] if len(counts) and (counts == counts[0]).all() else 0
    place, number = firsts[:-1], 0
    while True:
        more = counts > number
        if not more.all():
            place, at, counts, row = place[more], at[more], counts[more], row[more]
        if not len(row):
            break
        # Where all records have as many headers, their places are regular: no gather, no scatter.
        index = slice(number, None, same) if same else place + number
        name_length, name_at = _varints(octets, at)
        _require(name_length >= 0, "a header without a name")
        value_length, value_at = _varints(octets, name_at + name_length)
        after = value_at + np.maximum(value_length, 0)
        found[0, index], found[1, index] = name_at, name_length
        found[2, index], found[3, index] = value_at, value_length
        found[4, index], found[5, index] = at, after - at
        ends[row] = at = after
        number += 1
    names, values, both = (Spans(octets, found[i], found[i + 1]) for i in (0, 2, 4))
    return names, values, both, ends


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
    """Where each record starts."""
    if len(firsts) < _LOCKSTEP_FROM:
        return _starts_one_by_one(octets, firsts, counts)
    bounds = np.cumsum(counts) - counts
    order = np.argsort(-counts, kind="stable")
    at, place = firsts[order], bounds[order]
    living = np.searchsorted(-counts[order], -np.arange(1, int(counts.max()) + 1), "right")
    starts = np.empty(int(counts.sum()), np.int64)
    for number, count in enumerate(living.tolist()):
        at = at[:count]
        starts[place[:count] + number] = at
        length, after = _varints(octets, at)
        at = after + length
    return starts


def _starts_one_by_one(octets: Bytes, firsts: Int64, counts: Int64) -> Int64:
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
