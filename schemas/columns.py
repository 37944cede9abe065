"""Small columnar tools over Arrow's LargeBinaryArray, the form in which all bytes travel here.

A LargeBinaryArray is two buffers: the values' bytes end to end, and n + 1 int64 offsets into them.
Two facts follow, and most of this module is made of them:

- Neighbouring values are neighbouring bytes, so joining groups of neighbours copies nothing: the
  same bytes get fewer offsets (`join_groups`).
- A question about bytes ("how many digits?") is asked once of all bytes, and a running sum turns
  it into an answer per value (`count_bytes`).

Null values keep an undefined piece of the data buffer: fill nulls before using any of this.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from duewheel.schemas.timers import Bool, Int32, Int64

Bytes = npt.NDArray[np.uint8]
EMPTY = pa.scalar(b"", pa.large_binary())


def large_binary(column: pa.Array | pa.ChunkedArray) -> pa.LargeBinaryArray:
    """Any string or binary column as one LargeBinaryArray; nulls stay."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    wide = column if column.type == pa.large_binary() else column.cast(pa.large_binary())
    return wide.combine_chunks() if isinstance(wide, pa.ChunkedArray) else wide


def constant(value: bytes) -> pa.Scalar:
    """A scalar that joins with every row."""
    return pa.scalar(value, pa.large_binary())


def offsets(column: pa.LargeBinaryArray) -> Int64:
    """The column's n + 1 offsets into `data`, as a view; the first need not be 0."""
    if len(column) == 0:
        return np.zeros(1, np.int64)
    whole = np.frombuffer(column.buffers()[1], np.int64)
    return whole[column.offset : column.offset + len(column) + 1]


def data(column: pa.LargeBinaryArray) -> Bytes:
    """The data buffer that `offsets` points into, as a view."""
    buffer = column.buffers()[2]
    return np.zeros(0, np.uint8) if buffer is None else np.frombuffer(buffer, np.uint8)


def from_parts(starts: Int64, octets: Bytes | pa.Buffer) -> pa.LargeBinaryArray:
    """The column of n values whose n + 1 offsets into `octets` are `starts`."""
    buffer = octets if isinstance(octets, pa.Buffer) else pa.py_buffer(octets)
    bounds = pa.py_buffer(np.ascontiguousarray(starts, np.int64))
    return pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(starts) - 1, [None, bounds, buffer]
    )


def lengths(column: pa.LargeBinaryArray) -> Int64:
    """Length of each value in bytes, -1 where null."""
    size = np.diff(offsets(column))
    if column.null_count:
        size[np.asarray(column.is_null())] = -1
    return size


def join(*parts: pa.LargeBinaryArray | pa.Scalar) -> pa.LargeBinaryArray:
    """The parts' values, row by row, end to end. No part may hold nulls."""
    return pc.binary_join_element_wise(*parts, EMPTY)


def join_groups(column: pa.LargeBinaryArray, firsts: Int64) -> pa.LargeBinaryArray:
    """Neighbouring values joined: row i is values firsts[i] … firsts[i + 1] - 1. Copies no bytes."""
    buffer = column.buffers()[2]
    octets = buffer if buffer is not None else np.zeros(0, np.uint8)
    return from_parts(offsets(column)[firsts], octets)


def texts(numbers: Int64 | Int32) -> pa.LargeBinaryArray:
    """Numbers in decimal."""
    return large_binary(pc.cast(pa.array(numbers), pa.large_string()))


def first_bytes(column: pa.LargeBinaryArray) -> Bytes:
    """The first byte of each value, 0 for an empty one."""
    bounds = offsets(column)
    first = np.zeros(len(column), np.uint8)
    filled = np.flatnonzero(np.diff(bounds))
    first[filled] = data(column)[bounds[filled]]
    return first


def count_bytes(column: pa.LargeBinaryArray, wanted: Bool) -> Int64:
    """How many of each value's bytes are wanted; `wanted` has an entry for each of the 256."""
    bounds = offsets(column)
    marks = wanted[data(column)[bounds[0] : bounds[-1]]]
    if marks.all():
        return np.diff(bounds)
    sums = np.zeros(len(marks) + 1, np.int64)
    np.cumsum(marks, out=sums[1:])
    return np.diff(sums[bounds - bounds[0]])


_ASCII = np.arange(256) < 128
NOT_ASCII = "\ufffd"


def ascii_text(column: pa.LargeBinaryArray) -> pa.LargeStringArray:
    """The column as text. A value with a byte beyond ASCII, which no caller accepts, becomes
    NOT_ASCII: whatever the bytes are, the result is valid."""
    foreign = count_bytes(column, _ASCII) < np.diff(offsets(column))
    if foreign.any():
        column = pc.if_else(pa.array(foreign), constant(NOT_ASCII.encode()), column)
    return column.cast(pa.large_string())
