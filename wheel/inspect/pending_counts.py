"""Counts pending timers by topic, by delay level and by time, from the timer log. Their number
alone is a subtraction (src/duewheel/runtime/pending_total.py).

A count reads in each hour's log only the records committed since the count before, and subtracts
delivered ones. It is exact, also the first one after a restart; snapshot.py defines its moment.

- A timer counts under its target, a rejected one under the dead-letter topic.
- It counts at the slot that it is in: the slot of its due time, or the earliest open one if the
  timer came later, or the slot of its roll instant. A cancelled timer counts until then.
- A rolled timer is not in the wheel until ingest has taken its copy.
- The log has a 32-bit hash of each topic: topics with the same hash count under the name of the
  first. Producers choose names, so the first TOPICS_MAX topics of an hour are counted by name, the
  rest as OTHER. Level and number of the topic in its hour make a record's *kind*.

Memory: 8 bytes per slot that the wheel reaches, TOPICS_MAX names with counts per hour, and up to 32
bytes for every slot and kind that the current hour has (slot_kinds.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from duewheel.schemas.arrays import Bool, Int64
from duewheel.schemas.batches import LEVEL_MAX, NO_LEVEL
from duewheel.wheel.inspect.slot_kinds import NONE, SlotKinds, kinds_of, levels_of, topics_of
from duewheel.wheel.inspect.snapshot import ROWS_AT_ONCE, Snapshot, consistently, positions_out
from duewheel.wheel.slots import HOUR_MS, first_slot_of_hour
from duewheel.wheel.storage.byte_layouts import MAGIC_ROLL, RECORD_BYTES, level_of
from duewheel.wheel.storage.data_directory import DataDirectory
from duewheel.wheel.storage.timer_log import Records

OTHER = "other"
TOPICS_MAX = 1_000  # counted by name in each hour


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

    def count(self, until: Sequence[int] = (), ahead: range = range(0)) -> Pending:
        """Counts the timers that are pending now. `until` has slots for `Pending.within`, `ahead`
        slots for `rolls_ahead` and `rolls_per_second`.

        Raises:
            CorruptFile: a file is damaged.
        """
        out = consistently(self._directory, self._update)
        hours = self._hours.values()
        levels = self._by_level(out)
        rows_out = len(out.kinds)
        within = [sum(hour.count_until(slot) for hour in hours) for slot in until]
        slots = [slot for hour in hours if (slot := hour.first()) is not None]
        rolls = self._rolls(ahead, out)
        return Pending(
            int(levels.sum()),
            self._by_topic(out),
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
            for _, slot, records in directory.blocks(hour, counts.log_bytes, log_bytes):
                kind = counts.topics.add(directory, records)
                counts.add(slot, kind, _is_roll(records))
            counts.log_bytes = log_bytes
            counts.drop(snapshot.delivered_slot)
            self._hours[hour] = counts
        kinds, rolls = [np.empty(0, np.int64)], 0
        positions = positions_out(directory, snapshot)
        for first in range(0, len(positions), ROWS_AT_ONCE):
            rows = positions[first : first + ROWS_AT_ONCE]
            view = directory.log.view(current, int(rows[-1]) + RECORD_BYTES)
            records = view.take(rows // RECORD_BYTES)
            kinds.append(self._hours[current].topics.kinds(records))
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
        topics: Counter[str] = Counter()
        for number, hour in self._hours.items():
            counts = hour.by_topic
            if number == out.hour:
                counts = counts - np.bincount(topics_of(out.kinds), minlength=len(counts))
            for topic in np.flatnonzero(counts).tolist():  # few in each, if hours are many
                topics[hour.topics.names[topic]] += int(counts[topic])
        return dict(topics)

    def _by_level(self, out: _Out) -> Int64:
        levels = -np.bincount(levels_of(out.kinds), minlength=LEVEL_MAX + 1)
        for hour in self._hours.values():
            levels += hour.by_level
        return levels


class _Topics:
    """Target topics of one hour, numbered from 1 in order of arrival; 0: all others. Each hour has
    its own: otherwise the names that producers invent would fill it for good.
    """

    def __init__(self, hour: int) -> None:
        self._hour = hour
        self.names = [OTHER]  # by number
        self._hashes, self._numbers = np.empty(0, np.int64), np.empty(0, np.int64)  # rising hashes

    def add(self, directory: DataDirectory, records: Records) -> Int64:
        """Numbers the new topics in these records, while there is room; returns `kinds`."""
        hashes = records["topic_hash"].astype(np.int64)
        topic = self._numbers_of(hashes)
        rows = np.flatnonzero(topic == 0)
        room = TOPICS_MAX + 1 - len(self.names)
        if len(rows) and room:
            new, first, count = np.unique(hashes[rows], return_index=True, return_counts=True)
            # Those with the most timers: by the hashes, which have a key, it would be chance.
            most = np.argsort(-count, kind="stable")[:room]
            self._add(directory, new[most], records[rows[first[most]]])
            topic[rows] = self._numbers_of(hashes[rows])
        return _kinds(records, topic)

    def kinds(self, records: Records) -> Int64:
        """Combines level and topic of records to one number."""
        return _kinds(records, self._numbers_of(records["topic_hash"].astype(np.int64)))

    def _add(self, directory: DataDirectory, hashes: Int64, records: Records) -> None:
        """Numbers these topics, each with a record."""
        numbers = np.arange(len(self.names), len(self.names) + len(hashes))
        self.names += [directory.messages.target(self._hour, record) for record in records]
        known = np.append(self._hashes, hashes)
        order = np.argsort(known)
        self._hashes, self._numbers = known[order], np.append(self._numbers, numbers)[order]

    def _numbers_of(self, hashes: Int64) -> Int64:
        """Returns the number of each topic, 0 if it has none."""
        if not len(self._hashes):
            return np.zeros(len(hashes), np.int64)
        place = np.minimum(np.searchsorted(self._hashes, hashes), len(self._hashes) - 1)
        return np.where(self._hashes[place] == hashes, self._numbers[place], 0)


class _HourCounts:
    """Counts of one hour's records. A `detailed` hour has the kinds of each slot, so that slots can
    be dropped.
    """

    def __init__(self, hour: int, precision_ms: int, *, detailed: bool) -> None:
        self.log_bytes = 0  # length of the part of the hour's log that was read
        self.topics = _Topics(hour)
        self.by_topic = np.zeros(TOPICS_MAX + 1, np.int64)  # by number
        self.by_level = np.zeros(LEVEL_MAX + 1, np.int64)
        self.detailed = detailed
        self._first = first_slot_of_hour(hour, precision_ms)
        # np.zeros: pages without counts take no memory, and hours beyond the ring may be many.
        self._per_slot = np.zeros(HOUR_MS // precision_ms + 1, np.int32)
        self.rolls = np.zeros(len(self._per_slot), np.int32)  # by slot
        # By level: the first slot with such timers, counted from the hour's first slot.
        self._first_of_level = np.full(LEVEL_MAX + 1, NONE)
        self._slot_kinds = SlotKinds()  # in a detailed hour, instead

    def add(self, slot: Int64, kind: Int64, is_roll: Bool) -> None:
        """Counts more records."""
        place = slot - self._first
        for counts, places in ((self._per_slot, place), (self.rolls, place[is_roll])):
            if len(places) >= len(counts):  # most pages have counts then, and a sort takes longer
                counts += np.bincount(places, minlength=len(counts)).astype(np.int32)
            else:
                used, more = np.unique(places, return_counts=True)
                counts[used] += more.astype(np.int32)
        topics, levels = topics_of(kind), levels_of(kind)
        self.by_topic += np.bincount(topics, minlength=len(self.by_topic))
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
        np.subtract.at(self.by_topic, topics_of(kinds), counts)
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


def _kinds(records: Records, topic: Int64) -> Int64:
    return kinds_of(level_of(records["magic"]).astype(np.int64), topic)


def _is_roll(records: Records) -> Bool:
    is_roll: Bool = (records["magic"] & MAGIC_ROLL) != 0
    return is_roll
