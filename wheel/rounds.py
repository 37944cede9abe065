"""Rounds of lookups for live cancels, one at a time: what they meet, and what they are told."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass

import numpy as np

from duewheel.checkpoints.page_contents import Marks
from duewheel.checkpoints.progress import PartitionProgress
from duewheel.clock import Clock
from duewheel.schemas.timers import Bool, Int64, TopicPartition
from duewheel.wheel.cancel_reader import CancelReader
from duewheel.wheel.growing import GrowingTombstones
from duewheel.wheel.live_cancels import LiveCancels
from duewheel.wheel.lookups import Found, Lookups, lower_bits
from duewheel.wheel.remembered import Remembered
from duewheel.wheel.tombstones import NOT_LOOKED, Tombstones, indexes
from duewheel.wheel.verdicts import Rows, verdicts


@dataclass(frozen=True, slots=True)
class Start:
    """Where the loop has begun: what had left before, nobody here has seen leaving.

    Attributes:
        r: last slot that was delivered in full.
        below: D of slot r + 1, if that was half delivered.
        partitions: the progress that was found.
    """

    r: int
    below: Marks
    partitions: Mapping[TopicPartition, PartitionProgress]


class Rounds:
    """See the module's head. Not thread-safe."""

    def __init__(
        self,
        lookups: Lookups,
        clock: Clock,
        start: Start,
        reader: CancelReader,
        live: LiveCancels,
        past: Remembered,
    ) -> None:
        """
        Args:
            lookups: of the data directory.
            clock: spaces the rounds.
            start: where the loop has begun.
            reader: knows the partitions, and which cancels are cut off.
            live: for whom rounds are made; no row may change its place while one is going on.
            past: cancels that may have left something out, too.
        """
        self._lookups = lookups
        self._clock = clock
        self._start = start
        self._reader = reader
        self._live = live
        self._past = past
        self._asked: tuple[Future[Found], Int64, Bool] | None = None
        self._next_ms = 0

    @property
    def is_going(self) -> bool:
        """Whether one is going on, or its result is waiting."""
        return self._asked is not None

    @property
    def may_begin(self) -> bool:
        """Whether the last one was long enough ago: rounds take half of a core at most."""
        return not self.is_going and self._clock.boottime_ms() >= self._next_ms

    def begin(self, rows: Int64, settled: Bool, log_bytes: Mapping[int, int], r: int) -> None:
        """Look for what some live cancels meet.

        Args:
            rows: which, of which there is one.
            settled: of which of them all that they can ever meet is there.
            log_bytes: committed length of each hour's log.
            r: last slot delivered in full.
        """
        future = self._lookups.begin(self._live.rows.id_hash[rows], log_bytes, r)
        self._asked = future, rows, settled

    def wait(self, seconds: float) -> bool:
        """Whether none is going on by then."""
        return self._asked is None or bool(wait([self._asked[0]], seconds).done)

    def end(self) -> Found | None:
        """Take the result, if it is there, and return it.

        Raises:
            CorruptFile: a message that cancels meet is damaged.
        """
        if self._asked is None or not self._asked[0].done():
            return None
        future, asked, settled = self._asked
        self._asked = None
        found = future.result()
        self._take(found, asked, settled)
        return found

    def close(self) -> None:
        """Wait for the one that is going on, and let go of its files."""
        self._lookups.close()

    def _take(self, found: Found, asked: Int64, settled: Bool) -> None:
        self._next_ms = self._clock.boottime_ms() + max(1, found.took_ms)
        live = self._live.rows
        rows, others = self._rows(found), self._others(found)
        in_doubt = np.append(found.damaged, self._reader.cut_off)
        word, first, last = verdicts(live.take(asked), settled, rows, others, in_doubt)
        live.word[asked], live.first[asked], live.last[asked] = word, first, last
        unlooked = self._live.unlooked
        self._live.unlooked = unlooked[live.last[unlooked] == NOT_LOOKED]

    def _rows(self, found: Found) -> Rows:
        partition = indexes(self._reader.places, found.partitions)[found.partition]
        was_out = self._was_out(found)
        rows = np.flatnonzero(partition >= 0)
        return Rows(
            partition[rows],
            found.origin[rows],
            found.id_hash[rows],
            found.timer_id.take(rows),
            found.slot[rows],
            was_out[rows],
            ~found.rolled[rows] & (found.slot[rows] > self._past.unknown_to),
        )

    def _others(self, found: Found) -> Tombstones:
        """All that may have left out what was found; a few more do no harm."""
        near, table, live = GrowingTombstones(), lower_bits(found.id_hash), self._live.rows
        near.append(live.take(np.flatnonzero(table[live.id_hash & (len(table) - 1)])))
        near.append(self._past.near(table))
        return near.rows

    def _was_out(self, found: Found) -> Bool:
        """Rows that had left before the start."""
        below = np.array([self._start.below.get(p, 0) for p in found.partitions], np.int64)
        half: Bool = found.slot == self._start.r + 1
        if len(below):
            half &= found.offset < below[found.partition]
        was_out: Bool = half | (found.slot <= self._start.r)
        return was_out
