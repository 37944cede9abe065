"""Kafka: the timer topic, what the state topic has of each shard, and open transactions.

A partition is a list by offset: records, and what is no record for a read_committed reader (a
transaction's marker, an aborted record). An open transaction's records hold the stable offset back.

Partitions of targets may take no writes for a while, and the reply topic and that of dead letters
may be absent. The publisher (shard_model.py) knows, as the real one does from metadata, and parks
what would go there; replies become dead letters. Some refuse batches and metadata does not say so:
then a transaction fails first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NoReturn

from tests.simulation.clocks import WorldClock
from tests.simulation.history import History
from tests.simulation.record_log import ABORTING, NO_PRODUCER, Entry, answer
from tests.simulation.timers import Copy, Timer

from duewheel.checkpoints.pauses import NONE_PAUSED, PausedTimers
from duewheel.errors import KafkaUnavailable
from duewheel.schemas.batches import ANY_OFFSET, Deliveries

_AHEAD_MAX_MS = 1_000
_SLOW = 1  # producer of the users' open transactions
PRODUCERS = 100  # from here on those of the shards

Lost = tuple[list[Copy | None], list[int], list[Entry]]


class Partition:
    """One partition of the timer topic.

    Attributes:
        records: by offset; None where a reader gets nothing.
        log: what lies there all the same.
        start: the log begins here.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.records: list[Copy | None] = []
        self.stamps: list[int] = []
        self.log: list[Entry] = []
        self.start = 0
        self._open: dict[int, Copy] = {}  # offset → record of an open transaction

    @property
    def end(self) -> int:
        return len(self.records)

    @property
    def stable_end(self) -> int:
        """Where a read_committed reader has to stop."""
        return min(self._open, default=self.end)

    def append(self, copy: Copy, stamp_ms: int, producer: int = NO_PRODUCER) -> None:
        """A record; with a producer in its transaction, which is open."""
        self._append(Entry(copy, producer), stamp_ms)
        if producer == NO_PRODUCER:
            self.records[-1] = copy
        else:
            self._open[copy.offset] = copy

    def _append(self, entry: Entry, stamp_ms: int) -> None:
        self.records.append(None)
        self.stamps.append(stamp_ms)
        self.log.append(entry)

    def append_aborted(self, records: int, stamp_ms: int) -> None:
        """A user's aborted transaction, and its marker."""
        for _ in range(records):
            self._append(Entry(None, ABORTING), stamp_ms)
        self._append(Entry(None, ABORTING, commits=False), stamp_ms)

    def before_open(self, end: int) -> int:
        """The same end, or a lower one that parts no record from the marker of its transaction: a
        broker would take that for open, and hold back all that is written behind it.
        """
        first: dict[int, int] = {}
        for offset, entry in enumerate(self.log[:end]):
            if entry.commits is not None:
                first.pop(entry.producer, None)
            elif entry.producer != NO_PRODUCER:
                first.setdefault(entry.producer, offset)
        return min(first.values(), default=end)

    def cut(self, end: int) -> Lost:
        """Lose what lies behind; returns it. No transaction is open."""
        assert not self._open
        lost = self.records[end:], self.stamps[end:], self.log[end:]
        del self.records[end:], self.stamps[end:], self.log[end:]
        return lost

    def put_back(self, lost: Lost) -> None:
        """What was cut off is found again."""
        self.records += lost[0]
        self.stamps += lost[1]
        self.log += lost[2]

    def finish(self, offsets: Iterable[int], stamp_ms: int, *, commit: bool) -> list[Copy]:
        """End a transaction that has written at these offsets; its marker follows."""
        copies = [self._open.pop(offset) for offset in offsets]
        if commit:
            for copy in copies:
                self.records[copy.offset] = copy
        if copies:
            producer = self.log[copies[0].offset].producer
            self._append(Entry(None, producer, commits=commit), stamp_ms)
        return copies

    def copies(self) -> list[Copy]:
        """The records that are still there and committed."""
        return [copy for copy in self.records[self.start :] if copy is not None]

    def fetch(self, at: int) -> tuple[bytes, list[tuple[int, int]]]:
        """Record batches from an offset on, and the aborted transactions among them."""
        return answer(self.log, self.records, at, self.stable_end)

    def offset_for_time(self, stamp_ms: int) -> int | None:
        """The first offset with this timestamp or a later one; None if there is none."""
        for offset in range(self.start, self.end):
            if self.stamps[offset] >= stamp_ms:
                return offset
        return None


@dataclass(frozen=True)
class Sent:
    """What goes to the end of a partition of the timer topic: a copy, or a chase.

    Attributes:
        timer: or the request.
        headers: as they were written.
        is_chase: whether it is one.
    """

    timer: Timer
    headers: bytes
    is_chase: bool

    @property
    def partition(self) -> int:
        return self.timer.partition


@dataclass
class Transaction:
    """One that is open: what it will have delivered, the copies it has written, its progress.

    Attributes:
        closable_ms: what was due later may not be in it.
        sent: what it has written to the timer topic, in its order.
        held: copies that wait once it is committed.
    """

    deliveries: Deliveries | None
    progress: bytes
    began_ms: int
    closable_ms: int
    parked_ms: int
    down: frozenset[tuple[str, int]]
    absent: frozenset[str]
    paused: PausedTimers
    offsets: dict[int, list[int]] = field(default_factory=dict)
    sent: list[Sent] = field(default_factory=list)
    held: list[Sent] = field(default_factory=list)


@dataclass
class Lane:
    """What Kafka has of one shard.

    Attributes:
        progress: records of the state topic: value and broker time.
        epoch: of the transactional id.
        transaction: the open one.
        told: the notice of `duewheel reshard` beside them, and broker time.
        held: copies that wait for their partition, in their order.
    """

    progress: list[tuple[bytes, int]] = field(default_factory=list)
    epoch: int = 0
    transaction: Transaction | None = None
    told: tuple[bytes, int] | None = None
    held: list[Sent] = field(default_factory=list)


@dataclass
class Kafka:
    """The cluster.

    Attributes:
        partitions: of the timer topic.
        lanes: by the index of a shard that there is, or was, or is to be.
        lock: epoch of the transactional id of `duewheel reshard`.
        deals: how often it has dealt the partitions.
        away: so many calls fail before it is back.
        slow: users' open transactions: partition, offsets, and how each will end.
        down: partitions that take no writes; those of the timer topic have no leader.
        absent: topics that do not exist.
        refusing: target partitions that take no writes, and metadata says nothing of it.
        paused: topics whose due timers wait, as an operator wants it.
        rows_max: transactions with more rows run out of time; 0: none does for that.
        history: hears what is committed.
        die: ends the process in whose step this comes.
    """

    clock: WorldClock
    history: History
    partitions: list[Partition]
    die: Callable[[], NoReturn]
    lanes: defaultdict[int, Lane] = field(default_factory=lambda: defaultdict(Lane))
    lock: int = 0
    deals: int = 0
    away: int = 0
    down: frozenset[tuple[str, int]] = frozenset()
    absent: frozenset[str] = frozenset()
    refusing: frozenset[tuple[str, int]] = frozenset()
    paused: PausedTimers = NONE_PAUSED
    rows_max: int = 0
    slow: list[tuple[int, list[int], bool]] = field(default_factory=list)

    def write(
        self,
        number: int,
        due_ms: int,
        stamp_ms: int,
        *,
        rejected: bool,
        named: bytes | None = None,
        request: str = "",
        named_offset: int = ANY_OFFSET,
        added: bytes = b"",
    ) -> None:
        """A user's timer, or cancel; `added`: headers of copies that it forges."""
        partition = self.partitions[number]
        at = number, partition.end, due_ms, rejected
        timer = Timer(*at, named=named, request=request, named_offset=named_offset)
        copy = Copy(timer, partition.end, stamp_ms, 0, added=added)
        partition.append(copy, stamp_ms)
        self.history.written(copy)

    def write_slowly(self, number: int, due_ms: list[int], *, commit: bool) -> None:
        """A user's transaction that stays open until `end_slow`; it may be aborted then."""
        partition, now_ms = self.partitions[number], self.clock.true_ms
        offsets = [partition.end + row for row in range(len(due_ms))]
        for offset, due in zip(offsets, due_ms, strict=True):
            copy = Copy(Timer(number, offset, due, rejected=False), offset, now_ms, 0)
            partition.append(copy, now_ms, _SLOW)
        self.slow.append((number, offsets, commit))

    def end_slow(self) -> None:
        """End the users' open transactions."""
        for number, offsets, commit in self.slow:
            copies = self.partitions[number].finish(offsets, self.clock.true_ms, commit=commit)
            for copy in copies if commit else []:
                self.history.written(copy)
        self.slow.clear()

    def gap(self, number: int, count: int) -> None:
        """A user's aborted transaction, or a marker alone."""
        self.partitions[number].append_aborted(count - 1, self.clock.true_ms)

    @property
    def parked_ms(self) -> int:
        """From when the shard lets parked timers wait: the host's clock, but not far ahead."""
        return min(self.clock.now_ms(), self.clock.true_ms + _AHEAD_MAX_MS)

    def require_there(self) -> None:
        """Fail a call while the cluster is away."""
        if self.away:
            self.away -= 1
            raise KafkaUnavailable("away")
