"""The ends of the range that a command reads, given as offsets or times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from duewheel.config.instants import ms_up
from duewheel.errors import ConfigError

if TYPE_CHECKING:
    from duewheel.checkpoints.commit_and_close_pages import Marks


@dataclass(frozen=True, slots=True)
class Bound:
    """One end of a range: an offset of every partition, or a time in epoch ms."""

    offset: int | None = None
    time_ms: int | None = None

    @classmethod
    def parse(cls, flag: str, text: str) -> Bound:
        """An offset, or ISO-8601 with a zone.

        >>> Bound.parse("--from", "17"), Bound.parse("--to", "2027-01-15T08:00:00Z")
        (Bound(offset=17, time_ms=None), Bound(offset=None, time_ms=1800000000000))

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
        return cls(time_ms=ms_up(time))

    def firsts(self, ends: Marks, at_time: Callable[[int], Marks]) -> Marks:
        """As `offsets`, of the bound where a range begins.

        Raises:
            ConfigError: it is an offset above all ends, such as an instant in epoch ms: the range
                would have nothing.
        """
        end = max(ends.values(), default=0)
        if self.offset is not None and self.offset > end:
            raise ConfigError(
                f"offset {self.offset} is above the ends of all partitions, {end} at most: give a "
                "lower one, or an instant in ISO-8601 with a zone"
            )
        return self.offsets(ends, at_time)

    def offsets(self, ends: Marks, at_time: Callable[[int], Marks]) -> Marks:
        """The offset of the bound in each partition, at most the partition's end. `at_time` gives
        the first offsets at or after a time, without partitions that have none.
        """
        if self.time_ms is not None:
            found = at_time(self.time_ms)
        else:
            found = dict.fromkeys(ends, self.offset or 0)
        return {partition: min(found.get(partition, end), end) for partition, end in ends.items()}


BEGINNING = Bound(offset=0)
