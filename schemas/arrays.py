"""The numpy columns that rows consist of: type aliases, and groups of neighbouring rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]
Bool = npt.NDArray[np.bool_]


def bounds_of(counts: Int64 | Bool | Sequence[int]) -> Int64:
    """Groups of so many neighbours, end to end: group i is rows bounds[i] … bounds[i + 1] - 1."""
    bounds = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=bounds[1:])
    return bounds


def ranges(firsts: Int64 | int, counts: Int64) -> Int64:
    """The numbers firsts[i] … firsts[i] + counts[i] - 1, range after range."""
    bounds = bounds_of(counts)
    numbers: Int64 = np.arange(bounds[-1]) + np.repeat(firsts - bounds[:-1], counts)
    return numbers


def rank_among_equals(rising: Int64 | Int32) -> Int64:
    """The place of each value among those equal to it, from 0. The values never fall.

    >>> rank_among_equals(np.array([3, 3, 5])).tolist()
    [0, 1, 0]
    """
    return np.arange(len(rising)) - np.searchsorted(rising, rising)


def index_among(values: Int64, rising: Int64) -> tuple[Int64, Bool]:
    """The index of each value among some that rise, and whether it is one of them; else the index
    means nothing.

    >>> [each.tolist() for each in index_among(np.array([7, 5]), np.array([3, 5]))]
    [[1, 1], [False, True]]
    """
    if not len(rising):
        return np.zeros(len(values), np.int64), np.zeros(len(values), np.bool_)
    index = np.minimum(np.searchsorted(rising, values), len(rising) - 1)
    return index, rising[index] == values
