"""Kafka's zigzag varints, one at a time for constants and as a lookup table for columns.

Format: a signed n is mapped to (n << 1) ^ (n >> 63), then written seven bits a byte, low bits
first, the high bit set on all but the last byte. A null length is written as -1.
"""

from __future__ import annotations

import functools

import numpy as np
import pyarrow as pa

from duewheel.schemas.timers import Int64


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


@functools.lru_cache(maxsize=4)
def _table(size: int) -> pa.LargeBinaryArray:
    """varint(-1), varint(0), … varint(size - 2)."""
    return pa.array([varint(n) for n in range(-1, size - 1)], pa.large_binary())


_SMALL = 1 << 16


def varints(n: Int64) -> pa.LargeBinaryArray:
    """The varints of a column of numbers ≥ −1.

    Small numbers come from a table; a column with a larger one is encoded by width, columnar.
    """
    top = int(n.max(initial=0))
    assert int(n.min(initial=0)) >= -1, "lengths and counts are never below -1"
    if top < _SMALL - 1:
        return _table(_SMALL).take(pa.array(n + 1))
    zigzag = (n.astype(np.uint64) << np.uint64(1)) ^ (n >> 63).astype(np.uint64)
    septets = (zigzag[:, None] >> (np.arange(10, dtype=np.uint64) * np.uint64(7))) & np.uint64(127)
    width = np.maximum(10 - np.argmax(septets[:, ::-1] != 0, axis=1), 1)
    width[zigzag == 0] = 1
    more = np.arange(10) < (width - 1)[:, None]
    octets = (septets | np.where(more, np.uint64(128), np.uint64(0))).astype(np.uint8)
    data = octets[np.arange(10) < width[:, None]]
    offsets = np.concatenate([[0], np.cumsum(width)]).astype(np.int64)
    return pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(n), [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )
