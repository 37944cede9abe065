"""Decides where a batch ends in each timer partition, by the rows that it may have.

Spark's planning processes import this and no library.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:  # it imports numpy and pyarrow
    from duewheel.schemas.batches import TopicPartition

Offsets: TypeAlias = "dict[TopicPartition, int]"


def batch_ends(firsts: Offsets, log_ends: Offsets, rows_max: int) -> Offsets:
    """Where the next batch ends in each partition: at its log's end, or after its part of
    `rows_max`. Topics get equal parts, and the partitions of a topic equal parts of that; unused
    rows are shared again. With more partitions than rows each gets one row.

    A proportional split would let one topic's backlog starve the others; equal parts of all
    partitions, a topic with many.

    >>> firsts = {("big", 0): 0, ("big", 1): 0, ("small", 0): 7}
    >>> batch_ends(firsts, {("big", 0): 900, ("big", 1): 900, ("small", 0): 10}, 103)
    {('big', 0): 50, ('big', 1): 50, ('small', 0): 10}

    A log that has lost its end is shorter than its first offset. The batch ends there, so that the
    sink sees an end that falls, and refuses it; as an idle log it would hide the loss.
    """
    waiting: dict[str, Offsets] = {}
    for partition, end in log_ends.items():
        of_topic = waiting.setdefault(partition[0], {})
        of_topic[partition] = max(end - firsts[partition], 0)
    each_topic = rows_of_each((sum(rows.values()) for rows in waiting.values()), rows_max)
    ends: Offsets = {}
    for of_topic in waiting.values():
        each = rows_of_each(of_topic.values(), each_topic)
        ends |= {p: min(log_ends[p], firsts[p] + min(of_topic[p], each)) for p in of_topic}
    return ends


def rows_of_each(waiting: Iterable[int], rows_max: int) -> int:
    """The most rows of one topic or partition, at least 1. Rows that some do not use, the others
    get.

    >>> rows_of_each([5, 1_000, 70], 100), rows_of_each([5, 10], 100), rows_of_each([9, 9], 1)
    (47, 100, 1)
    """
    rising, left = sorted(rows for rows in waiting if rows), rows_max
    for passed, rows in enumerate(rising):
        each = left // (len(rising) - passed)
        if rows > each:
            return max(each, 1)
        left -= rows
    return rows_max
