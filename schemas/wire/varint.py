"""Kafka's zigzag varints, one at a time for constants and as a lookup table for columns.

Format: a signed n is mapped to (n << 1) ^ (n >> 63), then written seven bits a byte, low bits
first, the high bit set on all but the last byte. A null length is written as -1.
"""

from __future__ import annotations

import functools

import numpy as np

from duewheel.schemas.arrays import Int64, bounds_of
from duewheel.schemas.columns import Column, concat, constants, from_parts, take


def varint(n: int) -> bytes:
    """The zigzag varint of `n` (−2**63 … 2**63 − 1)."""
    n = (n << 1) ^ (n >> 63)
    n &= (1 << 64) - 1
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    out.append(n)
    return bytes(out)


def read_varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """The number whose varint begins at byte `at`, and where the next byte after it is. For bytes
    that duewheel has written: record_reader.py reads those of others.
    """
    n = shift = 0
    while True:
        octet = data[at]
        n |= (octet & 127) << shift
        at, shift = at + 1, shift + 7
        if octet < 128:
            return (n >> 1) ^ -(n & 1), at


_SMALL = 1 << 16  # numbers below it come from the table


@functools.lru_cache(maxsize=1)
def _table() -> Column:
    """varint(-1), varint(0), … varint(_SMALL - 1)."""
    return constants([varint(n) for n in range(-1, _SMALL)])


def varints(n: Int64) -> Column:
    """The varints of a column of numbers ≥ −1. Small numbers come from a table; the larger ones are
    encoded by width and appended to it.
    """
    where = n + 1
    assert int(where.min(initial=0)) >= 0, "lengths and counts are never below -1"
    if int(where.max(initial=0)) <= _SMALL:
        return take(_table(), where)
    large = np.flatnonzero(n >= _SMALL)
    where[large] = _SMALL + 1 + np.arange(len(large))
    return take(concat([_table(), _encode(n[large])]), where)


def _encode(n: Int64) -> Column:
    """The varints of positive numbers, computed."""
    zigzag = n.astype(np.uint64) << np.uint64(1)
    septets = (zigzag[:, None] >> (np.arange(10, dtype=np.uint64) * np.uint64(7))) & np.uint64(127)
    width = 10 - np.argmax(septets[:, ::-1] != 0, axis=1)
    place = np.arange(10)
    more = np.where(place < width[:, None] - 1, np.uint64(128), np.uint64(0))
    octets = (septets | more).astype(np.uint8)[place < width[:, None]]
    return from_parts(bounds_of(width), octets)
