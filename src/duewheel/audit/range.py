"""Splits the range of an audit into chunks of bounded size.

A range has, for each timer partition, a first offset and an end. Each chunk has a share of every
partition, and memory holds one chunk at a time. If the range is longer than an audit may read, the
audit reads a sample: chunks spread evenly over the range, the newest among them.
"""

from __future__ import annotations

from duewheel.checkpoints.commit_and_close_pages import Marks
from duewheel.schemas.batches import OffsetRanges

CHUNK_OFFSETS = 100_000


def ranges(starts: Marks, ends: Marks) -> OffsetRanges:
    """Returns the range of each partition that has offsets to read."""
    return {
        partition: (starts[partition], end)
        for partition, end in sorted(ends.items())
        if starts[partition] < end
    }


def reached(before: Marks, starts: Marks, ends: Marks) -> Marks:
    """Returns the end of the gapless audited range, once `starts` to `ends` is audited: an audit
    from there on skips nothing and reads nothing twice. `before` is that end before this audit: a
    partition with a lower end was recreated meanwhile.
    """
    audited = {}
    for partition, end in ends.items():
        so_far = before.get(partition)
        if so_far is None or so_far > end or starts[partition] <= so_far:
            so_far = end
        audited[partition] = so_far
    return {**before, **audited}


def offsets_in(between: OffsetRanges) -> int:
    """Counts the offsets of a range, transaction markers included."""
    return sum(end - start for start, end in between.values())


def split_range(between: OffsetRanges, offsets_max: int) -> list[OffsetRanges]:
    """Splits a range into the chunks to read: `offsets_max` offsets together, up to rounding."""
    size = min(CHUNK_OFFSETS, offsets_max)
    count = -(-offsets_in(between) // size)
    most = min(count, offsets_max // size)
    return [_chunk(between, (i + 1) * count // most - 1, count) for i in range(most)]


def _chunk(between: OffsetRanges, number: int, count: int) -> OffsetRanges:
    """Returns chunk `number` of `count`."""
    parts = {
        partition: (
            start + (end - start) * number // count,
            start + (end - start) * (number + 1) // count,
        )
        for partition, (start, end) in between.items()
    }
    return {partition: (first, last) for partition, (first, last) in parts.items() if first < last}
