"""Decides which timers of a mirrored partition are still to be delivered.

Cancels, replacements and `keep` are decided here, as the lost shard has decided them; they are not
written, because the new shard might deliver a timer that is due before it reads the cancel.

The records of one id, or without an id of one due time, are a group, in the order of their offsets:

    1. a group of one record, or of timers and cancels of all earlier ones, is decided by columns
       (_add_plain)
    2. any other, record by record: a copy stands for its timer, a cancel by handle stops a single
       one, and a timer with `keep` is left out while another one is pending (_Group)
    3. of the timers with one id and due time as many have left as there are receipts; the others
       wait, or are cancelled (_settle)

Any producer can write ten million records with one id, and memory must suffice for them. So there
are columns for all records; only step 2 needs Python's objects.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum, auto

import numpy as np

from duewheel.ops.recovery.evidence import Evidence
from duewheel.ops.recovery.mirrored_rows import Kind, MirroredRows
from duewheel.schemas.arrays import Bool, Int64, rank_among_equals
from duewheel.schemas.batches import ANY_OFFSET

# Pending timers of one id, among which a cancel of a single one searches. Beyond them it counts as
# unclear: the time would grow with the product of cancels and timers, both of any producer.
_CANDIDATES_MAX = 100
_NO_ROW, _NO_CONTENT = -1, -1
_ROW_BITS = 40  # more than memory has rows
_ROW_MASK = (1 << _ROW_BITS) - 1


class RecordState(IntEnum):
    """The end of a record."""

    NO_TIMER = 0
    WAITING = auto()
    LEFT = auto()  # delivered, or a dead letter
    CANCELLED = auto()
    KEPT_OUT = auto()
    COPIED = auto()  # a later copy of the timer stands for it


def decide(rows: MirroredRows, evidence: Evidence) -> tuple[Int64, int]:
    """The state of each row; and the number of cancels that name an offset, and whose timer was not
    found: it is not cancelled.
    """
    states = np.full(len(rows), int(RecordState.NO_TIMER))
    timers, sources = _Timers.none(len(rows)), _Sources.of(rows, evidence)
    unclear = set(sources.unclear)
    order = np.lexsort((rows.offset, rows.group))
    order = order[rows.kind[order] != Kind.OTHER]
    firsts = _firsts(rows.group[order])
    plain = _add_plain(rows, order, firsts, sources, timers)
    order = order[~plain]
    firsts = _firsts(rows.group[order])
    content = _copied_contents(rows, order)
    for first, end in itertools.pairwise([*firsts.tolist(), len(order)]):
        group = _Group(rows, evidence, states, timers, sources, unclear, content)
        group.decide(order[first:end])
    _settle(rows, evidence, timers, states)
    return states, len(unclear)


def _firsts(*columns: Int64) -> Int64:
    """The first row of each run of equal values; the columns have as many rows."""
    changed = np.ones(len(columns[0]), np.bool_)
    changed[1:] = np.any([c[1:] != c[:-1] for c in columns], axis=0)
    return np.flatnonzero(changed)


def _add_plain(
    rows: MirroredRows, order: Int64, firsts: Int64, sources: _Sources, timers: _Timers
) -> Bool:
    """Adds the timers of groups that have one record, or only timers and cancels of all earlier
    ones. `order` has the rows of each group, from `firsts` on; returns which of them are plain.
    """
    if not len(order):
        return np.empty(0, np.bool_)
    kind, place = rows.kind[order], np.arange(len(order))
    sizes = np.diff(np.append(firsts, len(order)))
    cancels = np.isin(kind, (Kind.CANCEL, Kind.RESCHEDULE))
    is_plain = (kind == Kind.TIMER) | cancels & (rows.named[order] == ANY_OFFSET)
    plain: Bool = np.repeat(np.logical_and.reduceat(is_plain, firsts) | (sizes == 1), sizes)
    last_cancel = np.maximum.reduceat(np.where(cancels, place, -1), firsts)
    stopped = place < np.repeat(last_cancel, sizes)
    named = np.isin(rows.first_offset[order], list(sources.named))
    stopped |= named & (kind == Kind.COPY)
    added = plain & (kind < Kind.CANCEL)
    timers.newest[order[added]] = order[added]
    timers.stopped[order[added]] = stopped[added]
    return plain


def _copied_contents(rows: MirroredRows, order: Int64) -> Int64:
    """For each row a number of its group, due time and content, if a copy has these; else
    _NO_CONTENT.
    """
    columns = rows.content[order], rows.due_ms[order], rows.group[order]
    by = np.lexsort(columns)
    firsts = _firsts(*(column[by] for column in columns))
    number = np.repeat(np.arange(len(firsts)), np.diff(np.append(firsts, len(by))))
    copied = np.bincount(number[rows.kind[order[by]] == Kind.COPY], minlength=len(firsts)) > 0
    contents = np.full(len(rows), _NO_CONTENT)
    contents[order[by]] = np.where(copied[number], number, _NO_CONTENT)
    return contents


def _settle(rows: MirroredRows, evidence: Evidence, timers: _Timers, states: Int64) -> None:
    """Of the timers with one id and due time, those that no cancel has stopped leave first."""
    timer = np.flatnonzero(timers.newest != _NO_ROW)
    key = rows.key[timers.newest[timer]]
    by = np.lexsort((rows.offset[timer], timers.stopped[timer], key))
    timer, key = timer[by], key[by]
    stopped = np.where(timers.stopped[timer], RecordState.CANCELLED, RecordState.WAITING)
    has_left = rank_among_equals(key) < evidence.left(key)
    states[timers.newest[timer]] = np.where(has_left, RecordState.LEFT, stopped)


@dataclass(frozen=True, slots=True)
class _Sources:
    """The offsets in the lost cluster that cancels name."""

    named: frozenset[int]
    left: frozenset[int]  # of these, those of timers that have left
    settled: frozenset[int]  # and those of timers that have a copy
    unclear: list[int]  # the rows that name another one

    @classmethod
    def of(cls, rows: MirroredRows, evidence: Evidence) -> _Sources:
        naming = np.isin(rows.kind, (Kind.CANCEL, Kind.RESCHEDULE, Kind.CHASE))
        at = np.flatnonzero(naming & (rows.named != ANY_OFFSET))
        named = rows.named[at]
        left = np.isin(named, evidence.sources)
        settled = left | np.isin(named, rows.first_offset[rows.kind == Kind.COPY])
        unclear = at[~settled & (rows.kind[at] != Kind.CHASE)]
        return cls(
            frozenset(named.tolist()),
            frozenset(named[left].tolist()),
            frozenset(named[settled].tolist()),
            unclear.tolist(),
        )


@dataclass(frozen=True, slots=True)
class _Timers:
    """Columns of the timers; the row of a timer's first record is its name, also in lists. Shape:
    the rows.
    """

    newest: Int64  # the row of its newest record, or _NO_ROW
    stopped: Bool  # by any cancel of the mirror, also by a later record
    ended: Bool  # by a cancel up to the record that is decided: it keeps none out

    @classmethod
    def none(cls, rows: int) -> _Timers:
        """Of so many rows without a timer."""
        return cls(np.full(rows, _NO_ROW), np.zeros(rows, np.bool_), np.zeros(rows, np.bool_))

    def end(self, timers: Sequence[int]) -> None:
        """Ends them by a cancel."""
        self.stopped[timers] = self.ended[timers] = True


@dataclass(slots=True)
class _Alike:
    """Timers with one content, in their order. Those that are stopped are set aside once, when they
    are next: any producer can write as many of them as copies.
    """

    timers: list[int] = field(default_factory=list)
    next: int = 0  # of the timers; those before it are taken out, or set aside:
    aside: int = 0  # their number, at the beginning of the list
    aside_taken: int = 0  # of these, the first ones, which are taken out

    def pop(self, stopped: Bool) -> int | None:
        """Takes out the first one that no cancel has stopped, or the first one."""
        while self.next < len(self.timers):
            timer = self.timers[self.next]
            self.next += 1
            if not stopped[timer]:
                return timer
            self.timers[self.aside] = timer
            self.aside += 1
        if self.aside_taken == self.aside:
            return None
        self.aside_taken += 1
        return self.timers[self.aside_taken - 1]


@dataclass(slots=True)
class _Group:
    """The records of one id, or of one due time without an id, in their order."""

    rows: MirroredRows
    evidence: Evidence
    states: Int64
    timers: _Timers
    sources: _Sources
    unclear: set[int]  # rows that are not found yet
    content: Int64  # of each row, if a copy has it
    kinds: frozenset[int] = frozenset()
    pending: list[int] = field(default_factory=list)
    # A heap, the latest due first: of timers that may keep others out, those without a cancel. Of
    # each one number: the negated due time, then the timer.
    latest: list[int] = field(default_factory=list)
    cancelled: set[int] = field(default_factory=set)  # offsets that earlier cancels name
    # By their first offset; where that is not known, by content.
    by_offset: dict[int, int] = field(default_factory=dict)
    # The first offsets that no chase has passed, a heap: any producer can write as many chases as
    # timers, and to look at all timers for each would take hours.
    not_chased: list[int] = field(default_factory=list)
    unnamed: dict[int, _Alike] = field(default_factory=dict)

    def decide(self, order: Int64) -> None:
        kinds = self.rows.kind[order].tolist()
        self.kinds = frozenset(kinds)
        for row, kind in zip(order.tolist(), kinds, strict=True):
            if kind == Kind.CHASE:
                self._chase(int(self.rows.first_offset[row]))
            elif kind == Kind.COPY:
                self._copy(row)
            elif kind == Kind.KEEP and self._busy(int(self.rows.timestamp_ms[row])):
                self.states[row] = RecordState.KEPT_OUT
            else:
                if kind in (Kind.CANCEL, Kind.RESCHEDULE):
                    self._cancel(row)
                if kind != Kind.CANCEL:
                    self._add(row)
                    content = int(self.content[row])
                    if content != _NO_CONTENT:
                        self.unnamed.setdefault(content, _Alike()).timers.append(row)

    def _add(self, row: int) -> None:
        self.timers.newest[row] = row
        self.pending.append(row)
        if Kind.KEEP in self.kinds:
            heapq.heappush(self.latest, (-int(self.rows.due_ms[row]) << _ROW_BITS) + row)

    def _busy(self, at_ms: int) -> bool:
        """Whether a timer is pending at that time."""
        while self.latest and self.timers.ended[self.latest[0] & _ROW_MASK]:
            heapq.heappop(self.latest)
        return bool(self.latest) and -(self.latest[0] >> _ROW_BITS) > at_ms

    def _copy(self, row: int) -> None:
        """A copy continues its timer: also a cancelled one, if it was written in that moment."""
        first_offset = int(self.rows.first_offset[row])
        timer = self.by_offset.get(first_offset)
        if timer is None and (alike := self.unnamed.get(int(self.content[row]))):
            timer = alike.pop(self.timers.stopped)
        if timer is None:
            self._add(row)
            self._name(row, first_offset)
            return
        self.states[self.timers.newest[timer]] = RecordState.COPIED
        self.timers.newest[timer] = row
        self._name(timer, first_offset)

    def _chase(self, below: int) -> None:
        while self.not_chased and self.not_chased[0] < below:
            self.timers.end([self.by_offset[heapq.heappop(self.not_chased)]])

    def _name(self, timer: int, first_offset: int) -> None:
        if Kind.CHASE in self.kinds and first_offset not in self.by_offset:
            heapq.heappush(self.not_chased, first_offset)
        self.by_offset[first_offset] = timer
        if first_offset in self.cancelled:
            self.timers.end([timer])
        elif first_offset in self.sources.named:
            self.timers.stopped[timer] = True

    def _cancel(self, row: int) -> None:
        named = int(self.rows.named[row])
        if named == ANY_OFFSET:
            self.timers.end(self.pending)
            self.pending = []
            return
        if named in self.cancelled:  # repeated: another timer of the id is none of its concern
            self.unclear.discard(row)
            return
        self.cancelled.add(named)
        if named in self.by_offset:
            self.timers.end([self.by_offset[named]])
        elif len(self.pending) <= _CANDIDATES_MAX and named not in self.sources.left:
            self._cancel_unnamed(row)

    def _cancel_unnamed(self, row: int) -> None:
        waiting = [t for t in self.pending if not self.timers.stopped[t]]
        left = self.evidence.left(self.rows.key[self.timers.newest[waiting]]).tolist()
        present = [t for t, has_left in zip(waiting, left, strict=True) if not has_left]
        if len(present) == 1 and int(self.rows.named[row]) not in self.sources.settled:
            self.timers.end(present)
            self.unclear.discard(row)
        elif present:
            # Any of them. None is cancelled, and the one that would keep others out for longest
            # keeps none out: a second message is better than a lost one.
            blocking = [t for t in present if not self.timers.ended[t]] or present
            due_ms = self.rows.due_ms[self.timers.newest[blocking]]
            self.timers.ended[blocking[int(due_ms.argmax())]] = True
