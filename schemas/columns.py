"""Small columnar tools over Arrow's LargeBinaryArray, the form of all keys, values and headers.

A LargeBinaryArray is two buffers: the values' bytes end to end, and n + 1 int64 offsets into them.
Most of this module follows from two facts:

- Neighbouring values are neighbouring bytes, so joining groups of neighbours copies nothing: the
  same bytes get fewer offsets (`join_groups`). With empty values between them they get more
  (`spread`).
- A question about bytes ("only digits?") is answered once for all bytes (`only`).

The data buffer of a null value is undefined. Columns therefore have no nulls (`filled`), except
where a function says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute

from duewheel.schemas.arrays import Bool, Int32, Int64, bounds_of

Bytes = npt.NDArray[np.uint8]
Column = pa.LargeBinaryArray

# The published types of Arrow's kernels and buffers do not know numpy's arrays.
_pa: Any = pa
_pc: Any = pyarrow.compute

_NO_BYTES = np.zeros(0, np.uint8)
# Without the detours of Array.take and Array.cast: half their time if there are few rows.
_TAKE, _CAST = _pc.get_function("array_take"), _pc.get_function("cast")
_TO_TEXT, _BINARY = _pc.CastOptions(pa.large_string()), pa.large_binary()


def constants(values: Sequence[bytes]) -> Column:
    """A column of values that are constants of the code. `pa.array` and `pa.scalar` would import
    pandas: a fifth of a second of every command's start.
    """
    return from_parts(bounds_of([*map(len, values)]), b"".join(values))


def constant(value: bytes) -> pa.LargeBinaryScalar:
    """A scalar, which joins with every row."""
    scalar: pa.LargeBinaryScalar = constants([value])[0]
    return scalar


def binary(values: Iterable[bytes | None]) -> Column:
    """A column of the given values."""
    column: Column = _pa.array(list(values), pa.large_binary())
    return column


def large_binary(column: Any) -> Column:
    """Any string, binary or dictionary column, chunked or not, as one array; nulls stay."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if column.type != pa.large_binary():
        column = column.cast(pa.large_binary())
    whole: Any = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    array: Column = whole
    return array


def offsets(column: Column) -> Int64:
    """The column's n + 1 offsets into `data`, as a view; the first need not be 0."""
    if len(column) == 0:
        return np.zeros(1, np.int64)
    buffer: Any = column.buffers()[1]
    bounds = np.frombuffer(buffer, np.int64)
    return bounds[column.offset : column.offset + len(column) + 1]


def data(column: Column) -> Bytes:
    """The data buffer that `offsets` points into, as a view."""
    buffer: Any = column.buffers()[2]
    return _NO_BYTES if buffer is None else np.frombuffer(buffer, np.uint8)


def from_parts(bounds: Int64, octets: Bytes | bytes) -> Column:
    """The column of n values whose n + 1 offsets into `octets` are `bounds`. Copies no bytes."""
    column: Column = _pa.LargeBinaryArray.from_buffers(
        pa.large_binary(),
        len(bounds) - 1,
        [None, _pa.py_buffer(np.ascontiguousarray(bounds, np.int64)), _pa.py_buffer(octets)],
    )
    return column


EMPTY: pa.LargeBinaryScalar = constant(b"")


def lengths(column: Column) -> Int64:
    """Length of each value in bytes, -1 where null."""
    bounds = offsets(column)
    size: Int64 = bounds[1:] - bounds[:-1]  # np.diff takes ten times as long for a few rows
    if column.null_count:
        size[np.asarray(column.is_null())] = -1
    return size


def filled(column: Column) -> Column:
    """The column with empty values for nulls."""
    if column.null_count:
        column = _pc.fill_null(column, EMPTY)
    return column


def take(column: Column, rows: Int64 | Int32) -> Column:
    """The given rows, in the given order; nulls stay."""
    picked: Column = _TAKE.call([column, _pa.array(rows)])
    return picked


def concat(parts: list[Column]) -> Column:
    """The rows of all parts, in their order; nulls stay."""
    whole: Column = _pa.concat_arrays(parts)
    return whole


def choose(mask: Bool, yes: Column | pa.Scalar[Any], no: Column | pa.Scalar[Any]) -> Column:
    """`yes` where the mask is set, else `no`."""
    chosen: Column = _pc.if_else(_pa.array(mask), yes, no)
    return chosen


def join(*parts: Column | pa.Scalar[Any]) -> Column:
    """The parts' values, row by row, end to end. At least one part must be a column."""
    joined: Column = _pc.binary_join_element_wise(*parts, EMPTY)
    return joined


def join_groups(column: Column, firsts: Int64) -> Column:
    """Neighbours joined: row i is values firsts[i] … firsts[i + 1] - 1. Copies no bytes."""
    return from_parts(offsets(column)[firsts], data(column))


def scatter(column: Column, rows: Int64, count: int) -> Column:
    """A column of `count` rows with the values at the given rising rows, else empty. Copies no
    bytes.
    """
    sizes = np.zeros(count + 1, np.int64)
    bounds = offsets(column)
    sizes[0] = bounds[0]
    sizes[rows + 1] = np.diff(bounds)
    return from_parts(np.cumsum(sizes), data(column))


def decimals(numbers: Int64 | Int32) -> Column:
    """Numbers in decimal."""
    column: Column = _CAST.call([_pa.array(numbers)], _TO_TEXT).view(_BINARY)
    return column


_CODED_AT_ONCE = 1_024


def coded(column: Column) -> tuple[Int64, Column]:
    """The index of each value among the different ones, and these. The column has no nulls.

    Arrow's hash of strings has no secret: a producer can choose values of one hash, and to encode n
    of them takes n² steps. So few rows are encoded at once, and Python's dict joins their values.
    """
    indexes = dict[bytes, int]()
    index = np.empty(len(column), np.int64)
    for first in range(0, len(column), _CODED_AT_ONCE):
        part: Any = _pc.dictionary_encode(column.slice(first, _CODED_AT_ONCE))
        of_part = [indexes.setdefault(value, len(indexes)) for value in part.dictionary.to_pylist()]
        index[first : first + len(part)] = np.array(of_part, np.int64)[np.asarray(part.indices)]
    return index, binary(indexes)


def first_bytes(column: Column) -> Bytes:
    """The first byte of each value, 0 for an empty one."""
    bounds = offsets(column)
    first = np.zeros(len(column), np.uint8)
    some = np.flatnonzero(np.diff(bounds))
    first[some] = data(column)[bounds[some]]
    return first


def only(column: Column, wanted: Bool, first: Bool | None = None) -> Bool:
    """Whether all bytes of each value are wanted, also if it is empty; `wanted` has an entry for
    each of the 256. The first byte of a value may also be one of `first`.
    """
    bounds = offsets(column)
    octets, sizes = data(column)[bounds[0] : bounds[-1]], np.diff(bounds)
    some = np.flatnonzero(sizes)
    starts = (bounds[:-1] - bounds[0])[some]
    # Indexes or running sums would take 8 bytes of memory for each byte of a value.
    marks = np.frombuffer(bytearray(octets).translate(wanted.tobytes()), np.bool_)
    if first is not None:
        marks[starts] |= first[octets[starts]]
    good = np.ones(len(sizes), np.bool_)
    good[some] = np.logical_and.reduceat(marks, starts)
    return good


NOT_ASCII = "\ufffd"
_NOT_ASCII = constant(NOT_ASCII.encode())
ASCII = np.arange(256) < 128
"""Which bytes are ASCII, for `only`."""


def ascii_text(column: Column) -> pa.LargeStringArray:
    """The column as text. A value with a byte beyond ASCII becomes NOT_ASCII, which no caller
    accepts. Without that, Arrow's cast would raise on bytes that are not UTF-8.
    """
    good = only(column, ASCII)
    if not good.all():
        column = choose(good, column, _NOT_ASCII)
    text: pa.LargeStringArray = _pc.cast(column, pa.large_string())
    return text
