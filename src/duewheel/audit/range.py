"""Which offsets an audit reads: from `--from` and `--to` to stretches of bounded size.

A range is, for each timer partition, the first offset and the one behind the last. It is cut into
stretches, each with its share of every partition; one of them is in memory at a time. If the range
is longer than an audit may read, it is a sample that is read: stretches spread evenly over the
range, the newest among them.
"""

from __future__ import annotations

from duewheel.checkpoints.commit_and_close import Marks
from duewheel.schemas.batches import OffsetRanges

STRETCH_OFFSETS = 100_000


def ranges(starts: Marks, ends: Marks) -> OffsetRanges:
    """The partitions of which there is something to read."""
    return {
        partition: (starts[partition], end)
        for partition, end in sorted(ends.items())
        if starts[partition] < end
    }


def reached(before: Marks, starts: Marks, ends: Marks) -> Marks:
    """How far everything has been audited once `starts` to `ends` is: where the next one goes on
    that leaves nothing out and reads nothing twice.

    Args:
        before: how far it was. A partition that ends below that is another one by now.
    """
    known = {}
    for partition, end in ends.items():
        so_far = before.get(partition)
        if so_far is None or so_far > end or starts[partition] <= so_far:
            so_far = end
        known[partition] = so_far
    return {**before, **known}


def offsets_in(between: OffsetRanges) -> int:
    """How many offsets a range has, transaction markers included."""
    return sum(end - start for start, end in between.values())


def stretches(between: OffsetRanges, offsets_max: int) -> list[OffsetRanges]:
    """What is to be read, piece by piece.

    Args:
        between: the range.
        offsets_max: most offsets of all pieces together, some few for rounding excepted.
    """
    size = min(STRETCH_OFFSETS, offsets_max)
    count = -(-offsets_in(between) // size)
    most = min(count, offsets_max // size)
    return [_piece(between, (i + 1) * count // most - 1, count) for i in range(most)]


def _piece(between: OffsetRanges, number: int, count: int) -> OffsetRanges:
    """The piece `number` of `count`."""
    parts = {
        partition: (
            start + (end - start) * number // count,
            start + (end - start) * (number + 1) // count,
        )
        for partition, (start, end) in between.items()
    }
    return {partition: (first, last) for partition, (first, last) in parts.items() if first < last}
