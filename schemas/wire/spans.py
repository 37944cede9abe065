"""Columns of byte strings as positions in one buffer: a string is copied when it is needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from duewheel.schemas.arrays import Bool, Int64
from duewheel.schemas.columns import Bytes, Column, data, from_parts, lengths, offsets, take

_pa: Any = pa


@dataclass(frozen=True, slots=True)
class Spans:
    """A column of byte strings as positions: nothing is copied before `column`.

    Attributes:
        octets: where the strings are.
        start: of each.
        length: of each; -1 for null.
    """

    octets: Bytes
    start: Int64
    length: Int64

    def __len__(self) -> int:
        return len(self.start)

    def take(self, rows: Any) -> Spans:
        """The given rows, in the given order."""
        return Spans(self.octets, self.start[rows], self.length[rows])

    @classmethod
    def of(cls, column: Column) -> Spans:
        """The values of a column."""
        return cls(data(column), offsets(column)[:-1], lengths(column))

    @property
    def is_null(self) -> Bool:
        """Which strings are null."""
        null: Bool = self.length < 0
        return null

    def column(self) -> Column:
        """The bytes, copied out; the starts must rise."""
        count = len(self.start)
        if not count:
            return from_parts(np.zeros(1, np.int64), b"")
        bounds = np.empty(2 * count, np.int64)
        bounds[0::2] = self.start
        bounds[1::2] = self.start + np.maximum(self.length, 0)
        with_gaps = from_parts(bounds, self.octets)  # odd rows: what lies between two strings
        rows = np.arange(0, 2 * count, 2)
        if (null := self.is_null).any():
            picked: Column = with_gaps.take(_pa.array(rows, mask=null))
            return picked
        return take(with_gaps, rows)
