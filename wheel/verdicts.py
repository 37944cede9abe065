"""What a round of lookups tells of the cancels that it was made for.

Cancels and timers are grouped by partition and id, and sorted by offset within each group. What a
cancel meets lies before it there, so a running maximum tells all that is asked of it: work grows
with the number of both, not with their product.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from duewheel.schemas.columns import Column, concat
from duewheel.schemas.header_names import Answer
from duewheel.schemas.timers import Bool, Int32, Int64
from duewheel.wheel.answers import WORDS
from duewheel.wheel.tombstones import NO_WORD, NOTHING, Tombstones, groups, keys

_CANCELLED, _ALREADY_DELIVERED, _UNKNOWN = (
    WORDS.index(word) for word in (Answer.CANCELLED, Answer.ALREADY_DELIVERED, Answer.UNKNOWN)
)


@dataclass(frozen=True, slots=True)
class Rows:
    """Timers in the log that cancels may meet.

    Attributes:
        partition: index in the same list as that of the cancels.
        origin: offset of the first copy.
        id_hash, timer_id: of each.
        slot: in which it lies.
        was_out: it had left before this process started.
        ends: if it has left, then not to be written again; and known is whether it was left out.
    """

    partition: Int32
    origin: Int64
    id_hash: Int64
    timer_id: Column
    slot: Int64
    was_out: Bool
    ends: Bool

    def __len__(self) -> int:
        return len(self.origin)


def verdicts(
    asked: Tombstones, settled: Bool, rows: Rows, others: Tombstones, in_doubt: Int64
) -> tuple[Int32, Int64, Int64]:
    """`word`, `first` and `last` of the cancels that a round was made for.

    Args:
        asked: those cancels.
        settled: which of them had all that they can ever meet in the log: others are told nothing
            but that something pending is cancelled.
        rows: what the round has found.
        others: every cancel that may have left any of the rows out, those asked for included.
        in_doubt: hashes in records that have left and cannot be read, or in cancels that are cut
            off.
    """
    cancel, row, other = _grouped(asked, rows, others)
    word = asked.word.copy()
    last = _greatest_below(row, rows.origin, rows.slot, cancel, asked.offset)
    # What had left before a cancel was known it has not left out.
    later = np.flatnonzero(rows.slot > asked.after.min())
    first = -_greatest_below(
        row[later], rows.origin[later], -rows.slot[later], cancel, asked.offset
    )
    there = np.flatnonzero(~rows.was_out)
    pending = _greatest_below(
        row[there], rows.origin[there], rows.slot[there], cancel, asked.offset
    )
    word[pending > asked.after] = _CANCELLED
    open_ = settled & (word == NO_WORD)
    if open_.any():
        delivered = _delivered(row, rows, other, others)
        ones = np.ones(len(delivered), np.int64)
        met = _greatest_below(
            row[delivered], rows.origin[delivered], ones, cancel[open_], asked.offset[open_]
        )
        # What is damaged may be a copy that another cancel has left out.
        is_known = (met == 1) & ~np.isin(asked.id_hash[open_], in_doubt)
        word[open_] = np.where(is_known, _ALREADY_DELIVERED, _UNKNOWN)
    return word, first, last


def _grouped(asked: Tombstones, rows: Rows, others: Tombstones) -> tuple[Int64, Int64, Int64]:
    """The group of each."""
    sides = (asked, rows, others)
    key = np.concatenate([keys(side.partition, side.id_hash) for side in sides])
    group = groups(key, concat([side.timer_id for side in sides]))
    first, second = len(asked), len(asked) + len(rows)
    return group[:first], group[first:second], group[second:]


def _delivered(row: Int64, rows: Rows, other: Int64, others: Tombstones) -> Int64:
    """Rows that have left to be delivered, if their slot has left."""
    # The earliest of the cancels behind it: the greatest below, with all signs turned.
    earliest = -_greatest_below(other, -others.offset, -others.after, row, -rows.origin)
    left_out = rows.slot > earliest
    # All copies of a timer are one: if one of them was left out, none was delivered.
    _, origin = np.unique(rows.origin, return_inverse=True)
    _, of_group = np.unique(row, return_inverse=True)
    timer = of_group * max(len(rows), 1) + origin
    return np.flatnonzero(rows.ends & ~np.isin(timer, timer[left_out]))


def _greatest_below(
    group: Int64, at: Int64, value: Int64, asked_group: Int64, asked_at: Int64
) -> Int64:
    """For each that is asked for the greatest value of its group at a lower place, or NOTHING."""
    levels, level = np.unique(value, return_inverse=True)
    joint = np.append(asked_group, group)
    count, is_value = len(asked_group), np.arange(len(joint)) >= len(asked_group)
    # At one place what is asked for comes first: only what lies below it counts.
    order = np.lexsort((is_value, np.append(asked_at, at), joint))
    _, place = np.unique(joint, return_inverse=True)
    # Each group's numbers lie above those of the groups before it: one running maximum does all.
    base = place * (len(levels) + 1)
    number = base + np.append(np.zeros(count, np.int64), level + 1)
    running = np.empty(len(joint), np.int64)
    running[order] = np.maximum.accumulate(number[order])
    found: Int64 = np.append(np.int64(NOTHING), levels)[(running - base)[:count]]
    return found
