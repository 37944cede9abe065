"""Decides where a batch ends, by pure functions; the other files have their inputs.

In each partition a batch is planned up to the first of

    the last stable offset                    source.py
    a record that leads too far ahead         source.py leaves the partition out, but for one batch
                                              a minute
    the quota of its topic                    topic_quotas.py
    its part of the batch's rows              `batch_ends`; fewer rows after a batch that was too
                                              large, more again later: batch_size.py

Only a task learns the bytes of its records: it ends once it has read its part of them (`bytes_of`,
`divide`, byte_budget.py), and its partitions count as ended there (early_ends.py).

The size of a batch in memory is fixed. It is appended in parts that hold engine.lock for a short
time and fit on the disk (batch_taker.py, disk_guard.py).

Spark's planning processes and `status` import this, and no library.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:  # it imports numpy and pyarrow
    from duewheel.schemas.batches import OffsetRanges, TopicPartition

Offsets: TypeAlias = "dict[TopicPartition, int]"

ROWS_MIN = 1  # of all partitions together; Spark still reads one of each
_ROWS_OF_ONE_TASK = 2_000  # one task reads fewer rows faster than several: each has a fixed cost


def bytes_of(rows: int, rows_max: int, bytes_max: int) -> int:
    """The most bytes of the records of a batch. They fall and grow with the rows: a batch that
    exceeded the memory may have had few large records.
    """
    return bytes_max * rows // rows_max


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


def divide(ranges: OffsetRanges, tasks: int, bytes_max: int) -> list[tuple[OffsetRanges, int]]:
    """The ranges divided among at most so many tasks: the largest first, to the task with the
    fewest rows. Each has an equal part of the bytes.
    """
    rows = {p: until - first for p, (first, until) in ranges.items()}
    if sum(rows.values()) < _ROWS_OF_ONE_TASK:
        tasks = 1
    shares: list[dict[TopicPartition, tuple[int, int]]] = [{} for _ in range(tasks)]
    sizes = [0] * tasks
    for partition in sorted(rows, key=rows.__getitem__, reverse=True):
        least = sizes.index(min(sizes))
        shares[least][partition] = ranges[partition]
        sizes[least] += rows[partition]
    shares = [each for each in shares if each]
    return [(each, bytes_max // len(shares)) for each in shares]
