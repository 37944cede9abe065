"""The model's Kafka: timer topic, progress records, fencing. A transaction is one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from tests.model.clauses import Clauses

BEFORE_ALL = -(1 << 40)  # a slot that lies before every other one
EVERY_OFFSET = 1 << 40


class Kind(Enum):
    TIMER = 1
    CANCEL = 2
    RESCHEDULE = 3


@dataclass(frozen=True, slots=True)
class Record:
    """A record of the timer topic; `message` is its number for the judge.

    A RESCHEDULE is a cancel and a timer in one record; its copies are timers only. A CANCEL with an
    origin is a *chase*: dequeue has written the cancel again, because it could not be decided yet.

    Attributes:
        origin: offset of the first copy; None in the first copy.
        not_before: of a parked copy: it must not leave earlier.
        g: of a chase: R of the transaction that has written it.
        found: of a chase: the cancel has flagged a row.
        every: of a recurring timer: from one firing to the next. A user's record of one is a
            *seed*, which is due at once and fires nothing.
        firings: how many are left, that of this record included.
    """

    kind: Kind
    id: int
    message: int
    timestamp: int
    due: int
    target: int = 0
    poison: bool = False
    origin: int | None = None
    not_before: int = 0
    g: int = BEFORE_ALL
    found: bool = False
    every: int = 0
    firings: int = 0

    @property
    def is_timer(self) -> bool:
        return self.kind is not Kind.CANCEL

    @property
    def is_request(self) -> bool:
        """Whether it is a cancel, or a reschedule, as a user wrote it."""
        return self.kind is not Kind.TIMER and self.origin is None

    @property
    def cancels(self) -> bool:
        """Whether it is a request or a chase."""
        return self.kind is Kind.CANCEL or self.is_request

    @property
    def is_seed(self) -> bool:
        return self.every > 0 and self.origin is None

    @property
    def is_last_firing(self) -> bool:
        return self.every > 0 and not self.is_seed and self.firings == 1

    def first_offset(self, offset: int) -> int:
        """Where its first copy lies, if this one lies at `offset`."""
        return offset if self.origin is None else self.origin


Windows = tuple[tuple[int, int], ...]  # (first offset, roll window from there on), rising


@dataclass(frozen=True, slots=True)
class PartitionProgress:
    """How far a partition is delivered; the fields are those of checkpoints/progress.py.

    Attributes:
        a: all cancels below are answered or chased.
    """

    r: int
    c: int
    c1: int | None = None
    d: int = 0
    a: int = 0

    @property
    def closed(self) -> int:
        """The last slot of which a row may have left."""
        return self.r if self.c1 is None else self.r + 1

    @property
    def closed_c(self) -> int:
        """C of the slot `closed`."""
        return self.c if self.c1 is None else self.c1


@dataclass(frozen=True, slots=True)
class Progress:
    """A shard's record in the state topic."""

    owner: int
    epoch: int
    incarnation: int
    partitions: Mapping[int, PartitionProgress]
    windows: Mapping[int, Windows]
    window: int
    assignment_epoch: int = 0

    def windows_of(self, partition: int) -> Windows:
        """Of a partition that was added since the last change, the present window."""
        return self.windows.get(partition, ((0, self.window),))

    @property
    def r(self) -> int:
        return min(p.r for p in self.partitions.values())


class Word(Enum):
    """The answer to a request."""

    CANCELLED = 1
    ALREADY_DELIVERED = 2
    UNKNOWN = 3


@dataclass(frozen=True, slots=True)
class Answer:
    """What a transaction has for the cancel at `offset`: an answer, or a chase.

    Attributes:
        request: where the user's record lies.
        word: None if it is chased.
    """

    partition: int
    offset: int
    request: int
    word: Word | None
    chase: Record | None = None


class Fenced(Exception):
    """Another producer has taken the transactional id."""


class Kafka:
    """Timer topic, progress records, and the fencing of producers; a transaction is one call.

    Args:
        partitions: of the timer topic.
    """

    def __init__(self, partitions: int) -> None:
        self.topic: list[list[Record | None]] = [[] for _ in range(partitions)]
        self.now: Callable[[], int] = lambda: 0
        # The most that a transaction writes of what is held, drawn anew.
        self.moves: Callable[[], int] = lambda: 0
        self.closed: set[int] = set()  # partitions that have no leader at the moment
        self.held: dict[str, list[tuple[int, Record]]] = {}  # by shard; it goes to the partition
        self.progress: dict[str, Progress] = {}
        self.fence: dict[str, int] = {}
        self.before_commit: Callable[[Progress, list[Leave]], None] = lambda *_: None
        self.on_commit: Callable[[Progress, list[Leave], list[Answer]], None] = lambda *_: None

    def init_transactions(self, shard: str) -> int:
        self.fence[shard] = self.fence.get(shard, 0) + 1
        return self.fence[shard]

    def commit(
        self,
        shard: str,
        producer: int,
        progress: Progress,
        leaves: list[Leave],
        answers: list[Answer],
        clauses: Clauses,
    ) -> None:
        if self.fence[shard] != producer:
            raise Fenced
        self.before_commit(progress, leaves)
        self.progress[shard] = progress
        back = [(x.row.partition, copy) for x in leaves for copy in (x.copy, x.successor)]
        written = [(partition, copy) for partition, copy in back if copy is not None]
        written += [(x.partition, x.chase) for x in answers if x.chase is not None]
        written = self._hold(shard, written, self.moves(), clauses)
        for partition, record in written:
            self.topic[partition].append(record)
        for partition in {partition for partition, _ in written}:
            self.topic[partition].append(None)  # the transaction's marker takes an offset
        self.on_commit(progress, leaves, answers)

    def _hold(
        self, shard: str, new: list[tuple[int, Record]], moves: int, clauses: Clauses
    ) -> list[tuple[int, Record]]:
        """What is written now: of what was held, and of what is new. The rest is held."""
        written, held = list[tuple[int, Record]](), list[tuple[int, Record]]()
        for partition, record in self.held.get(shard, []):
            is_moved = partition not in self.closed and len(written) < moves
            if is_moved:
                written.append((partition, replace(record, timestamp=self.now())))
            else:
                held.append((partition, record))
        if not clauses.held_copies_go_in_order:
            written.reverse()
        behind = {partition for partition, _ in held} | self.closed
        if not clauses.later_copies_go_behind_held_ones:
            behind = self.closed
        for partition, record in new:
            (held if partition in behind else written).append((partition, record))
        self.held[shard] = held
        return written

    def holds(self, shard: str, partition: int) -> bool:
        """Whether copies wait for this partition."""
        return any(number == partition for number, _ in self.held.get(shard, []))

    def ends(self) -> dict[int, int]:
        """The log end of each partition."""
        return {partition: len(records) for partition, records in enumerate(self.topic)}

    def offset_for_time(self, partition: int, time: int) -> int:
        records = self.topic[partition]
        found = (o for o, r in enumerate(records) if r is not None and r.timestamp >= time)
        return next(found, len(records))


@dataclass(frozen=True, slots=True)
class Row:
    """A timer in the wheel."""

    partition: int
    offset: int
    rolls: bool


class Fate(Enum):
    """How a row leaves its slot."""

    DELIVERED = 1
    DEAD = 2
    CANCELLED = 3
    ROLLED = 4
    PARKED = 5
    SEEDED = 6  # of a recurring timer: its first copy is written
    SUCCEEDED = 7  # broken on purpose: the firing has left before


@dataclass(frozen=True, slots=True)
class Leave:
    """A row leaving its slot in a transaction; `copy` and `successor` go to the timer topic."""

    slot: int
    row: Row
    fate: Fate
    copy: Record | None = None
    successor: Record | None = None  # of a firing: the copy of the next one


def slot_of(record: Record, window: int) -> tuple[int, bool]:
    """The row's own slot, a function of Kafka's data alone, and whether it rolls there."""
    if record.kind is Kind.CANCEL:
        return record.timestamp, False
    slot = max(record.due, record.not_before)
    if slot - record.timestamp <= window:
        return slot, False
    return record.timestamp + window - record.id % 2, True


def window_at(windows: Windows, offset: int) -> int:
    return next(window for first, window in reversed(windows) if first <= offset)


def is_done(p: PartitionProgress | None, offset: int, slot: int) -> bool:
    """Whether the row has left its slot, if this is the progress."""
    if p is None:
        return False
    if offset < p.c and slot <= p.r:
        return True
    return p.c1 is not None and offset < min(p.c1, p.d) and slot <= p.r + 1
