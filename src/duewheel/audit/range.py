"""Which offsets an audit reads: from `--from` and `--to` to stretches of bounded size.

A range is, for each timer partition, the first offset and the one behind the last. It is cut into
stretches, each with its share of every partition; one of them is in memory at a time. If the range
is longer than an audit may read, it is a sample that is read: stretches spread evenly over the
range, the newest among them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from duewheel.checkpoints.page_codec import Marks
from duewheel.errors import ConfigError
from duewheel.schemas.batches import OffsetRanges

STRETCH_OFFSETS = 100_000


@dataclass(frozen=True, slots=True)
class Bound:
    """One end of a range: an offset of every partition, or a time in epoch ms."""

    offset: int | None = None
    time_ms: int | None = None

    @classmethod
    def parse(cls, flag: str, text: str) -> Bound:
        """An offset, or ISO-8601 with a zone.

        Raises:
            ConfigError: it is neither.
        """
        if text.isdecimal():
            return cls(offset=int(text))
        try:
            time = datetime.fromisoformat(text)
        except ValueError:
            time = None
        if time is None or time.tzinfo is None:
            raise ConfigError(f"{flag} {text}: give an offset, or ISO-8601 with a zone")
        return cls(time_ms=int(time.timestamp() * 1000))

    def offsets(self, ends: Marks, at_time: Callable[[int], Marks]) -> Marks:
        """Where that is in each partition, the end of what is there if it lies behind that.

        Args:
            ends: where the partitions end.
            at_time: the first offset at or after a time, without partitions that have none.
        """
        if self.time_ms is not None:
            found = at_time(self.time_ms)
        else:
            found = dict.fromkeys(ends, self.offset or 0)
        return {partition: min(found.get(partition, end), end) for partition, end in ends.items()}


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
