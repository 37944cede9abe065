"""Decides which timers of a mirrored partition are still to be delivered.

Cancels, replacements and `keep` are decided here, as the lost shard has decided them; they are not
written, because the new shard might deliver a timer that is due before it reads the cancel.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum, auto

import numpy as np

from duewheel.ops.recovery.evidence import Evidence
from duewheel.ops.recovery.mirrored_rows import UNNAMED, Kind, MirroredRows
from duewheel.schemas.arrays import Int64
from duewheel.schemas.batches import ANY_OFFSET

# Pending timers of one id, among which a cancel of a single one searches. Beyond them it counts as
# unclear: the time would grow with the product of cancels and timers, both of any producer.
_CANDIDATES_MAX = 100


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
    order = np.lexsort((rows.offset, rows.group))
    order = order[rows.kind[order] != Kind.OTHER]
    sources = _Sources.of(rows, evidence)
    unclear = set(sources.unclear)
    group = rows.group[order]
    firsts = np.flatnonzero(np.append(True, group[1:] != group[:-1])[: len(group)])
    sizes = np.diff(np.append(firsts, len(group)))
    alone = order[firsts[sizes == 1]]
    alone = alone[rows.kind[alone] < Kind.CANCEL]
    left = evidence.left(rows.key[alone]) > 0
    stopped = np.isin(rows.first_offset[alone], list(sources.named))
    stopped &= rows.kind[alone] == Kind.COPY
    states[alone] = np.where(
        left, RecordState.LEFT, np.where(stopped, RecordState.CANCELLED, RecordState.WAITING)
    )
    for first, size in zip(firsts[sizes > 1].tolist(), sizes[sizes > 1].tolist(), strict=True):
        group_of = _Group(rows, evidence, states, sources, unclear)
        group_of.decide(order[first : first + size].tolist())
    return states, len(unclear)


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


@dataclass(slots=True)
class _Timer:
    row: int  # of its newest record
    first_offset: int  # of its first copy, in the lost cluster, or UNNAMED
    stopped: RecordState | None = None  # by any cancel of the mirror, also by a later record
    ended: bool = False  # by a cancel up to the record that is decided: it keeps none out


@dataclass(slots=True)
class _Alike:
    """Timers with one content, in their order. Those that are stopped are set aside once, when they
    come to the front: any producer can write as many of them as copies.
    """

    timers: deque[_Timer] = field(default_factory=deque)
    stopped: deque[_Timer] = field(default_factory=deque)

    def pop(self) -> _Timer | None:
        """Takes out the first one that no cancel has stopped, or the first one."""
        while self.timers and self.timers[0].stopped is not None:
            self.stopped.append(self.timers.popleft())
        if self.timers:
            return self.timers.popleft()
        return self.stopped.popleft() if self.stopped else None


@dataclass(slots=True)
class _Group:
    """The records of one id, or of one due time without an id, in their order."""

    rows: MirroredRows
    evidence: Evidence
    states: Int64
    sources: _Sources
    unclear: set[int]  # rows that are not found yet
    timers: list[_Timer] = field(default_factory=list)
    pending: list[_Timer] = field(default_factory=list)
    # A heap, the latest due first: of timers that may keep others out, those without a cancel.
    latest: list[tuple[int, int, _Timer]] = field(default_factory=list)
    cancelled: set[int] = field(default_factory=set)  # offsets that earlier cancels name
    # By their first offset; where that is not known, by due time and content.
    by_offset: dict[int, _Timer] = field(default_factory=dict)
    # The first offsets that no chase has passed, a heap: any producer can write as many chases as
    # timers, and to look at all timers for each would take hours.
    not_chased: list[int] = field(default_factory=list)
    unnamed: defaultdict[tuple[int, int], _Alike] = field(
        default_factory=lambda: defaultdict(_Alike)
    )

    def decide(self, order: list[int]) -> None:
        for row in order:
            kind = self.rows.kind[row]
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
                    self._add(row, UNNAMED)
        self._finish()

    def _add(self, row: int, first_offset: int) -> None:
        timer = _Timer(row, first_offset)
        self.timers.append(timer)
        self.pending.append(timer)
        heapq.heappush(self.latest, (-int(self.rows.due_ms[row]), row, timer))
        if first_offset == UNNAMED:
            self.unnamed[self._content(row)].timers.append(timer)
        else:
            self._name(timer, first_offset)

    def _busy(self, at_ms: int) -> bool:
        """Returns whether a timer is pending at that time."""
        while self.latest and self.latest[0][-1].ended:
            heapq.heappop(self.latest)
        return bool(self.latest) and -self.latest[0][0] > at_ms

    def _copy(self, row: int) -> None:
        """A copy continues its timer: also a cancelled one, if it was written in that moment."""
        first_offset = int(self.rows.first_offset[row])
        timer = self.by_offset.get(first_offset) or self.unnamed[self._content(row)].pop()
        if timer is None:
            self._add(row, first_offset)
            return
        self.states[timer.row] = RecordState.COPIED
        timer.row = row
        self._name(timer, first_offset)

    def _chase(self, below: int) -> None:
        while self.not_chased and self.not_chased[0] < below:
            self._end([self.by_offset[heapq.heappop(self.not_chased)]])

    def _name(self, timer: _Timer, first_offset: int) -> None:
        timer.first_offset = first_offset
        if first_offset != UNNAMED and first_offset not in self.by_offset:
            heapq.heappush(self.not_chased, first_offset)
        self.by_offset[first_offset] = timer
        if first_offset in self.cancelled:
            self._end([timer])
        elif first_offset in self.sources.named:
            timer.stopped = RecordState.CANCELLED

    def _cancel(self, row: int) -> None:
        named = int(self.rows.named[row])
        if named == ANY_OFFSET:
            self._end(self.pending)
            self.pending = []
            return
        if named in self.cancelled:  # repeated: another timer of the id is none of its concern
            self.unclear.discard(row)
            return
        self.cancelled.add(named)
        if named in self.by_offset:
            self._end([self.by_offset[named]])
        elif len(self.pending) <= _CANDIDATES_MAX and named not in self.sources.left:
            self._cancel_unnamed(row)

    def _cancel_unnamed(self, row: int) -> None:
        waiting = [t for t in self.pending if t.stopped is None]
        left = self.evidence.left(self.rows.key[[t.row for t in waiting]]).tolist()
        present = [t for t, has_left in zip(waiting, left, strict=True) if not has_left]
        if len(present) == 1 and int(self.rows.named[row]) not in self.sources.settled:
            self._end(present)
            self.unclear.discard(row)
        elif present:
            # Any of them. None is cancelled, and the one that would keep others out for longest
            # keeps none out: a second message is better than a lost one.
            blocking = [t for t in present if not t.ended] or present
            max(blocking, key=lambda t: int(self.rows.due_ms[t.row])).ended = True

    def _end(self, timers: Iterable[_Timer]) -> None:
        for timer in timers:
            timer.stopped, timer.ended = RecordState.CANCELLED, True

    def _finish(self) -> None:
        """Of the timers with one due time, those that no cancel has stopped leave first."""
        keys = self.rows.key[[t.row for t in self.timers]]
        left = dict(zip(keys.tolist(), self.evidence.left(keys).tolist(), strict=True))
        by_stop = sorted(self.timers, key=lambda t: t.stopped is not None)
        for timer in by_stop:
            key = int(self.rows.key[timer.row])
            has_left = left[key] > 0
            left[key] -= has_left
            self.states[timer.row] = (
                RecordState.LEFT if has_left else timer.stopped or RecordState.WAITING
            )

    def _content(self, row: int) -> tuple[int, int]:
        return int(self.rows.due_ms[row]), int(self.rows.content[row])
