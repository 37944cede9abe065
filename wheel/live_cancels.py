"""The cancels that are in memory, and which of them something is to be done about.

Few of them change: those that have just come, or are not answered. These are listed apart, and all
are looked at only now and then (a *sweep*). Until then a cancel that is over stays, which does no
harm: it meets nothing, and K may always be lower.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from duewheel.schemas.timers import Bool, Int64, TopicPartition
from duewheel.wheel.growing import GrowingTombstones
from duewheel.wheel.tombstones import NOT_ASKED, NOT_LOOKED, Filter, Tombstones

_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Swept:
    """What is known of the live cancels since all of them were looked at.

    Attributes:
        k: at most the lowest offset of each partition's, but for those of which others tell.
        hour: at most the lowest segment.
        over: how many were over, and are still kept.
    """

    k: Mapping[TopicPartition, int]
    hour: int
    over: int


class LiveCancels:
    """See the module's head. Not thread-safe.

    Attributes:
        unsaid, unlooked, unasked: rows of those without an answer, of those that were not looked
            up, and of those of whose partition's end nobody was told: mostly few.
        filter: what is to be left out; never changed, but replaced.
        swept: what the last sweep has found, and what came since.
    """

    def __init__(self, partitions: list[TopicPartition], places: dict[TopicPartition, int]) -> None:
        """
        Args:
            partitions: what each one's `partition` indexes; the list grows.
            places: the index of each.
        """
        self._partitions = partitions
        self._places = places
        self._columns = GrowingTombstones()
        self.unsaid = self.unlooked = self.unasked = np.empty(0, np.int64)
        self.filter = Filter((), {})
        self.swept = Swept({}, _NEVER, 0)

    def __len__(self) -> int:
        """With those that are over, and kept."""
        return len(self._columns)

    @property
    def needed(self) -> int:
        """How many are not over, as far as is known."""
        return len(self) - self.swept.over

    @property
    def rows(self) -> Tombstones:
        """All of them, as views: what is written to its arrays is written here."""
        return self._columns.rows

    def add(self, new: Tombstones, unsaid: Bool) -> None:
        """Add those; `unsaid` says which of them have no answer."""
        if not len(new):
            return
        rows = len(self) + np.arange(len(new))
        self._columns.append(new)
        self.unsaid = np.append(self.unsaid, rows[unsaid])
        self.unlooked = np.append(self.unlooked, rows[new.last == NOT_LOOKED])
        self.unasked = np.append(self.unasked, rows[new.log_end == NOT_ASKED])
        if len(self.filter.places) != len(self._places):
            self.filter = replace(self.filter, places=dict(self._places))
        self.filter = self.filter.beside(new)
        k, swept = {**self.swept.k}, self.swept
        for partition, offset in self.k(rows).items():
            k[partition] = min(offset, k.get(partition, _NEVER))
        self.swept = Swept(k, min(int(new.hour.min()), swept.hour), swept.over)

    def k(self, rows: Int64) -> dict[TopicPartition, int]:
        """The lowest offset of these in each partition that has any."""
        live, k = self.rows, np.full(len(self._partitions), _NEVER)
        np.minimum.at(k, live.partition[rows], live.offset[rows])
        return {p: o for p, o in zip(self._partitions, k.tolist(), strict=True) if o != _NEVER}

    def drop(self, going: Bool) -> None:
        """Keep the others alone, none of which may lose its place in `unsaid` or `unlooked`."""
        self._columns = self._columns.kept(~going)
        place = np.cumsum(~going) - 1
        self.unasked = place[self.unasked[~going[self.unasked]]]
        self.unsaid, self.unlooked = place[self.unsaid], place[self.unlooked]
        self.filter = replace(self.filter, runs=()).beside(self.rows)

    def note_swept(self, needed: Int64, over: int) -> None:
        """All were looked at.

        Args:
            needed: rows of those that K must not pass, nor their segment be unlinked.
            over: how many are over.
        """
        hour = int(self.rows.hour[needed].min(initial=_NEVER))
        self.swept = Swept(self.k(needed), hour, over)
