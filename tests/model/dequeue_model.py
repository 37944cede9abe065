"""The model's dequeue: closes slots, delivers chunks, says in Kafka how far it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from tests.model.cancels_model import Cancels
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
    """

    def __init__(
        self,
        directory: Directory,
        kafka: Kafka,
        shard: str,
        clauses: Clauses,
        outcome: Callable[[], Outcome],
        unavailable: set[int],
    ) -> None:
        self.directory = directory
        self._kafka, self._shard, self._clauses = kafka, shard, clauses
        self._outcome, self._unavailable = outcome, unavailable
        self._refused: set[int] = set()  # messages known to be poison
        self._owed: list[Leave] = []
        self._cancels: Cancels | None = None  # until nothing is missing below C

    def start(self, lineage: int) -> None:
        """Take the shard, and decide."""
        self._producer = self._kafka.init_transactions(self._shard)
        self._committed = self._kafka.progress[self._shard]
        progress = decide(self.directory, self._committed, lineage, self._clauses)
        self._first = dict(progress.partitions)
        self._started, self._cancels = progress, None
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
            cancels = self._learnt()
            c = {**close.c, **self.directory.files.marks}
            self.directory.write_close(Close(self.r, close.c, now, c))
            cancels.learn(self.r, self._known_c(c, close.c))

    def _known_c(self, c: Marks, before: Marks) -> dict[int, int]:
        return dict(c if self._clauses.tombstone_is_known_before_its_c_is_told else before)

    def _learnt(self) -> Cancels:
        """The cancels; at first those that were below C when this process started."""
        if self._cancels is None:
            self._cancels = Cancels(self.directory, self._kafka, self._clauses, self._started)
            self._cancels.learn(self.r, self._known_c(self._close.c, self._close.c_before))
        return self._cancels

    def deliver(self, now: int, count: int) -> None:
        """One chunk, one transaction; without rows the closed range counts as delivered."""
        until = self._open_until()
        if until == self.r:
            return
        if self._is_caught_up() or not self._clauses.waits_for_the_marks:
            self._learnt()
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
        if self._publish(self._progress(chunk.r, chunk.below), leaves):
            self.r, self._below, self._position = chunk.r, chunk.below or {}, chunk.position

    def beat(self, now: int) -> None:
        """Say in Kafka that the shard is served, how far it is, and what cancels are told."""
        below = self._below if self._position else None
        progress, answers = self._progress(self.r, below), []
        if self._is_caught_up():
            cancels = self._learnt()
            cancels.look()
            answers = cancels.answers(dict(progress.partitions), 1 + now % 3)
            progress = self._progress(self.r, below, answers)
        self._publish(progress, [], answers)

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
        if self._cancels is not None and self._cancels.meet(row):
            return Leave(slot, row, Fate.CANCELLED)
        if row.rolls:
            copy = replace(record, timestamp=now, origin=origin)
            return Leave(slot, row, Fate.ROLLED, copy)
        if record.poison:
            if self._clauses.committed_is_a_prefix:
                self._refused.add(record.message)
            return Leave(slot, row, Fate.DEAD)
        if record.target in self._unavailable:
            again = now + 1 + record.message % 4
            copy = replace(record, timestamp=now, origin=origin, not_before=again)
            return Leave(slot, row, Fate.PARKED, copy)
        return Leave(slot, row, Fate.DELIVERED)

    def _without_refused(self, leaves: list[Leave]) -> list[Leave]:
        """Broken on purpose: what is refused is put off, though D moves past it."""
        for leave in leaves:
            message = self._record(leave.row).message
            if leave.fate is Fate.DEAD and message not in self._refused:
                self._refused.add(message)
                self._owed.append(leave)
        return [leave for leave in leaves if leave not in self._owed]

    # progress

    def _progress(
        self, r: int, below: dict[int, int] | None, answers: list[Answer] | None = None
    ) -> Progress:
        known = self._close.c.keys() | self._first.keys()
        partitions = {}
        for number in known:
            p = self._partition(number, r, below)
            partitions[number] = self._with_marks(number, p, r, answers or [])
        return replace(self._committed, partitions=partitions)

    def _with_marks(
        self, number: int, p: PartitionProgress, r: int, answers: list[Answer]
    ) -> PartitionProgress:
        """With K and a: as they were found, while the cancels are not all there again; K also of a
        partition that the shard has not come to.
        """
        first, cancels = self._first.get(number), self._cancels
        if cancels is None and not self._clauses.tombstone_mark_waits_for_the_marks:
            cancels = Cancels(self.directory, self._kafka, self._clauses, self._started)
            cancels.learn(r, dict(self._close.c))
        if cancels is None:
            before = self._committed.partitions.get(number, p)
            return replace(p, k=before.k, a=before.a)
        answered = cancels.answered(number, answers)
        if first is not None and r < first.r:
            return replace(p, a=answered)
        return replace(p, k=cancels.mark(number, r, answered), a=answered)

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
                self._kafka.commit(self._shard, self._producer, progress, leaves, list(answers))
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
            if self._cancels is not None:
                self._cancels.committed(progress, list(answers), self.r)
        return happened
