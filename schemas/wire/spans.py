"""Columns of byte strings as positions in one buffer; the headers of records as such columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from duewheel.schemas.arrays import Bool, Int64, bounds_of, ranges
from duewheel.schemas.columns import Bytes, Column, data, from_parts, lengths, offsets, take

_pa: Any = pa


@dataclass(frozen=True, slots=True)
class Spans:
    """A column of byte strings as positions: nothing is copied before `column`."""

    octets: Bytes  # the buffer that has the strings, with other bytes between them
    start: Int64  # position of each string's first byte in the buffer
    length: Int64  # in bytes; -1 for null

    def __len__(self) -> int:
        return len(self.start)

    def take(self, rows: Any) -> Spans:
        return Spans(self.octets, self.start[rows], self.length[rows])

    @classmethod
    def of_count(cls, octets: Bytes, count: int) -> Spans:
        """So many strings of any content, for `put`."""
        return cls(octets, np.empty(count, np.int64), np.empty(count, np.int64))

    def put(self, rows: Int64 | slice, strings: Spans) -> None:
        """Replace the given rows by strings in the same buffer."""
        self.start[rows], self.length[rows] = strings.start, strings.length

    @classmethod
    def of(cls, column: Column) -> Spans:
        """The values of a column, as views of its bytes."""
        return cls(data(column), offsets(column)[:-1], lengths(column))

    @property
    def is_null(self) -> Bool:
        """Which strings are null."""
        null: Bool = self.length < 0
        return null

    def column(self) -> Column:
        """The strings, copied out. They must not overlap, and be in the buffer in their order."""
        count = len(self.start)
        if not count:
            return from_parts(np.zeros(1, np.int64), b"")
        bounds = np.empty(2 * count, np.int64)
        bounds[0::2] = self.start
        bounds[1::2] = self.start + np.maximum(self.length, 0)
        # A column of twice the rows over the same bytes: even ones are the strings, odd ones the
        # bytes between two strings. Arrow's `take` then copies the even ones in one call.
        with_gaps = from_parts(bounds, self.octets)
        rows = np.arange(0, 2 * count, 2)
        if (null := self.is_null).any():
            picked: Column = with_gaps.take(_pa.array(rows, mask=null))
            return picked
        return take(with_gaps, rows)


@dataclass(frozen=True, slots=True)
class RawHeaders:
    """The headers of many records, in one column: record i has firsts[i] … firsts[i+1]-1."""

    firsts: Int64
    names: Spans  # without nulls
    values: Spans  # a null is a header without a value
    both: Spans  # name and value, encoded as in the record: each after its length

    def take(self, rows: Int64) -> RawHeaders:
        counts = self.firsts[rows + 1] - self.firsts[rows]
        index = ranges(self.firsts[rows], counts)
        spans = (each.take(index) for each in (self.names, self.values, self.both))
        return RawHeaders(bounds_of(counts), *spans)
