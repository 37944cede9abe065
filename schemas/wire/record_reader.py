"""Reads the records of Kafka's record batches as columns.

A batch has records end to end:

    record   length | attributes, one byte | timestamp delta | offset delta
             | key length | key | value length | value | number of headers | headers
    header   name length | name | value length | value

Lengths, deltas and numbers are zigzag varints; a negative length is that of a null. Like Java's
clients, this reader takes 32 bits of them, of the timestamp delta 64, and drops further ones.

    1. A record starts where the one before it ends, so the starts come first: in lockstep, the n-th
       record of every batch in one numpy step; of few batches record by record.
    2. Every other field is read for all records at once, and the headers as the records: the n-th
       of all records in one step, and header by header where few records have that many.

So the time is proportional to the bytes, however they are divided. Columns of byte strings are
positions in the fetched bytes (`Spans`): only the strings that are used are copied out.

Any bytes may come: brokers check little of a batch. Positions only grow, and beyond the buffer its
last byte is read instead. A batch is therefore judged at the end: its records and their headers
have to end where they should, and its offsets to rise. A batch that fails is one row without
content (`Unread`), and the others are read without it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow.compute

from duewheel.schemas.arrays import Bool, Int32, Int64, bounds_of
from duewheel.schemas.batches import TopicPartition
from duewheel.schemas.columns import Bytes, Column, binary, concat, data, filled, join, offsets
from duewheel.schemas.wire.batch_reader import HEADERS_MAX, BatchBody
from duewheel.schemas.wire.defects import Defect
from duewheel.schemas.wire.kafka_records import KafkaRecords, Unread
from duewheel.schemas.wire.record_codec import framed, framed_bytes, key_values
from duewheel.schemas.wire.spans import RawHeaders, Spans

_pc: Any = pyarrow.compute

# Batches, and records with a further header: fewer are faster to follow one by one in Python.
_LOCKSTEP_FROM, _HEADERS_LOCKSTEP_FROM = 48, 256
_RECORD_BYTES_MIN, _HEADER_BYTES_MIN = 7, 2
# How many bytes a length of one byte and its string have, 0 for a longer length. An odd one is
# negative: of a null.
_HOPS = bytes(0 if octet > 127 else 1 if octet & 1 else 1 + (octet >> 1) for octet in range(256))
_NOWHERE = 1 << 48  # a position that no record reaches: of a number without an end


def read_batches(
    batches: Sequence[BatchBody], partitions: Sequence[TopicPartition]
) -> KafkaRecords:
    """The records of the batches, in their order; `BatchBody.partition` indexes `partitions`."""
    found = _read(batches, list(partitions))
    if not isinstance(found, KafkaRecords):
        batches = [
            batch.without_content(Defect(defect)) if defect else batch
            for batch, defect in zip(batches, found.tolist(), strict=True)
        ]
        found = _read(batches, list(partitions))
        assert isinstance(found, KafkaRecords), "a batch without content can be read"
    return found


def _read(batches: Sequence[BatchBody], partitions: list[TopicPartition]) -> KafkaRecords | Int64:
    """The records; or the Defect of each batch, if one of them has a defect not yet known."""
    # Shape of firsts, ends and counts: the batches; of all other arrays: the records.
    octets, firsts, ends = _joined(batches)
    counts = np.array([batch.count for batch in batches], np.int64)
    defect = np.where(_RECORD_BYTES_MIN * counts > ends - firsts, Defect.COUNT, Defect.NONE)
    # Without this bound, a wrong count would take all memory.
    counts[defect != Defect.NONE] = 0
    batch_of = np.repeat(np.arange(len(batches)), counts)  # record → index in `batches`

    def of_batch(value: Callable[[BatchBody], int]) -> Int64:
        """For each record, the value of its batch."""
        of_records: Int64 = np.array([value(batch) for batch in batches], np.int64)[batch_of]
        return of_records

    starts, afters = _starts(octets, firsts, ends, counts)
    defect[(afters != ends) & (defect == Defect.NONE)] = Defect.LENGTHS
    fields = _Fields(octets, starts)
    length = fields.number()
    end = fields.at + np.maximum(length, 0)
    limit = np.minimum(end, ends[batch_of])
    fields.skip_byte()  # the attributes
    delta_ms, delta = fields.long_number(), fields.number()
    key_value_at = fields.at
    key, value = fields.string(), fields.string()
    key_value = Spans(octets, key_value_at, fields.at - key_value_at)
    header_count = fields.number()
    fits = (header_count >= 0) & (_HEADER_BYTES_MIN * header_count <= limit - fields.at)
    header_count = np.where(fits, header_count, 0)
    crowded = np.bincount(batch_of, header_count, len(batches)) > HEADERS_MAX
    header_count[crowded[batch_of]] = 0
    headers, headers_end, is_odd = _headers(octets, fields.at, limit, header_count)
    fits &= (length >= 0) & (headers_end == end) & (end == limit)
    rise = _rise(delta, bounds_of(counts)[:-1][counts > 0])
    rise &= delta <= of_batch(lambda batch: batch.last_offset - batch.base_offset)
    defect[batch_of[~rise]] = Defect.OFFSETS
    # After the offsets: that of a record with wrong lengths may be bytes of the next batch, and a
    # defect must be the same whatever batches are read together.
    defect[batch_of[~fits]] = Defect.LENGTHS
    defect[crowded] = Defect.HEADERS
    if defect.any():
        return defect
    # Other readers of the target would read other lengths than Java's.
    if fields.is_odd:
        key_value = Spans.of(key_values(key.column(), value.column()))
    if is_odd:
        name_value = (*framed(headers.names.column()), *framed(headers.values.column()))
        headers = replace(headers, both=Spans.of(join(*name_value)))

    append_ms = of_batch(lambda batch: batch.append_ms)
    producer_ms = of_batch(lambda batch: batch.base_ms) + delta_ms
    offset = of_batch(lambda batch: batch.base_offset) + delta
    return KafkaRecords(
        partitions=partitions,
        partition=of_batch(lambda batch: batch.partition).astype(np.int32),
        offset=offset,
        timestamp_ms=np.where(append_ms >= 0, append_ms, producer_ms),
        key=key,
        value=value,
        key_value=key_value,
        headers=headers,
        unread=_unread(batches, counts),
    )


def _unread(batches: Sequence[BatchBody], counts: Int64) -> Unread | None:
    if not any(batch.defect for batch in batches):
        return None
    defect = np.array([batch.defect for batch in batches], np.int64)
    last = np.array([batch.last_offset for batch in batches], np.int64)
    some = np.flatnonzero(defect)
    return Unread(bounds_of(counts)[:-1][some], last[some], defect[some])


def _rise(delta: Int64, firsts: Int64) -> Bool:
    """Which records have a larger offset delta than the one before in their batch. `firsts` are the
    first records of batches.
    """
    before = np.empty_like(delta)
    before[1:] = delta[:-1]
    before[firsts] = -1
    rise: Bool = delta > before
    return rise


class _Fields:
    """Reads records side by side: each call reads the next field of all of them."""

    def __init__(self, octets: Bytes, at: Int64) -> None:
        self.octets = octets
        self.at = at  # position of each record's next field
        self.is_odd = False  # whether a length of a string is not in its shortest form

    def number(self) -> Int64:
        """The varint of each record, 32 bits."""
        value, self.at, _ = _varints(self.octets, self.at)
        return value

    def long_number(self) -> Int64:
        """The varint of each record, 64 bits."""
        value, self.at, _ = _varints(self.octets, self.at, long=True)
        return value

    def skip_byte(self) -> None:
        self.at = self.at + 1

    def string(self) -> Spans:
        """The byte string of each record, after its length."""
        length, self.at, is_odd = _varints(self.octets, self.at)
        if int(length.min(initial=0)) < -1:
            length, is_odd = np.maximum(length, -1), True
        self.is_odd |= is_odd
        start = self.at
        self.at = start + np.maximum(length, 0)
        return Spans(self.octets, start, length)


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


def _headers(
    octets: Bytes, at: Int64, limits: Int64, counts: Int64
) -> tuple[RawHeaders, Int64, bool]:
    """The headers of all records; where those of each record end, _NOWHERE if one has no name; and
    whether a length is not in its shortest form. The first header of each record begins `at`, and
    the record ends at `limits`.
    """
    bounds = bounds_of(counts)
    names, values, both = (Spans.of_count(octets, int(bounds[-1])) for _ in range(3))
    ends = at.copy()
    same_count = counts[0] if len(counts) and (counts == counts[0]).all() else 0
    # Shape of these and `at`: the records that have a header of this number; `first`: index of the
    # first header of each.
    record, first, count = np.arange(len(counts)), bounds[:-1], counts
    is_odd = False

    def put(index: Int64 | slice, at: Int64) -> tuple[Int64, Bool]:
        """Reads the headers at these positions; returns where they end, and which have a name."""
        nonlocal is_odd
        found = _Fields(octets, at)
        name, value = found.string(), found.string()
        names.put(index, name)
        values.put(index, value)
        both.put(index, Spans(octets, at, found.at - at))
        is_odd |= found.is_odd
        return found.at, name.length >= 0

    for number in itertools.count():
        more = count > number
        if not more.all():
            record, first, count, at = record[more], first[more], count[more], at[more]
        if len(record) < _HEADERS_LOCKSTEP_FROM:
            break
        # Where all records have as many headers, those of one number are evenly spaced: numpy
        # stores through a slice faster than through indexes.
        after, named = put(slice(number, None, same_count) if same_count else first + number, at)
        ends[record] = at = np.where(named, after, _NOWHERE)
    for row, begin, place, left in zip(
        record.tolist(),
        at.tolist(),
        (first + number).tolist(),
        (count - number).tolist(),
        strict=True,
    ):
        starts, after_all = header_starts(octets[begin : limits[row]].tobytes(), left)
        named = put(slice(place, place + left), begin + np.array(starts, np.int64))[1]
        ends[row] = begin + after_all if named.all() else _NOWHERE
    return RawHeaders(bounds, names, values, both), ends, is_odd


def header_values(
    headers: Column, counts: Int32, name: str, count_max: int
) -> tuple[Int64, Column]:
    """The rows of encoded headers, `counts` of each, that have a header of this name, and the value
    of the first one in each; a null is empty. Rows with more headers than `count_max` are not read:
    one with the name's bytes anywhere has an empty value.
    """
    framed_name, octets = framed_bytes(name.encode()), data(headers)
    if framed_name not in octets.tobytes():  # a quarter of the time, and the usual case
        return np.empty(0, np.int64), binary([])
    has: Bool = np.asarray(_pc.match_substring(headers, framed_name))  # perhaps in a value
    unread = np.flatnonzero(has & (counts > count_max))
    rows, bounds = np.flatnonzero(has & (counts <= count_max)), offsets(headers)
    at = _after_name(octets, bounds[rows], bounds[rows + 1], counts[rows], framed_name)
    rows, at = rows[at >= 0], at[at >= 0]
    values = _Fields(octets, at).string().column()
    return np.append(rows, unread), concat([filled(values), binary([b""] * len(unread))])


def _after_name(octets: Bytes, at: Int64, limits: Int64, counts: Int32, name: bytes) -> Int64:
    """Where the first header of this framed name has its value, in each row of `counts` headers
    from `at` to `limits`; -1 in rows without one. It keeps positions alone: columns of all headers,
    as `_headers` makes them, would take 80 bytes of memory for each header.
    """
    found, wanted = np.full(len(at), -1), np.frombuffer(name, np.uint8)
    row = np.arange(len(at))
    for number in itertools.count():
        more = (counts[row] > number) & (found[row] < 0)
        if not more.all():
            row, at = row[more], at[more]
        if len(row) < _HEADERS_LOCKSTEP_FROM:
            break
        alike = np.flatnonzero(octets.take(at, mode="clip") == wanted[0])
        words = octets.take(at[alike, None] + np.arange(len(name)), mode="clip")
        alike = alike[(words == wanted).all(axis=1)]
        found[row[alike]] = at[alike] + len(name)
        fields = _Fields(octets, at)
        fields.string()
        fields.string()
        at = fields.at
    for each, begin in zip(row.tolist(), at.tolist(), strict=True):
        raw = octets[begin : limits[each]].tobytes()
        starts, _ = header_starts(raw, int(counts[each]) - number)
        start = next((start for start in starts if raw.startswith(name, start)), None)
        if start is not None:
            found[each] = begin + start + len(name)
    return found


def header_starts(raw: bytes, count: int) -> tuple[list[int], int]:
    """The starts of `count` headers in `raw`, which begins with the first and ends with the record;
    and the end of the last one.
    """
    starts, at, hops = [0] * count, 0, raw.translate(_HOPS)
    try:
        for number in range(count):
            starts[number] = at
            hop = hops[at]
            at = at + hop if hop else _after_string(raw, at)  # the name
            hop = hops[at]
            at = at + hop if hop else _after_string(raw, at)  # the value
    except IndexError:
        at = _NOWHERE
    return starts, at


def _after_string(raw: bytes, at: int) -> int:
    """The position after a string whose length has several bytes. IndexError as `_long_length`."""
    length, at = _long_length(raw, raw[at], at + 1)
    return at if length & 1 else at + (length >> 1)


def _long_length(raw: bytes, low: int, at: int) -> tuple[int, int]:
    """A length of several bytes, still in zigzag, and the position after it. Raises IndexError if
    it has more than five bytes, or ends beyond `raw`.
    """
    length, shift = low & 127, 7
    while True:
        octet = raw[at]
        length |= (octet & 127) << shift
        at, shift = at + 1, shift + 7
        if octet < 128:
            return length & 0xFFFF_FFFF, at
        if shift == 35:
            raise IndexError


def _varints(octets: Bytes, at: Int64, *, long: bool = False) -> tuple[Int64, Int64, bool]:
    """The zigzag varints at these positions, the positions after them, and whether one of them is
    not in its shortest form.
    """
    low = octets.take(at, mode="clip")
    at = at + 1
    value = (low & 127).astype(np.int64)
    rest = np.flatnonzero(low & 128)
    if not len(rest):
        return (value >> 1) ^ -(value & 1), at, False
    is_odd = False
    shift, bits = 7, 64 if long else 32
    while len(rest) and shift < bits:
        septet = octets.take(at[rest], mode="clip")
        at[rest] += 1
        value[rest] |= (septet & 127).astype(np.int64) << shift
        is_odd |= bool((septet == 0).any())
        rest = rest[septet >= 128]
        shift += 7
    at[rest] = _NOWHERE
    if not long:
        is_odd |= bool((value >> bits).any())
        value &= 0xFFFF_FFFF
    half = (value.view(np.uint64) >> np.uint64(1)).view(np.int64)
    return half ^ -(value & 1), at, is_odd


def _starts(octets: Bytes, firsts: Int64, ends: Int64, counts: Int64) -> tuple[Int64, Int64]:
    """Where each record starts, those of a batch after those of the batch before; and where the
    last record of each batch ends. `firsts` and `ends` are the bounds of each batch's records.
    """
    starts = np.empty(int(counts.sum()), np.int64)
    # Batches with the most records first: those that have an n-th record are a prefix.
    order = np.argsort(-counts, kind="stable")
    at, row, falling = firsts[order], (np.cumsum(counts) - counts)[order], counts[order]
    together = int(falling[_LOCKSTEP_FROM - 1]) if len(falling) >= _LOCKSTEP_FROM else 0
    prefixes = np.searchsorted(-falling, -np.arange(1, together + 1), "right")
    for number, prefix in enumerate(prefixes.tolist()):
        starts[row[:prefix] + number] = at[:prefix]
        length, after, _ = _varints(octets, at[:prefix])
        at[:prefix] = after + np.maximum(length, 0)
    for place in range(int((falling > together).sum())):
        begin, first = int(at[place]), int(row[place]) + together
        count, batch = int(falling[place]) - together, order[place]
        found, after_all = _record_starts(octets[begin : ends[batch]].tobytes(), count)
        starts[first : first + count] = found
        starts[first : first + count] += begin
        at[place] = begin + after_all
    afters = np.empty_like(at)
    afters[order] = at
    return starts, afters


def _record_starts(raw: bytes, count: int) -> tuple[list[int], int]:
    """As `header_starts`, of records. A numpy call costs as much as some dozen of these steps."""
    starts, at = [0] * count, 0
    try:
        for number in range(count):
            starts[number] = at
            octet = raw[at]
            if octet < 128:  # a length is a varint, mostly of two bytes
                at += 1 if octet & 1 else 1 + (octet >> 1)
                continue
            second = raw[at + 1]
            if second < 128 and not octet & 1:
                at += 2 + ((octet & 127 | second << 7) >> 1)
                continue
            length, at = _long_length(raw, octet, at + 1)
            if not length & 1:
                at += length >> 1
    except IndexError:
        at = _NOWHERE
    return starts, at
