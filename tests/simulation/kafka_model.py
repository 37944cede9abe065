"""Kafka, as far as a shard sees it: the timer topic, the state topic, and transactions.

A partition is a list by offset: records, and what is no record for a read_committed reader (a
transaction's marker, an aborted record). An open transaction's records hold the stable offset back.
A transaction has a fate:

    commit   it happens, and its writer hears so
    lost     its records are aborted, its writer is left in doubt
    doubt    it happens, its writer is left in doubt
    open     nobody ends it: the next start with its transactional id does, or the time-out
    die …    the writer dies before it, in it (it stays open), or behind it

Partitions of targets may take no writes for a while, and the reply topic may be absent. The
publisher knows, as the real one does from metadata, and parks what would go there; answers become
dead letters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tests.simulation.clocks import WorldClock
from tests.simulation.contract_check import decoded
from tests.simulation.history import History
from tests.simulation.seam import die
from tests.simulation.timers import DEAD, TARGET_PARTITIONS, TARGETS, TOPIC, Copy, Timer

from duewheel.checkpoints.progress import Progress
from duewheel.errors import KafkaUnavailable, PublishDoubt
from duewheel.schemas import header_names as names
from duewheel.schemas.timers import Deliveries, TopicPartition
from duewheel.wheel.encoding import Known, route
from duewheel.wheel.publisher import NO_ROWS, Prepared, Seen
from duewheel.wheel.routing import Reason, Target

FATES = ("lost", "doubt", "open", "die before", "die open", "die after")
TIMEOUT_MS = 15_000
_BATCH_BYTES = 1 << 20
_AHEAD_MAX_MS = 60_000


class Partition:
    """One partition of the timer topic.

    Attributes:
        records: by offset; None where a reader gets nothing.
        start: the log begins here.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.records: list[Copy | None] = []
        self.stamps: list[int] = []
        self.start = 0
        self._open: dict[int, Copy] = {}  # offset → record of an open transaction

    @property
    def end(self) -> int:
        return len(self.records)

    @property
    def stable_end(self) -> int:
        """Where a read_committed reader has to stop."""
        return min(self._open, default=self.end)

    def append(self, copy: Copy | None, stamp_ms: int, *, opened: bool = False) -> None:
        if opened:
            assert copy is not None
            self._open[self.end] = copy
            copy = None
        self.records.append(copy)
        self.stamps.append(stamp_ms)

    def cut(self, end: int) -> tuple[list[Copy | None], list[int]]:
        """Lose what lies behind; returns it. No transaction is open."""
        assert not self._open
        lost = self.records[end:], self.stamps[end:]
        del self.records[end:], self.stamps[end:]
        return lost

    def put_back(self, lost: tuple[list[Copy | None], list[int]]) -> None:
        """What was cut off is found again."""
        self.records += lost[0]
        self.stamps += lost[1]

    def finish(self, offsets: Iterable[int], stamp_ms: int, *, commit: bool) -> list[Copy]:
        """End a transaction that has written at these offsets; its marker follows."""
        copies = [self._open.pop(offset) for offset in offsets]
        if commit:
            for copy in copies:
                self.records[copy.offset] = copy
        if copies:
            self.append(None, stamp_ms)
        return copies

    def read(self, first: int, end: int) -> list[Copy]:
        """The records that are still there and committed."""
        found = self.records[max(first, self.start) : end]
        return [copy for copy in found if copy is not None]

    def offset_for_time(self, stamp_ms: int) -> int | None:
        """The first offset with this timestamp or a later one; None if there is none."""
        for offset in range(self.start, self.end):
            if self.stamps[offset] >= stamp_ms:
                return offset
        return None


@dataclass
class Transaction:
    """One that is open: what it will have delivered, the copies it has written, its progress.

    Attributes:
        closable_ms: what was due later may not be in it.
    """

    deliveries: Deliveries | None
    progress: bytes
    began_ms: int
    closable_ms: int
    parked_ms: int
    down: frozenset[tuple[str, int]]
    absent: frozenset[str]
    offsets: dict[int, list[int]] = field(default_factory=dict)


@dataclass
class Kafka:
    """The cluster.

    Attributes:
        partitions: of the timer topic.
        progress: records of the state topic: value and broker time.
        epoch: of the transactional id.
        transaction: the shard's open one.
        away: so many calls fail before it is back.
        slow: users' open transactions: partition, offsets, and how each will end.
        down: target partitions that take no writes.
        absent: topics that do not exist.
        history: hears what is committed.
    """

    clock: WorldClock
    history: History
    partitions: list[Partition]
    progress: list[tuple[bytes, int]] = field(default_factory=list)
    epoch: int = 0
    transaction: Transaction | None = None
    away: int = 0
    down: frozenset[tuple[str, int]] = frozenset()
    absent: frozenset[str] = frozenset()
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
    ) -> None:
        """A user's timer, or cancel."""
        partition = self.partitions[number]
        timer = Timer(number, partition.end, due_ms, rejected, named=named, request=request)
        partition.append(Copy(timer, partition.end, stamp_ms, 0), stamp_ms)
        self.history.written(Copy(timer, partition.end - 1, stamp_ms, 0))

    def write_slowly(self, number: int, due_ms: list[int], *, commit: bool) -> None:
        """A user's transaction that stays open until `end_slow`; it may be aborted then."""
        partition, now_ms = self.partitions[number], self.clock.true_ms
        offsets = [partition.end + row for row in range(len(due_ms))]
        for offset, due in zip(offsets, due_ms, strict=True):
            copy = Copy(Timer(number, offset, due, rejected=False), offset, now_ms, 0)
            partition.append(copy, now_ms, opened=True)
        self.slow.append((number, offsets, commit))

    def end_slow(self) -> None:
        """End the users' open transactions."""
        for number, offsets, commit in self.slow:
            copies = self.partitions[number].finish(offsets, self.clock.true_ms, commit=commit)
            for copy in copies if commit else []:
                self.history.written(copy)
        self.slow.clear()

    def gap(self, number: int, count: int) -> None:
        """A user's aborted transaction, or markers."""
        for _ in range(count):
            self.partitions[number].append(None, self.clock.true_ms)

    @property
    def parked_ms(self) -> int:
        """From when the shard lets parked timers wait: the host's clock, but not far ahead."""
        return min(self.clock.now_ms(), self.clock.true_ms + _AHEAD_MAX_MS)

    def begin(self, deliveries: Deliveries | None, progress: bytes) -> Transaction:
        """The shard's transaction, with everything in it written."""
        assert self.transaction is None
        begun = Transaction(
            deliveries,
            progress,
            self.clock.true_ms,
            self.clock.closable_ms,
            self.parked_ms,
            self.down,
            self.absent,
        )
        now_ms = begun.began_ms
        for timer, headers in self.history.sent_back(deliveries):
            partition = self.partitions[timer.partition]
            begun.offsets.setdefault(timer.partition, []).append(partition.end)
            partition.append(self._copy(timer, headers, partition.end), now_ms, opened=True)
        self.transaction = begun
        return begun

    def _copy(self, timer: Timer, headers: bytes, offset: int) -> Copy:
        """What a roll has made of a timer; or parking, which says itself how long."""
        newest, now_ms = self.history.newest(timer), self.clock.true_ms
        timer = self.history.settings.judged(timer)
        said = dict(decoded(headers))
        if names.NOT_BEFORE_MS not in said:
            return Copy(timer, offset, now_ms, newest.rolls + 1)
        not_before_ms = int(said[names.NOT_BEFORE_MS])
        return Copy(timer, offset, now_ms, newest.rolls, not_before_ms, newest.retries + 1)

    def finish(self, *, commit: bool) -> None:
        """End the shard's transaction."""
        ended, self.transaction = self.transaction, None
        assert ended is not None
        now_ms = self.clock.true_ms
        copies = [
            copy
            for number, offsets in ended.offsets.items()
            for copy in self.partitions[number].finish(offsets, now_ms, commit=commit)
        ]
        if commit:
            self.progress.append((ended.progress, now_ms))
            self.history.committed(ended, copies)

    def end_forgotten(self) -> None:
        """What the coordinator does with a transaction that has run into its time-out."""
        begun = self.transaction
        if begun is not None and self.clock.true_ms - begun.began_ms > TIMEOUT_MS:
            self.epoch += 1
            self.finish(commit=False)

    def require_there(self) -> None:
        """Fail a call while the cluster is away."""
        if self.away:
            self.away -= 1
            raise KafkaUnavailable("away")

    def newest(self) -> Progress | None:
        return Progress.decode(self.progress[-1][0]) if self.progress else None


class SimulatedReader:
    """The ProgressReader of one standby."""

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka

    def newest(self) -> Seen | None:
        self._kafka.require_there()
        if not self._kafka.progress:
            return None
        value, written_ms = self._kafka.progress[-1]
        return Seen(Progress.decode(value), written_ms)


class SimulatedPublisher:
    """The Publisher of one dequeue process: KafkaPublisher's promises without its sockets."""

    def __init__(
        self,
        kafka: Kafka,
        fate: Callable[[], str],
        meanwhile: Callable[[], None],
    ) -> None:
        """
        Args:
            fate: asked before each transaction.
            meanwhile: called in the middle of each.
        """
        self._kafka = kafka
        self._fate = fate
        self._meanwhile = meanwhile
        self._epoch = -1
        self.parked = NO_ROWS

    def peek(self) -> Progress | None:
        self._kafka.require_there()
        return self._kafka.newest()

    def age_ms(self) -> int:
        self._kafka.require_there()
        _, written_ms = self._kafka.progress[-1]
        return self._kafka.clock.true_ms - written_ms

    def start(self) -> Progress | None:
        kafka = self._kafka
        kafka.require_there()
        kafka.epoch += 1
        if kafka.transaction is not None:
            kafka.finish(commit=False)
        self._epoch = kafka.epoch
        return kafka.newest()

    def prepare(self, deliveries: Deliveries) -> Prepared:
        return Prepared(deliveries)

    def log_ends(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        self._kafka.require_there()
        ends = offsets_of(self._kafka, "end")
        return {partition: ends[partition] for partition in partitions}

    def publish(self, prepared: Prepared | None, progress: Progress) -> int:
        kafka = self._kafka
        if self._epoch != kafka.epoch:
            raise PublishDoubt("not started, or fenced")
        deliveries = None if prepared is None else prepared.deliveries
        fate = self._fate()
        kafka.history.attempted(deliveries, fate)
        if deliveries is not None and len(deliveries):
            routed = route(deliveries, self._known, frozenset(), TARGETS[DEAD], kafka.parked_ms)
            deliveries, self.parked = routed.deliveries, routed.parked
        if fate == "die before":
            die()
        kafka.begin(deliveries, progress.encode())
        stamp_ms = kafka.clock.true_ms
        if fate == "die open":
            die()
        self._meanwhile()
        if kafka.transaction is None or self._epoch != kafka.epoch:
            self.close()
            raise PublishDoubt("ended by its time-out")
        if fate != "open":
            kafka.finish(commit=fate != "lost")
        if fate == "die after":
            die()
        if fate != "commit":
            self.close()
            raise PublishDoubt(fate)
        return stamp_ms

    def close(self) -> None:
        self._epoch = -1

    def _known(self, topics: Sequence[str]) -> dict[str, Known]:
        """What metadata says."""
        found = {}
        for topic in topics:
            down = frozenset(number for name, number in self._kafka.down if name == topic)
            count = len(self._kafka.partitions) if topic == TOPIC else TARGET_PARTITIONS
            target = Target(count, _BATCH_BYTES, unavailable=down)
            if topic in self._kafka.absent:
                target = Target(0, _BATCH_BYTES, refusal=Reason.UNKNOWN_TARGET_TOPIC)
            found[topic] = Known(target, _BATCH_BYTES)
        return found


def offsets_at(kafka: Kafka, stamp_ms: int) -> dict[tuple[str, int], int]:
    """Where that time begins in every partition that has come so far."""
    found = {(TOPIC, p.number): p.offset_for_time(stamp_ms) for p in kafka.partitions}
    return {name: offset for name, offset in found.items() if offset is not None}


def offsets_of(kafka: Kafka, what: str) -> dict[tuple[str, int], int]:
    """`start`, `end` or `stable_end` of every partition."""
    return {(TOPIC, p.number): int(getattr(p, what)) for p in kafka.partitions}
