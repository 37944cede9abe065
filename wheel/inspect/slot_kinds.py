"""Counts the timers of one hour by slot and kind, for slots that leave one after another.

A *kind* is a delay level and the hash of a topic, as unsigned 32 bits. Producers choose both, and
the time: an hour may have as many slots with a kind as timers. So no block of the log, and no
count, may cost a sort of the whole hour. Keys are sorted when they come, then merged about once for
each doubling of their number.
"""

from __future__ import annotations

import numpy as np

from duewheel.schemas.arrays import Int64
from duewheel.schemas.batches import LEVEL_MAX

NONE = np.iinfo(np.int64).max  # a level without timers
TOPIC_BITS = 32
_KIND_BITS = 40  # with 22 bits for the slots of an hour, of a millisecond at least


def kinds_of(levels: Int64, topics: Int64) -> Int64:
    """Combines levels and hashes of topics."""
    kinds: Int64 = (levels << TOPIC_BITS) | topics
    return kinds


def levels_of(kinds: Int64) -> Int64:
    """Returns the level of each kind."""
    levels: Int64 = kinds >> TOPIC_BITS
    return levels


def topics_of(kinds: Int64) -> Int64:
    """Returns the hash of each kind's topic."""
    topics: Int64 = kinds & ((1 << TOPIC_BITS) - 1)
    return topics


class SlotKinds:
    """Counts by slot and kind. Slots are counted from the first one of the hour.

    Attributes:
        runs: rising keys, each a slot and a kind as one number, and their counts. Each run is at
            least twice as long as the next: all have less than twice as many keys as differ.
    """

    def __init__(self) -> None:
        self.runs: list[tuple[Int64, Int64]] = []

    def add(self, slots: Int64, kinds: Int64) -> None:
        """Counts more timers."""
        keys, counts = np.unique((slots << _KIND_BITS) | kinds, return_counts=True)
        self.runs.append((keys, counts))
        self._merge()

    def drop(self, end: int) -> tuple[Int64, Int64]:
        """Drops the slots below `end`; returns kinds and counts of their timers."""
        dropped = self._part(0, end)
        for number, (keys, counts) in enumerate(self.runs):
            first = np.searchsorted(keys, end << _KIND_BITS)
            self.runs[number] = keys[first:].copy(), counts[first:].copy()  # frees the others
        self._merge()
        return dropped

    def first_of_levels(self, half: int, kinds_out: Int64) -> Int64:
        """Returns the first slot of each level, without the timers of slot `half` that are out,
        given by their kinds. No slot is before `half`.
        """
        first_slots = np.full(LEVEL_MAX + 1, NONE)
        for keys, _ in self.runs:
            later = keys[np.searchsorted(keys, (half + 1) << _KIND_BITS) :]
            np.minimum.at(first_slots, levels_of(_kinds_in(later)), later >> _KIND_BITS)
        kinds, counts = self._part(half, half + 1)
        kinds, counts = _summed(
            np.append(kinds, kinds_out), np.append(counts, np.full(len(kinds_out), -1))
        )
        first_slots[levels_of(kinds[counts > 0])] = half
        return first_slots

    def _part(self, first: int, end: int) -> tuple[Int64, Int64]:
        """Returns kinds and counts of these slots; a kind may be there several times."""
        kinds, counts = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for keys, run_counts in self.runs:
            rows = slice(*np.searchsorted(keys, [first << _KIND_BITS, end << _KIND_BITS]))
            kinds.append(_kinds_in(keys[rows]))
            counts.append(run_counts[rows])
        return np.concatenate(kinds), np.concatenate(counts)

    def _merge(self) -> None:
        """Merges runs until each is at least twice as long as the next."""
        runs: list[tuple[Int64, Int64]] = []
        for run in self.runs:
            runs.append(run)
            while len(runs) > 1 and len(runs[-2][0]) < 2 * len(runs[-1][0]):
                keys, counts = zip(*runs[-2:], strict=True)
                runs[-2:] = [_summed(np.concatenate(keys), np.concatenate(counts))]
        self.runs = [run for run in runs if len(run[0])]


def _summed(keys: Int64, counts: Int64) -> tuple[Int64, Int64]:
    """Sums the counts of equal keys; returns the keys in order."""
    order = np.argsort(keys, kind="stable")  # two rising runs: one pass
    keys, counts = keys[order], counts[order]
    first = np.flatnonzero(np.diff(keys, prepend=-1))
    return keys[first], np.add.reduceat(counts, first) if len(first) else counts


def _kinds_in(keys: Int64) -> Int64:
    kinds: Int64 = keys & ((1 << _KIND_BITS) - 1)
    return kinds
