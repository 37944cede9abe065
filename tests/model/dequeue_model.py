"""The model's dequeue: closes slots, delivers chunks, commits the progress in Kafka."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from tests.model.answering_model import answered_until, forget_answered, next_answers
from tests.model.clauses import Clauses
from tests.model.files_model import Close, Directory, Marks
from tests.model.kafka_model import (
    Answer,
    Fate,
    Fenced,
    Kafka,
    Leave,
    PartitionProgress,
    Progress,
    Record,
    Row,
)
from tests.model.recovery_model import decide
from tests.model.upkeep_model import collect, cut, pending_from


class Stopped(Exception):
    """Dequeue ends: killed, or the shard is another's."""


class Outcome(Enum):
    """What becomes of a transaction, and of the process that commits it."""

    COMMITTED = 1
    LOST = 2  # the transaction is aborted, and the process knows
    DIES_BEFORE = 3
    DIES_AFTER = 4
    DOUBT_COMMITTED = 5
    DOUBT_LOST = 6


@dataclass(slots=True)
class Chunk:
    """Rows of closed slots, and where delivery stands after them.

    Attributes:
        r: last slot that is delivered in full then.
        below: D of slot r + 1, if that is half delivered.
        position: how many of its rows have left then.
    """

    rows: list[tuple[int, Row]]
    r: int
    below: dict[int, int] | None = None
    position: int = 0


class Dequeue:
    """The process that closes slots and delivers.

    Args:
        outcome: drawn anew for each transaction.
        unavailable: targets without a leader at the moment.
        answers: the most that a transaction has for cancels, drawn anew.
    """

    def __init__(
        self,
        directory: Directory,
        kafka: Kafka,
        shard: str,
        clauses: Clauses,
        outcome: Callable[[], Outcome],
        unavailable: set[int],
        answers: Callable[[], int],
    ) -> None:
        self.directory = directory
        self._kafka, self._shard, self._clauses = kafka, shard, clauses
        self._outcome, self._unavailable, self._answers = outcome, unavailable, answers
        self._refused: set[int] = set()  # messages known to be poison
        self._owed: list[Leave] = []
        self._successors: list[Leave] = []  # broken on purpose: of firings that have left
        self._answered: dict[int, int] = {}  # by this process; `a` of the progress has all

    def start(self, incarnation: int) -> None:
        """Take the shard, and decide."""
        directory = self.directory
        self._producer = self._kafka.init_transactions(self._shard)
        self._committed = self._kafka.progress[self._shard]
        generation = directory.generation
        is_newer = (
            self._clauses.blind_is_raised_where_progress_is_newer_than_its_mirror
            and directory.mirror != self._committed
        )
        progress = decide(directory, self._committed, incarnation, self._clauses)
        if directory.standby or directory.generation != generation or is_newer:
            if self._clauses.blind_is_raised_at_a_start:
                directory.blind = {}
            if self._clauses.since_is_raised_at_a_start:
                directory.since = progress.r
        self._first = dict(progress.partitions)
        self.r = progress.r
        self._below: dict[int, int] = {}
        self._position = 0
        self._decision: Progress | None = progress

    @property
    def is_published(self) -> bool:
        return self._decision is None

    def is_ready(self) -> bool:
        """Publish the decision; nothing is closed or delivered before that is certain."""
        if self._decision is not None and self._publish(self._decision, []):
            self._decision = None
            self.directory.standby = False
        return self._decision is None

    @property
    def _close(self) -> Close:
        assert self.directory.close is not None
        return self.directory.close

    def _behind(self) -> list[int]:
        """Partitions of which rows below C are still to be read."""
        marks = self.directory.files.marks
        behind = [p for p, c in self._close.c.items() if marks.get(p, 0) < c]
        return behind if self._clauses.waits_for_the_marks else []

    def _waits_for_the_files(self) -> bool:
        return self.directory.is_pending and self._clauses.waits_for_the_files

    def _open_until(self) -> int:
        """The last slot that may leave: up to there all rows are where they belong."""
        waits = self._waits_for_the_files() or self._behind()
        return self.r if waits else self._close.floor

    def _is_caught_up(self) -> bool:
        return not self._waits_for_the_files() and not self._behind()

    def close_slots(self, now: int) -> None:
        close = self._close
        idle = self.r == close.floor or not self._clauses.closes_when_all_is_delivered
        if now > close.floor and idle and self._is_caught_up():
            self.directory.lock(self._clauses)
            c = {**close.c, **self.directory.files.marks}
            self.directory.write_close(Close(self.r, close.c, now, c))

    def deliver(self, now: int, count: int) -> None:
        """One chunk, one transaction; without rows the closed range counts as delivered."""
        until = self._open_until()
        if until == self.r:
            return
        self.directory.lock(self._clauses)
        chunk = self._next(count, until)
        if not chunk.rows:
            if chunk.r != self.r:
                self.r, self._below, self._position = chunk.r, {}, 0
            return
        leaves = [self._leave(slot, row, now) for slot, row in chunk.rows]
        if self._owed:
            leaves, self._owed = self._owed + leaves, []
        if not self._clauses.committed_is_a_prefix:
            leaves = self._without_refused(leaves)
        if not self._clauses.successor_goes_with_its_firing:
            late, leaves = self._successors, self._without_successors(leaves)
            leaves = late + leaves
        if self._tell(chunk.r, chunk.below, leaves, now):
            self.r, self._below, self._position = chunk.r, chunk.below or {}, chunk.position

    def beat(self, now: int) -> None:
        """Say in Kafka that the shard is served, and how far it is; answer cancels."""
        self._tell(self.r, self._below if self._position else None, [], now)

    def _tell(self, r: int, below: dict[int, int] | None, leaves: list[Leave], now: int) -> bool:
        """A transaction with as many answers as it takes."""
        directory, clauses, a = self.directory, self._clauses, self._answered
        progress, answers = self._progress(r, below, a), []
        known = {p: self._answered_until(p) for p in progress.partitions}
        if self._is_caught_up():
            directory.lock(clauses)
            answers = next_answers(directory, progress, known, self._answers(), now, clauses)
        if self._is_caught_up() or not clauses.a_waits_for_the_marks:
            a = answered_until(directory, progress, known, answers)
        if clauses.a_goes_with_the_answer:
            progress = self._progress(r, below, a)
        if not self._publish(progress, leaves, answers):
            return False
        self._answered = a
        return True

    def _answered_until(self, partition: int) -> int:
        part = self._committed.partitions.get(partition)
        if not self._clauses.cancel_is_answered_once:
            part = None
        return max(part.a if part else 0, self._answered.get(partition, 0))

    def reconfigure(self, window: int, partitions: list[int]) -> None:
        """Another window, for offsets that no one has judged yet."""
        progress, marks = self._committed, self.directory.files.marks
        windows = {}
        for p in partitions:
            first = marks.get(p, 0)
            if self._clauses.epoch_begins_above_c:
                known = progress.partitions.get(p)
                first = max(first, self._close.c.get(p, 0), known.closed_c if known else 0)
            old = [epoch for epoch in progress.windows_of(p) if epoch[0] < first]
            windows[p] = (*old, (first if old else 0, window))
        self._publish(replace(progress, windows=windows, window=window), [])

    def collect(self) -> None:
        """Give up the hours that are over."""
        if self._is_caught_up():
            collect(self.directory, self._committed, self._clauses)

    def is_loss_acceptable(self, partition: int, end: int) -> bool:
        """Whether what lies at or behind `end` may go: nothing of it, or cancelled from there, is
        pending.
        """
        between = self._is_caught_up() and not self._position
        halves = any(p.c1 is not None for p in self._committed.partitions.values())
        if not between or halves:
            return False
        self.directory.lock(self._clauses)
        return not pending_from(self.directory, self.r, partition, end, self._clauses)

    def accept_loss(self, partition: int, end: int, assignment_epoch: int) -> None:
        """Go on without what lay at or behind `end`; it is gone from Kafka."""
        cut(self.directory, partition, end)
        if self._clauses.cut_counts_as_a_start:
            self.directory.since = max(self.directory.since, self.r)
            self.directory.blind = {}
        partitions = dict(self._committed.partitions)
        known = partitions.get(partition)
        if known is not None:
            a = min(known.a, end) if self._clauses.cut_lowers_a else known.a
            partitions[partition] = replace(known, c=min(known.c, end), a=a)
        self._answered.pop(partition, None)
        self._publish(
            replace(self._committed, partitions=partitions, assignment_epoch=assignment_epoch), []
        )

    def learn_end(self, partition: int) -> None:
        """Kafka has said how long a partition is. The producer of before is fenced: copies that it
        has written lie below, but for those that are held.
        """
        waits = self._clauses.blind_waits_for_held_copies
        if partition not in self._kafka.closed and not (
            waits and self._kafka.holds(self._shard, partition)
        ):
            self.directory.blind.setdefault(partition, self._kafka.ends()[partition])

    # what leaves

    def _next(self, count: int, until: int) -> Chunk:
        chunk = Chunk([], self.r)
        for slot, rows in self._closed_rows(until):
            again = slot == self.r + 1
            below = dict(self._below) if again else {}
            for position in range(self._position if again else 0, len(rows)):
                row = rows[position]
                if len(chunk.rows) == count or (chunk.rows and self._is_news(row)):
                    if below:
                        chunk.below, chunk.position = below, position
                    chunk.r = slot - 1
                    return chunk
                below[row.partition] = max(below.get(row.partition, 0), row.offset + 1)
                if not self._has_left(slot, row):
                    chunk.rows.append((slot, row))
            if chunk.rows:
                chunk.r = slot
        if not chunk.rows:
            chunk.r = until
        return chunk

    def _closed_rows(self, until: int) -> Iterator[tuple[int, tuple[Row, ...]]]:
        wheel = self.directory.files.wheel
        for slot in sorted(s for s in wheel if self.r < s <= until):
            yield slot, wheel[slot]

    def _has_left(self, slot: int, row: Row) -> bool:
        """Whether a predecessor delivered it from the slot that was half delivered."""
        p = self._first.get(row.partition)
        if p is None or p.c1 is None or not self._clauses.half_slot_goes_on_at_d:
            return False
        return slot == p.r + 1 and row.offset < p.d

    def _record(self, row: Row) -> Record:
        record = self._kafka.topic[row.partition][row.offset]
        assert record is not None
        return record

    def _is_news(self, row: Row) -> bool:
        """Poison not met before: a transaction with it fails, so the rows before it go first."""
        record = self._record(row)
        wanted = self._clauses.committed_is_a_prefix
        return wanted and record.poison and record.message not in self._refused

    def _leave(self, slot: int, row: Row, now: int) -> Leave:
        record = self._record(row)
        origin = row.offset if record.origin is None else record.origin
        if self._is_cancelled(row, record):
            return Leave(slot, row, Fate.CANCELLED)
        if record.is_seed and self._clauses.seed_fires_nothing:
            return Leave(slot, row, Fate.SEEDED, _next(record, origin, now))
        if row.rolls:
            copy = replace(record, timestamp=now, origin=origin)
            return Leave(slot, row, Fate.ROLLED, copy)
        return self._fire(slot, row, record, origin, now)

    def _fire(self, slot: int, row: Row, record: Record, origin: int, now: int) -> Leave:
        successor = None
        if record.every and not record.is_last_firing:
            successor = _next(record, origin, now)
        if record.poison:
            if self._clauses.committed_is_a_prefix:
                self._refused.add(record.message)
            return Leave(slot, row, Fate.DEAD)
        if record.target in self._unavailable:
            again = now + 1 + record.message % 4
            copy = replace(record, timestamp=now, origin=origin, not_before=again)
            if record.every and self._clauses.successor_does_not_wait_for_the_target:
                copy = _apart(copy)
                return Leave(slot, row, Fate.PARKED, copy, successor)
            return Leave(slot, row, Fate.PARKED, copy)
        return Leave(slot, row, Fate.DELIVERED, successor=successor)

    def _is_cancelled(self, row: Row, record: Record) -> bool:
        if (row.partition, row.offset) not in self.directory.files.flags:
            return False
        if row.rolls:
            return self._clauses.flagged_rows_are_not_rolled
        if record.target in self._unavailable:
            return self._clauses.flagged_rows_are_not_parked
        return self._clauses.flagged_rows_are_not_delivered

    def _without_successors(self, leaves: list[Leave]) -> list[Leave]:
        """Broken on purpose: the next transaction has the successors."""
        self._successors = [
            Leave(x.slot, x.row, Fate.SUCCEEDED, x.successor) for x in leaves if x.successor
        ]
        return [replace(x, successor=None) for x in leaves]

    def _without_refused(self, leaves: list[Leave]) -> list[Leave]:
        """Broken on purpose: what is refused is put off, though D moves past it."""
        for leave in leaves:
            message = self._record(leave.row).message
            if leave.fate is Fate.DEAD and message not in self._refused:
                self._refused.add(message)
                self._owed.append(leave)
        return [leave for leave in leaves if leave not in self._owed]

    # progress

    def _progress(self, r: int, below: dict[int, int] | None, a: Marks) -> Progress:
        partitions = {}
        for number in self._close.c.keys() | self._first.keys():
            p = self._partition(number, r, below)
            known = self._committed.partitions.get(number)
            partitions[number] = replace(p, a=max(known.a if known else 0, a.get(number, 0)))
        return replace(self._committed, partitions=partitions)

    def _partition(self, number: int, r: int, below: dict[int, int] | None) -> PartitionProgress:
        close, first = self._close, self._first.get(number)
        if first is not None and r <= first.r and self._clauses.moved_partition_keeps_its_progress:
            if r < first.r or below is None:
                return first
            d = max(below.get(number, 0), first.d)
            return PartitionProgress(r, first.c, close.c.get(number, 0), d)
        before = r == close.lower and self._clauses.lower_end_keeps_its_own_c
        c = (close.c_before if before else close.c).get(number, 0)
        if below is None:
            return PartitionProgress(r, c)
        return PartitionProgress(r, c, close.c.get(number, 0), below.get(number, 0))

    def _publish(
        self, progress: Progress, leaves: list[Leave], answers: Sequence[Answer] = ()
    ) -> bool:
        """Returns whether it has happened; raises Stopped if this process is at its end."""
        outcome = self._outcome()
        if outcome is Outcome.DIES_BEFORE:
            raise Stopped
        if outcome is Outcome.LOST:
            return self._settle(progress, answers, happened=False)
        try:
            if outcome is not Outcome.DOUBT_LOST:
                self._kafka.commit(
                    self._shard,
                    self._producer,
                    progress,
                    leaves,
                    list(answers),
                    self._clauses,
                )
        except Fenced:
            outcome = Outcome.DOUBT_LOST
        if outcome is Outcome.DIES_AFTER:
            raise Stopped
        if outcome in {Outcome.DOUBT_COMMITTED, Outcome.DOUBT_LOST}:
            self._producer = self._kafka.init_transactions(self._shard)
            found = self._kafka.progress[self._shard]
            ours = found in (progress, self._committed)
            if not ours and self._clauses.asks_whose_shard_it_is:
                raise Stopped
            return self._settle(progress, answers, happened=found == progress)
        return self._settle(progress, answers, happened=True)

    def _settle(self, progress: Progress, answers: Sequence[Answer], *, happened: bool) -> bool:
        if happened:
            self._committed = self.directory.mirror = progress
            forget_answered(self.directory, progress, self._clauses)
        return happened


def _next(record: Record, origin: int, now: int) -> Record:
    """The copy of the next firing of a recurring timer."""
    left = record.firings if record.is_seed else record.firings - 1
    due = max(record.due + record.every, now)
    return replace(record, timestamp=now, due=due, origin=origin, not_before=0, firings=left)


def _apart(firing: Record) -> Record:
    """A firing that is parked: a timer of its own, with an id of its own."""
    name = -(firing.message * 1000 + firing.firings)
    return replace(firing, id=name, message=name, every=0, firings=0)
