"""Reads the records of Kafka's record batches as columns.

Records stand end to end in a batch:

    record   length | attributes, one byte | timestamp delta | offset delta
             | key length | key | value length | value | number of headers | headers
    header   name length | name | value length | value

Lengths, deltas and numbers are zigzag varints (varint.py); the length of a null is -1.

    1. A record starts where the one before it ends, so the starts come first: in lockstep, the n-th
       record of every batch in one numpy step; of few batches record by record.
    2. Every other field is read for all records at once, and the n-th header of all records that
       have one.

Columns of byte strings are positions in the fetched bytes (`Spans`): only the strings that are used
are copied out.

The bytes may be damaged: each position is checked before its record is used, by `_require`, or by
numpy, which raises IndexError beyond the buffer.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np

from duewheel.schemas.arrays import Bool, Int64, bounds_of
from duewheel.schemas.batches import TopicPartition
from duewheel.schemas.columns import Bytes
from duewheel.schemas.wire.batch_reader import BatchBody, CorruptBatch
from duewheel.schemas.wire.kafka_records import KafkaRecords
from duewheel.schemas.wire.spans import RawHeaders, Spans
from duewheel.schemas.wire.varint import read_varint

_LOCKSTEP_FROM = 48  # batches: with fewer it is faster to follow the records one by one


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
    # Shape of firsts, ends and counts: the batches; of all other arrays: the records.
    octets, firsts, ends = _joined(batches)
    counts = np.array([batch.count for batch in batches], np.int64)
    batch_of = np.repeat(np.arange(len(batches)), counts)  # record → index in `batches`

    def of_batch(value: Callable[[BatchBody], int]) -> Int64:
        """For each record, the value of its batch."""
        of_records: Int64 = np.array([value(batch) for batch in batches], np.int64)[batch_of]
        return of_records

    fields = _Fields(octets, _starts(octets, firsts, counts))
    length = fields.number()
    end = fields.at + length
    _require(end <= ends[batch_of], "a record ends beyond its batch")
    fields.skip_byte()  # the attributes
    delta_ms, delta = fields.number(), fields.number()
    key_value_at = fields.at
    key, value = fields.string(), fields.string()
    key_value = Spans(octets, key_value_at, fields.at - key_value_at)
    header_count = fields.number()
    # A header has two bytes at least; without the bound a wrong count would take all memory.
    fits = (header_count >= 0) & (2 * header_count <= end - fields.at)
    _require(fits, "a wrong number of headers")
    headers, headers_end = _headers(octets, fields.at, header_count)
    _require(headers_end == end, "a record ends elsewhere than its length says")

    append_ms = of_batch(lambda batch: batch.append_ms)
    producer_ms = of_batch(lambda batch: batch.base_ms) + delta_ms
    return KafkaRecords(
        partitions=partitions,
        partition=of_batch(lambda batch: batch.partition).astype(np.int32),
        offset=of_batch(lambda batch: batch.base_offset) + delta,
        timestamp_ms=np.where(append_ms >= 0, append_ms, producer_ms),
        key=key,
        value=value,
        key_value=key_value,
        headers=headers,
    )


def _require(fits: Bool, otherwise: str) -> None:
    if not fits.all():
        raise CorruptBatch(otherwise)


class _Fields:
    """Reads records side by side: each call reads the next field of all of them.

    Attributes:
        octets: the records.
        at: position of each record's next field.
    """

    def __init__(self, octets: Bytes, at: Int64) -> None:
        self.octets = octets
        self.at = at

    def number(self) -> Int64:
        """The varint of each record."""
        value, self.at = _varints(self.octets, self.at)
        return value

    def skip_byte(self) -> None:
        """A field of one byte, unread."""
        self.at = self.at + 1

    def string(self) -> Spans:
        """The byte string of each record, behind its length."""
        length = self.number()
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


def _headers(octets: Bytes, at: Int64, counts: Int64) -> tuple[RawHeaders, Int64]:
    """The headers of all records, and where those of each record end.

    Args:
        octets: the records.
        at: where the first header of each record begins.
        counts: of each record's headers.
    """
    bounds = bounds_of(counts)
    names, values, both = (Spans.of_count(octets, int(bounds[-1])) for _ in range(3))
    ends = at.copy()
    same_count = counts[0] if len(counts) and (counts == counts[0]).all() else 0
    # Shape of these and `at`: the records that have a header of this number; `first`: index of the
    # first header of each.
    record, first, count = np.arange(len(counts)), bounds[:-1], counts
    for number in itertools.count():
        more = count > number
        if not more.all():
            record, first, count, at = record[more], first[more], count[more], at[more]
        if not len(record):
            break
        fields = _Fields(octets, at)
        name, value = fields.string(), fields.string()
        _require(name.length >= 0, "a header without a name")
        # Where all records have as many headers, those of one number are evenly spaced: numpy
        # stores through a slice faster than through indexes.
        index = slice(number, None, same_count) if same_count else first + number
        names.put(index, name)
        values.put(index, value)
        both.put(index, Spans(octets, at, fields.at - at))
        ends[record] = at = fields.at
    return RawHeaders(bounds, names, values, both), ends


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
