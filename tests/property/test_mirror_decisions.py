"""`decide` gives each record of a mirror the end that a plain model gives it, record by record."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

import numpy as np
import pytest

from duewheel.ops.recovery.decisions import RecordState, decide
from duewheel.ops.recovery.evidence import NOTHING, Evidence
from duewheel.ops.recovery.mirrored_rows import UNNAMED, Kind, MirroredRows
from duewheel.schemas.arrays import Int64
from duewheel.schemas.batches import ANY_OFFSET

CANCELS = {Kind.CANCEL, Kind.RESCHEDULE}


class MirroredRecord(NamedTuple):
    """Ids, due times and offsets are few, so that records concern each other."""

    kind: Kind
    id: int  # 0: none
    due_ms: int
    content: int
    at_ms: int
    offset: int  # in the lost cluster: of a copy or a chase the first one, of a cancel the named
    by_handle: bool  # whether a cancel names it

    @property
    def key(self) -> int:
        return 1_000 + 100 * self.id + self.due_ms

    @property
    def group(self) -> int:
        return self.id or self.key

    @property
    def named(self) -> int:
        return self.offset if self.by_handle and self.kind in CANCELS else ANY_OFFSET


def some_records(random: Random) -> list[MirroredRecord]:
    """Of some kinds there are many, so that all combinations come up."""
    count = random.randint(0, 25)
    kinds = random.choices(list(Kind), [random.random() ** 2 for _ in Kind], k=count)
    few = random.randint(1, 4)
    return [
        MirroredRecord(
            kind,
            id=random.randint(0, 2),
            due_ms=random.randint(1, few),
            content=random.randint(0, 1),
            at_ms=random.randint(0, 5),
            offset=50 + random.randint(0, few),
            by_handle=random.random() < 0.5,
        )
        for kind in kinds
    ]


@dataclass
class Timer:
    row: int  # of its newest record
    due_ms: int
    content: int
    offset: int | None = None  # the first one, once a copy has named it
    pending: bool = True  # no cancel of all has passed it
    stopped: bool = False
    ended: bool = False

    def end(self) -> None:
        self.stopped = self.ended = True


class Plain:
    """Decides record by record; each looks at all timers of its group."""

    def __init__(self, records: list[MirroredRecord], left: Counter[int], gone: set[int]) -> None:
        self.records, self.left, self.gone = records, left, gone
        self.named = {each.named for each in records} - {ANY_OFFSET}
        self.settled = gone | {each.offset for each in records if each.kind == Kind.COPY}
        self.states = [RecordState.NO_TIMER] * len(records)
        self.unclear = {
            row
            for row, each in enumerate(records)
            if each.named != ANY_OFFSET and each.named not in self.settled
        }

    def run(self) -> tuple[list[RecordState], int]:
        groups: dict[int, list[int]] = {}
        for row, each in enumerate(self.records):
            groups.setdefault(each.group, []).append(row)
        for group in groups.values():
            self.timers: list[Timer] = []
            self.cancelled: set[int] = set()
            for row in group:
                self.take(row, self.records[row])
            for timer in sorted(self.timers, key=lambda each: each.stopped):
                key = self.records[timer.row].key
                end = RecordState.CANCELLED if timer.stopped else RecordState.WAITING
                self.states[timer.row] = RecordState.LEFT if self.left[key] > 0 else end
                self.left[key] -= 1
        return self.states, len(self.unclear)

    def take(self, row: int, record: MirroredRecord) -> None:
        kind = record.kind
        if kind == Kind.CHASE:
            for timer in self.timers:
                if timer.offset is not None and timer.offset < record.offset:
                    timer.end()
        elif kind == Kind.COPY:
            self.copy(row, record)
        elif kind == Kind.KEEP and any(
            not each.ended and each.due_ms > record.at_ms for each in self.timers
        ):
            self.states[row] = RecordState.KEPT_OUT
        elif kind != Kind.OTHER:
            if kind in CANCELS:
                self.cancel(row, record.named)
            if kind != Kind.CANCEL:
                self.timers.append(Timer(row, record.due_ms, record.content))

    def copy(self, row: int, record: MirroredRecord) -> None:
        alike = [
            each
            for each in self.timers
            if each.offset is None
            and (each.due_ms, each.content) == (record.due_ms, record.content)
        ]
        alike.sort(key=lambda each: each.stopped)
        timer = next((each for each in self.timers if each.offset == record.offset), None)
        timer = timer or next(iter(alike), None)
        if timer is None:
            timer = Timer(row, record.due_ms, record.content)
            self.timers.append(timer)
        else:
            self.states[timer.row] = RecordState.COPIED
        timer.row, timer.offset = row, record.offset
        if record.offset in self.cancelled:
            timer.end()
        elif record.offset in self.named:
            timer.stopped = True

    def cancel(self, row: int, named: int) -> None:
        pending = [each for each in self.timers if each.pending]
        if named == ANY_OFFSET:
            for each in pending:
                each.end()
                each.pending = False
        elif named in self.cancelled:
            self.unclear.discard(row)
        else:
            self.cancelled.add(named)
            of_copy = [each for each in self.timers if each.offset == named]
            for each in of_copy:
                each.end()
            if not of_copy and named not in self.gone:
                self.cancel_unnamed(row, named, [each for each in pending if not each.stopped])

    def cancel_unnamed(self, row: int, named: int, waiting: list[Timer]) -> None:
        present = [each for each in waiting if not self.left[self.records[each.row].key]]
        if len(present) == 1 and named not in self.settled:
            present[0].end()
            self.unclear.discard(row)
        elif present:
            blocking = [each for each in present if not each.ended] or present
            max(blocking, key=lambda each: self.records[each.row].due_ms).ended = True


def columns(records: list[MirroredRecord]) -> MirroredRows:
    def column(values: Iterable[int]) -> Int64:
        return np.fromiter(values, np.int64, len(records))

    placed = {Kind.COPY, Kind.CHASE}
    return MirroredRows(
        offset=column(range(len(records))),
        kind=column(each.kind for each in records),
        group=column(each.group for each in records),
        key=column(each.key for each in records),
        id_hash=column(each.id for each in records),
        content=column(each.content for each in records),
        record=column(range(len(records))),
        due_ms=column(each.due_ms for each in records),
        timestamp_ms=column(each.at_ms for each in records),
        first_offset=column(each.offset if each.kind in placed else UNNAMED for each in records),
        named=column(each.named for each in records),
        unclear=np.zeros(len(records), np.bool_),
    )


@pytest.mark.parametrize("seed", range(4))
def test_all_at_once_is_one_at_a_time(seed: int) -> None:
    random = Random(seed)
    for _ in range(750):
        records = some_records(random)
        left = Counter(each.key for each in records if random.random() < 0.1)
        gone = {50 + random.randint(0, 4) for _ in range(random.randint(0, 2))}
        evidence = Evidence(
            np.array(sorted(left), np.int64),
            np.array([left[key] for key in sorted(left)], np.int64),
            np.array(sorted(gone), np.int64),
        )
        states, unclear = decide(columns(records), evidence)
        expected = Plain(records, left.copy(), gone).run()
        assert ([RecordState(each) for each in states.tolist()], unclear) == expected, records


ONE_ID = MirroredRecord(Kind.TIMER, 1, 1, 0, 0, 50, by_handle=False)


@pytest.mark.parametrize(
    "kinds",
    [[kind] for kind in Kind if kind is not Kind.OTHER]
    + [[Kind.TIMER, Kind.COPY], [Kind.TIMER, Kind.KEEP], [Kind.COPY, Kind.CHASE]],
    ids=lambda kinds: "-".join(kind.name for kind in kinds),
)
@pytest.mark.parametrize("by_handle", [False, True], ids=["", "by handle"])
def test_a_record_of_a_large_id_takes_little_memory(kinds: list[Kind], by_handle: bool) -> None:
    """A producer may write ten million with one id: with 2 kB each these ended every recovery."""
    count = 4_000
    records = [
        ONE_ID._replace(
            kind=kinds[n % len(kinds)], due_ms=n // len(kinds), at_ms=10**6, offset=10**6 + n
        )
        for n in range(count)
    ]
    records[-1] = ONE_ID._replace(kind=Kind.CANCEL, offset=7, by_handle=by_handle)
    mirrored = columns(records)
    tracemalloc.start()
    try:
        decide(mirrored, NOTHING)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 300 * count
