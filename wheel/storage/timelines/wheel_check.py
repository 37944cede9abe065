"""Compares a snapshot of the ring, and the chains, with the logs: for full_check.py.

chains    each run links to its slot's previous run
entries   of every slot that the ring reaches and that is not delivered: first, last, num; each
          at its index
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from duewheel.schemas.arrays import Int64
from duewheel.wheel.slots import WheelConfig, first_slot_of_hour
from duewheel.wheel.storage.byte_layouts import NO_POSITION, Entries
from duewheel.wheel.storage.findings import Finding, findings_at
from duewheel.wheel.storage.runs import Runs
from duewheel.wheel.storage.timelines import timer_wheel
from duewheel.wheel.storage.timelines.timeline import HourVerifier, Verifier


@dataclass(frozen=True, slots=True)
class WheelVerifier(Verifier):
    """A snapshot of the ring: all entries."""

    entries: Entries
    lower: int
    linked: int
    config: WheelConfig

    def newest_batch(self, near: int) -> int:
        return timer_wheel.newest_batch(self.entries, near)

    def misplaced(self) -> Iterator[Finding]:
        """As Verifier: entries of a slot with another index, or without positions."""
        entries, ring = self.entries, len(self.entries)
        place = np.arange(ring)
        unused = (entries["time"] == place - ring) & (entries["num"] == 0)
        bad = ~unused & ((entries["time"] % ring != place) | ~timer_wheel.is_used(entries))
        position = place * entries.dtype.itemsize
        yield from findings_at(
            timer_wheel.FILE_NAME, position, bad, "entry_place", "no slot of this place"
        )

    def of_hour(self, hour: int) -> _Chains:
        return _Chains(self, hour)


class _Chains(HourVerifier):
    """The chains of an hour's slots in the part of the log that was read, by slot."""

    def __init__(self, wheel: WheelVerifier, hour: int) -> None:
        precision_ms = wheel.config.precision_ms
        self._wheel = wheel
        self._first_slot = first_slot_of_hour(hour, precision_ms)
        count = first_slot_of_hour(hour + 1, precision_ms) - self._first_slot
        # Of each slot: the first and the last record so far, and how many there are.
        self._first_pos, self._last_pos = np.full(count, NO_POSITION), np.full(count, NO_POSITION)
        self._num: Int64 = np.zeros(count, np.int64)

    def follow(self, runs: Runs, log_name: str) -> Iterator[Finding]:
        runs = runs.where(runs.slot > self._wheel.lower)
        order = np.lexsort((runs.first_pos, runs.slot))
        first_pos, last_pos = runs.first_pos[order], runs.last_pos[order]
        place = runs.slot[order] - self._first_slot
        begins = np.append(True, place[1:] != place[:-1])[: len(place)]
        ends = np.append(begins[1:], True)[: len(place)]
        expected = np.where(begins, self._last_pos[place], np.roll(last_pos, 1))
        bad = runs.prev_pos[order] != expected
        detail = "the run does not continue its slot's last one"
        yield from findings_at(log_name, first_pos, bad, "chain", detail)
        new = begins & (self._num[place] == 0)
        self._first_pos[place[new]] = first_pos[new]
        self._last_pos[place[ends]] = last_pos[ends]
        np.add.at(self._num, place, runs.count[order])

    def end(self) -> Iterator[Finding]:
        wheel, ring = self._wheel, len(self._wheel.entries)
        used = np.flatnonzero(self._num)
        used = used[self._first_slot + used <= wheel.linked]
        slots = self._first_slot + used
        entry = wheel.entries[slots % ring]
        named = entry["time"] == slots
        position = (slots % ring) * wheel.entries.dtype.itemsize
        num, first_pos, last_pos = (
            of_slots[used] for of_slots in (self._num, self._first_pos, self._last_pos)
        )
        for code, bad, detail in (
            ("entry_lost", ~named, "a slot with records has no entry"),
            ("entry_first", named & (entry["first_pos"] != first_pos), "first_pos"),
            ("entry_last", named & (entry["last_pos"] != last_pos), "last_pos"),
            ("entry_num", named & (entry["num"] != num), "num is not the number of records"),
        ):
            yield from findings_at(timer_wheel.FILE_NAME, position, bad, code, detail)
