"""Counts what is pending, by topic and by time, from the timer log.

A look reads, in each hour's log, only what has been committed since the look before, and takes off
what has been delivered. It is exact, and so is the first one after a restart: see pending_rows.py
for the moment that it speaks of.

A timer counts under its target, a rejected one under the dead-letter topic, and at the slot in
which it leaves the wheel: that of its due time; the earliest open one, if that was closed when the
timer came; that of its roll instant, if it is to be rolled. Between a roll and its copy's way back
through ingest a timer is not in the wheel. The log knows topics by a 32-bit hash: topics with the
same one are counted together, under both names.

Memory: 4 bytes per slot that the wheel reaches, and 16 for every pair of slot and topic that the
current hour has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from duewheel.schemas.ids import java_hash
from duewheel.schemas.timers import Int64
from duewheel.wheel.data_directory import DataDirectory
from duewheel.wheel.layout import HOUR_MS, RECORD_BYTES, last_slot_of_hour
from duewheel.wheel.pending_rows import Snapshot, consistently, pieces, rows_out

_HASH_BITS = 32


@dataclass(frozen=True, slots=True)
class Pending:
    """What one look found.

    Attributes:
        total: timers that are pending.
        by_topic: how many of them by target topic, topics without any left out.
        within: how many leave up to each of the slots asked for.
        oldest_slot: the first slot with pending timers, None if there is none.
        slot_max: most timers of one slot.
    """

    total: int
    by_topic: Mapping[str, int]
    within: tuple[int, ...]
    oldest_slot: int | None
    slot_max: int


class PendingTimers:
    """Looks again and again at one shard. Not thread-safe.

    Args:
        directory: opened for this object alone; may be one that other processes work in.
    """

    def __init__(self, directory: DataDirectory) -> None:
        self._directory = directory
        self._precision_ms = directory.config.precision_ms
        self._hours: dict[int, _Hour] = {}
        self._names: dict[int, str] = {}

    def look(self, until: Sequence[int] = ()) -> Pending:
        """Count what is pending now.

        Args:
            until: slots for `Pending.within`.

        Raises:
            CorruptFile: a file is damaged.
        """
        half_slot, out = consistently(self._directory, self._update)
        hours = self._hours.values()
        hashes: Counter[int] = Counter()
        for hour in hours:
            hashes.update(hour.topics)
        hashes.subtract(out)
        rows_out = out.total()
        within = [sum(hour.count_until(slot) for hour in hours) for slot in until]
        slots = [slot for hour in hours if (slot := hour.first()) is not None]
        return Pending(
            hashes.total(),
            self._named(hashes),
            tuple(
                count - rows_out * (slot >= half_slot)
                for slot, count in zip(until, within, strict=True)
            ),
            min(slots, default=None),
            max((hour.fullest(half_slot, rows_out) for hour in hours), default=0),
        )

    def _update(self, snapshot: Snapshot) -> tuple[int, Counter[int]]:
        """Take in what was committed, drop what was delivered since the last look.

        Returns:
            Slot r + 1, and by topic hash how many of its rows are out.
        """
        directory, current = self._directory, snapshot.current
        self._hours = {hour: known for hour, known in self._hours.items() if hour >= current}
        directory.log.forget_below(current)
        for hour, log_bytes in snapshot.log_bytes.items():
            # If the log vanishes on the way, the hour is begun anew.
            known = self._hours.pop(hour, None)
            if known is None or (hour == current and not known.detailed):
                known = _Hour(hour, self._precision_ms, detailed=hour == current)
            for _, slot, records in pieces(directory, hour, known.log_bytes, log_bytes):
                known.add(slot, records["topic_hash"].astype(np.int64))
            known.log_bytes = log_bytes
            known.drop(snapshot.r)
            self._hours[hour] = known
        out: Counter[int] = Counter()
        for first, end in rows_out(directory, snapshot):
            view = directory.log.view(current, end)[first // RECORD_BYTES : end // RECORD_BYTES]
            out.update(_counts(view["topic_hash"].astype(np.int64)))
        return snapshot.r + 1, out

    def _named(self, hashes: Mapping[int, int]) -> dict[str, int]:
        found = {number: count for number, count in hashes.items() if count}
        if found.keys() - self._names.keys():
            self._directory.topics.refresh()
            names: dict[int, list[str]] = {}
            for name in self._directory.topics.names():
                names.setdefault(java_hash(name), []).append(name)
            self._names = {number: ",".join(known) for number, known in names.items()}
        return {self._names[number]: count for number, count in found.items()}


class _Hour:
    """Counts of one hour's records.

    Attributes:
        log_bytes: how far the hour's log has been read.
        topics: timers by topic hash.
        detailed: whether the topics of each slot are known, so that slots can be dropped.
    """

    def __init__(self, hour: int, precision_ms: int, *, detailed: bool) -> None:
        self.log_bytes = 0
        self.topics: Counter[int] = Counter()
        self.detailed = detailed
        self._first = last_slot_of_hour(hour - 1, precision_ms) + 1
        self._per_slot = np.zeros(HOUR_MS // precision_ms + 1, np.int32)
        # Of a detailed hour: slots since the first, then topic hash, as one number; rising.
        self._keys = np.empty(0, np.int64)
        self._counts = np.empty(0, np.int64)

    def add(self, slot: Int64, topic_hash: Int64) -> None:
        """Count more records."""
        place = slot - self._first
        per_slot = np.bincount(place, minlength=len(self._per_slot))
        self._per_slot += per_slot.astype(np.int32)
        self.topics.update(_counts(topic_hash))
        if self.detailed:
            keys = (place << _HASH_BITS) | (topic_hash & ((1 << _HASH_BITS) - 1))
            keys, counts = np.unique(keys, return_counts=True)
            known, self._keys = self._keys, np.union1d(self._keys, keys)
            merged = np.zeros(len(self._keys), np.int64)
            merged[np.searchsorted(self._keys, known)] = self._counts
            merged[np.searchsorted(self._keys, keys)] += counts
            self._counts = merged

    def drop(self, r: int) -> None:
        """Forget the slots up to `r`."""
        place = r + 1 - self._first
        if place <= 0:
            return
        assert self.detailed, "only the current hour has slots that are delivered"
        self._per_slot[:place] = 0
        gone = int(np.searchsorted(self._keys, place << _HASH_BITS))
        hashes = self._keys[:gone].astype(np.uint32).view(np.int32).astype(np.int64)
        self.topics.subtract(_counts(hashes, self._counts[:gone]))
        self._keys, self._counts = self._keys[gone:].copy(), self._counts[gone:].copy()

    def count_until(self, slot: int) -> int:
        """Timers up to `slot`."""
        return int(self._per_slot[: max(0, slot + 1 - self._first)].sum(dtype=np.int64))

    def first(self) -> int | None:
        """The first slot with timers."""
        filled = np.flatnonzero(self._per_slot)
        return self._first + int(filled[0]) if len(filled) else None

    def fullest(self, half_slot: int, rows_out: int) -> int:
        """Most timers of one slot, `rows_out` of `half_slot` left out."""
        place = half_slot - self._first
        if not rows_out or not 0 <= place < len(self._per_slot):
            return int(self._per_slot.max())
        left = self._per_slot.copy()
        left[place] -= rows_out
        return int(left.max())


def _counts(numbers: Int64, weights: Int64 | None = None) -> dict[int, int]:
    """How often each number is there, or the sum of its weights."""
    found, row = np.unique(numbers, return_inverse=True)
    sums = np.bincount(row, weights).astype(np.int64)
    return dict(zip(found.tolist(), sums.tolist(), strict=True))
