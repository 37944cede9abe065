"""Splits the range of an audit into chunks of bounded size.

A range has, for each timer partition, a first offset and an end. Each chunk has a share of every
partition, and memory holds one chunk at a time. If the range is longer than an audit may read, the
audit reads a sample: chunks spread evenly over the range, the newest among them. Each timer topic
has as many offsets of it as any other, if it has so many: one topic's flood displaces no other.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from fractions import Fraction

from duewheel.checkpoints.commit_and_close_pages import Marks
from duewheel.schemas.batches import OffsetRanges
from duewheel.streaming.batch_plan import rows_of_each

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
    sizes = Counter[str]()
    for (topic, _), (start, end) in between.items():
        sizes[topic] += end - start
    each = rows_of_each(sizes.values(), offsets_max)
    count = -(-sum(min(size, each) for size in sizes.values()) // CHUNK_OFFSETS)
    parts = {topic: min(Fraction(each, size), Fraction(1)) for topic, size in sizes.items()}
    return [_chunk(between, parts, i, count) for i in range(count)]


def _chunk(
    between: OffsetRanges, parts: Mapping[str, Fraction], number: int, count: int
) -> OffsetRanges:
    """Returns chunk `number` of `count`: the ends of as many equal pieces of each partition."""
    chunk = {}
    for partition, (start, end) in between.items():
        first = start + (end - start) * number // count
        last = start + (end - start) * (number + 1) // count
        chunk[partition] = (last - math.ceil((last - first) * parts[partition[0]]), last)
    return {partition: (first, last) for partition, (first, last) in chunk.items() if first < last}
