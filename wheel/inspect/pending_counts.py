"""Counts pending timers by topic, by delay level and by time, from the timer log. Their number
alone is a subtraction (src/duewheel/runtime/pending_total.py).

A count reads in each hour's log only the records committed since the count before, and subtracts
delivered ones. It is exact, also the first one after a restart; snapshot.py defines its moment.

- A timer counts under its target, a rejected one under the dead-letter topic.
- It counts at the slot that it is in: the slot of its due time, or the earliest open one if the
  timer came later, or the slot of its roll instant. A cancelled timer counts until then.
- A rolled timer is not in the wheel until ingest has taken its copy.
- The log has a 32-bit hash of each topic: topics with the same hash count under the name of the
  first. Level and hash make a record's *kind*.
- Producers choose names, so only the TOPICS_MAX topics with the most timers have theirs, and all
  others are OTHER. In an hour with more than TARGETS_KEPT topics their counts are a little low, and
  that of OTHER so much higher (topic_counts.py).

Memory: 8 bytes per slot that the wheel reaches, 24 bytes for each of TARGETS_KEPT topics per hour,
and up to 32 bytes for every slot and kind that the current hour has (slot_kinds.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from duewheel.schemas.arrays import Bool, Int64
from duewheel.schemas.batches import LEVEL_MAX, NO_LEVEL
from duewheel.wheel.inspect.slot_kinds import (
    NONE,
    TOPIC_BITS,
    SlotKinds,
    kinds_of,
    levels_of,
    topics_of,
)
from duewheel.wheel.inspect.snapshot import ROWS_AT_ONCE, Snapshot, consistently, positions_out
from duewheel.wheel.inspect.topic_counts import TopicCounts
from duewheel.wheel.slots import HOUR_MS, first_slot_of_hour
from duewheel.wheel.storage.byte_layouts import MAGIC_ROLL, RECORD_BYTES, level_of
from duewheel.wheel.storage.data_directory import DataDirectory
from duewheel.wheel.storage.timer_log import Records

OTHER = "other"
TOPICS_MAX = 1_000  # counted by name


@dataclass(frozen=True, slots=True)
class Pending:
    """Counts of the pending timers of one shard."""

    total: int
    by_topic: Mapping[str, int]  # by target topic, or under OTHER; without empty topics
    # By requested level, without empty levels; timers without a level do not count
    by_level: Mapping[int, int]
    next_slot: Mapping[int, int]  # by level: the first slot with such timers
    within: tuple[int, ...]  # timers in slots up to each of those in `until`
    oldest_slot: int | None  # the first slot with pending timers, None without one
    slot_max: int  # most timers of one slot
    beyond_ring: int
    rolls: int  # timers that will roll
    rolls_ahead: int  # those of them up to the last slot in `ahead`
    rolls_per_second: float  # the most in a second of these slots, or in a slot if those are longer
    delivered_slot: int  # R, -1 before the first start of dequeue


@dataclass(frozen=True, slots=True)
class _Out:
    """The rows of the half-delivered slot, r + 1, that are out."""

    slot: int
    hour: int
    kinds: Int64  # of each row, in that hour
    rolls: int  # rows that roll


class PendingTimers:
    """Counts one shard's pending timers repeatedly, in a directory opened for this object alone;
    other processes may work in it. Not thread-safe.
    """

    def __init__(self, directory: DataDirectory) -> None:
        self._directory = directory
        self._precision_ms = directory.config.precision_ms
        self._hours: dict[int, _HourCounts] = {}
        self._names: dict[int, str] = {}  # of the topics of the last count, by hash

    def count(self, until: Sequence[int] = (), ahead: range = range(0)) -> Pending:
        """Counts the timers that are pending now. `until` has slots for `Pending.within`, `ahead`
        slots for `rolls_ahead` and `rolls_per_second`.

        Raises:
            CorruptFile: a file is damaged.
        """
        out, by_topic = consistently(self._directory, self._update_with_names)
        hours = self._hours.values()
        levels = self._by_level(out)
        rows_out = len(out.kinds)
        within = [sum(hour.count_until(slot) for hour in hours) for slot in until]
        slots = [slot for hour in hours if (slot := hour.first()) is not None]
        rolls = self._rolls(ahead, out)
        return Pending(
            int(levels.sum()),
            by_topic,
            {level: n for level, n in enumerate(levels.tolist()) if n and level != NO_LEVEL},
            self._next_slots(out),
            tuple(
                count - rows_out * (slot >= out.slot)
                for slot, count in zip(until, within, strict=True)
            ),
            min(slots, default=None),
            max((hour.fullest(out.slot, rows_out) for hour in hours), default=0),
            sum(hour.count_after(self._directory.state.linked) for hour in hours),
            sum(int(hour.rolls.sum(dtype=np.int64)) for hour in hours) - out.rolls,
            sum(hour.rolls_until(ahead.stop - 1) for hour in hours)
            - out.rolls * (out.slot < ahead.stop),
            self._per_second(rolls),
            out.slot - 1,
        )

    def between(self, slots: Sequence[int]) -> tuple[Int64, Int64]:
        """Counts the timers above each of these rising slots, up to the next one; and how many of
        them roll.

        Raises:
            CorruptFile: a file is damaged.
        """
        out = consistently(self._directory, self._update)
        bounds = np.asarray(slots, np.int64)
        until = np.zeros((2, len(bounds)), np.int64)
        for hour in self._hours.values():
            until += hour.until(bounds)
        until -= np.outer([len(out.kinds), out.rolls], bounds >= out.slot)
        timers, rolls = np.diff(until)
        return timers, rolls

    def _update_with_names(self, snapshot: Snapshot) -> tuple[_Out, dict[str, int]]:
        out = self._update(snapshot)
        return out, self._by_topic(out)

    def _update(self, snapshot: Snapshot) -> _Out:
        """Adds committed records, and drops delivered ones, since the last count."""
        directory, current = self._directory, snapshot.current
        self._hours = {hour: counts for hour, counts in self._hours.items() if hour >= current}
        directory.log.forget_below(current)
        directory.messages.files.forget_below(current)
        for hour, log_bytes in snapshot.log_bytes.items():
            # Popped: if the log is unlinked meanwhile, the next count starts the hour again.
            counts = self._hours.pop(hour, None)
            if counts is None or (hour == current and not counts.detailed):
                counts = _HourCounts(hour, self._precision_ms, detailed=hour == current)
            for position, slot, records in directory.blocks(hour, counts.log_bytes, log_bytes):
                counts.add(position, slot, _kinds(records), _is_roll(records))
            counts.log_bytes = log_bytes
            counts.drop(snapshot.delivered_slot)
            self._hours[hour] = counts
        kinds, rolls = [np.empty(0, np.int64)], 0
        positions = positions_out(directory, snapshot)
        for first in range(0, len(positions), ROWS_AT_ONCE):
            rows = positions[first : first + ROWS_AT_ONCE]
            view = directory.log.view(current, int(rows[-1]) + RECORD_BYTES)
            records = view.take(rows // RECORD_BYTES)
            kinds.append(_kinds(records))
            rolls += int(_is_roll(records).sum())
        return _Out(snapshot.delivered_slot + 1, current, np.concatenate(kinds), rolls)

    def _next_slots(self, out: _Out) -> dict[int, int]:
        """Returns the first slot with timers of each level. The hours are in order."""
        first_slots: dict[int, int] = {}
        for hour in self._hours.values():
            first_slots = {**hour.first_of_levels(out), **first_slots}
        return dict(sorted(first_slots.items()))

    def _rolls(self, ahead: range, out: _Out) -> Int64:
        """Counts the timers that roll in each of these slots."""
        rolls = np.zeros(len(ahead), np.int64)
        for hour in self._hours.values():
            hour.add_rolls(rolls, ahead.start)
        if out.slot in ahead:
            rolls[out.slot - ahead.start] -= out.rolls
        return rolls

    def _per_second(self, rolls: Int64) -> float:
        if not len(rolls):
            return 0.0
        slots = max(1, 1000 // self._precision_ms)
        counts = np.add.reduceat(rolls, np.arange(0, len(rolls), slots))
        return int(counts.max()) * 1000 / (slots * self._precision_ms)

    def _by_topic(self, out: _Out) -> dict[str, int]:
        """Counts the timers of the topics that have the most, by name; the others as OTHER."""
        hashes_out, out_counts = np.unique(topics_of(out.kinds), return_counts=True)
        tables = {number: hour.topics.table for number, hour in self._hours.items()}
        minus = np.stack([hashes_out, -out_counts, hashes_out])  # without positions: only summed
        table = np.hstack([*tables.values(), minus])
        order = np.argsort(table[0], kind="stable")
        hashes, counts, positions = table[:, order]
        first = np.flatnonzero(np.diff(hashes, prepend=-1))
        sums = np.add.reduceat(counts, first) if len(first) else counts
        most = np.argsort(-sums, kind="stable")[:TOPICS_MAX]
        most = most[sums[most] > 0]
        hour_ends = np.cumsum([part.shape[1] for part in tables.values()])
        hours = np.searchsorted(hour_ends, order[first[most]], side="right")
        numbers, names, topics = list(tables), dict[int, str](), Counter[str]()
        rows = (hashes[first[most]], hours, positions[first[most]], sums[most])
        for topic, hour, position, count in zip(*(row.tolist() for row in rows), strict=True):
            names[topic] = self._names.get(topic) or self._name(numbers[hour], position)
            topics[names[topic]] += count
        self._names = names
        others = int(self._by_level(out).sum()) - topics.total()
        return dict(topics + Counter({OTHER: others}))

    def _name(self, hour: int, position: int) -> str:
        """Reads the target of the record at this position."""
        view = self._directory.log.view(hour, position + RECORD_BYTES)
        return self._directory.messages.target(hour, view[position // RECORD_BYTES])

    def _by_level(self, out: _Out) -> Int64:
        levels = -np.bincount(levels_of(out.kinds), minlength=LEVEL_MAX + 1)
        for hour in self._hours.values():
            levels += hour.by_level
        return levels


class _HourCounts:
    """Counts of one hour's records. A `detailed` hour has the kinds of each slot, so that slots can
    be dropped.
    """

    def __init__(self, hour: int, precision_ms: int, *, detailed: bool) -> None:
        self.log_bytes = 0  # length of the part of the hour's log that was read
        self.topics = TopicCounts()
        self.by_level = np.zeros(LEVEL_MAX + 1, np.int64)
        self.detailed = detailed
        self._first = first_slot_of_hour(hour, precision_ms)
        # np.zeros: pages without counts take no memory, and hours beyond the ring may be many.
        self._per_slot = np.zeros(HOUR_MS // precision_ms + 1, np.int32)
        self.rolls = np.zeros(len(self._per_slot), np.int32)  # by slot
        # By level: the first slot with such timers, counted from the hour's first slot.
        self._first_of_level = np.full(LEVEL_MAX + 1, NONE)
        self._slot_kinds = SlotKinds()  # in a detailed hour, instead

    def add(self, position: Int64, slot: Int64, kind: Int64, is_roll: Bool) -> None:
        """Counts more records, at these positions of the log."""
        place = slot - self._first
        for counts, places in ((self._per_slot, place), (self.rolls, place[is_roll])):
            if len(places) >= len(counts):  # most pages have counts then, and a sort takes longer
                counts += np.bincount(places, minlength=len(counts)).astype(np.int32)
            else:
                used, more = np.unique(places, return_counts=True)
                counts[used] += more.astype(np.int32)
        levels = levels_of(kind)
        self.topics.add(topics_of(kind), position)
        self.by_level += np.bincount(levels, minlength=len(self.by_level))
        if self.detailed:
            self._slot_kinds.add(place, kind)
        else:
            np.minimum.at(self._first_of_level, levels, place)

    def drop(self, r: int) -> None:
        """Drops the slots up to `r`."""
        place = r + 1 - self._first
        if place <= 0:
            return
        assert self.detailed, "only the current hour has slots that are delivered"
        self._per_slot[:place] = 0
        self.rolls[:place] = 0
        kinds, counts = self._slot_kinds.drop(place)
        self.topics.drop(topics_of(kinds), counts)
        np.subtract.at(self.by_level, levels_of(kinds), counts)

    def count_until(self, slot: int) -> int:
        return int(self._per_slot[: max(0, slot + 1 - self._first)].sum(dtype=np.int64))

    def count_after(self, slot: int) -> int:
        """Counts the timers after `slot`."""
        return int(self._per_slot[max(0, slot + 1 - self._first) :].sum(dtype=np.int64))

    def until(self, slots: Int64) -> Int64:
        """Counts the timers, and the rolls, up to each of these slots."""
        bound = np.clip(slots + 1 - self._first, 0, len(self._per_slot))
        counts = (self._per_slot, self.rolls)
        return np.stack([np.append(0, np.cumsum(c, dtype=np.int64))[bound] for c in counts])

    def rolls_until(self, slot: int) -> int:
        return int(self.rolls[: max(0, slot + 1 - self._first)].sum(dtype=np.int64))

    def add_rolls(self, rolls: Int64, first: int) -> None:
        """Adds each slot's rolls to an array that begins with slot `first`."""
        begin = max(first, self._first)
        end = min(first + len(rolls), self._first + len(self.rolls))
        if begin < end:
            rolls[begin - first : end - first] += self.rolls[
                begin - self._first : end - self._first
            ]

    def first(self) -> int | None:
        filled = np.flatnonzero(self._per_slot)
        return self._first + int(filled[0]) if len(filled) else None

    def first_of_levels(self, out: _Out) -> dict[int, int]:
        """Returns the first slot with timers of each level, without rows that are out."""
        places = self._first_of_level
        if self.detailed:
            places = self._slot_kinds.first_of_levels(out.slot - self._first, out.kinds)
        levels = np.flatnonzero(places != NONE)
        slots = zip(levels.tolist(), places[levels].tolist(), strict=True)
        return {level: self._first + place for level, place in slots if level != NO_LEVEL}

    def fullest(self, half_slot: int, rows_out: int) -> int:
        """Returns the most timers of one slot, without the `rows_out` of `half_slot`."""
        place = half_slot - self._first
        if not rows_out or not 0 <= place < len(self._per_slot):
            return int(self._per_slot.max())
        left = self._per_slot.copy()
        left[place] -= rows_out
        return int(left.max())


def _kinds(records: Records) -> Int64:
    hashes = records["topic_hash"].astype(np.int64) & (1 << TOPIC_BITS) - 1
    return kinds_of(level_of(records["magic"]).astype(np.int64), hashes)


def _is_roll(records: Records) -> Bool:
    is_roll: Bool = (records["magic"] & MAGIC_ROLL) != 0
    return is_roll
