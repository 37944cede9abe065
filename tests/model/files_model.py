"""The model's data directory: its synced bytes, and the effect of a loss of power on the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from random import Random

from tests.model.clauses import Clauses
from tests.model.kafka_model import BEFORE_ALL, Progress, Row, Word

RING = 28  # slots in the ring: twice the longest window and the margin

Marks = Mapping[int, int]
Place = tuple[int, int]  # partition and offset


@dataclass(frozen=True, slots=True)
class Close:
    """The close page: slots (lower, floor] were closed at C, slot `lower` at C before."""

    lower: int
    c_before: Marks
    floor: int
    c: Marks


@dataclass(frozen=True, slots=True)
class Cancel:
    """A cancel, or a chase, as ingest reads it.

    Attributes:
        partition, offset: where it lies in Kafka.
        request: where the user's cancel lies; it is for timers of its id with a lower first offset.
        g, found: those of a chase.
    """

    partition: int
    offset: int
    request: int
    id: int
    g: int = BEFORE_ALL
    found: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """A record of the cancel segments: what ingest has found out about a cancel.

    Attributes:
        word: None if it is undecided: dequeue is to chase it.
        found: whether the cancel has flagged a row, now or before it was chased.
    """

    cancel: Cancel
    word: Word | None
    found: bool


@dataclass(slots=True)
class Files:
    """Commit page, logs and wheel.

    Attributes:
        wheel: the rows that the slots of the ring lead to.
        log: every row that is on disk, with its slot.
        cancelled: the lists of rows that are cancelled, with the offset of the cancel.
        flags: the same, as marks in the rows themselves, where dequeue sees them.
        segments: outcomes of cancels that are not answered yet.
    """

    marks: dict[int, int] = field(default_factory=dict)
    wheel: dict[int, tuple[Row, ...]] = field(default_factory=dict)
    log: dict[Place, int] = field(default_factory=dict)
    cancelled: dict[Place, int] = field(default_factory=dict)
    flags: set[Place] = field(default_factory=set)
    segments: list[Outcome] = field(default_factory=list)

    def copy(self) -> Files:
        """What a checkpoint of now would name."""
        columns = dict(self.marks), dict(self.wheel), dict(self.log), dict(self.cancelled)
        return Files(*columns, set(self.flags), list(self.segments))

    def drop(self, rows: set[Place]) -> None:
        """Take rows from the log, and from the lists beside it."""
        for row in rows:
            self.log.pop(row, None)
            self.cancelled.pop(row, None)
        self.flags -= rows

    def append(self, slot: int, *rows: Row) -> None:
        """Add to a slot; the entry that the ring had there belongs to an earlier lap."""
        for earlier in [known for known in self.wheel if known <= slot - RING]:
            del self.wheel[earlier]
        self.wheel[slot] = (*self.wheel.get(slot, ()), *rows)
        for row in rows:
            self.log[row.partition, row.offset] = slot


class Keep(IntEnum):
    """How much of the local files a start goes on with."""

    NOTHING = 0
    DURABLE = 1
    ALL = 2


@dataclass(frozen=True, slots=True)
class Recovery:
    """The recovery record."""

    keep: Keep


class Directory:
    """A data directory. Synced at once: all but `files`, `close` and `mirror`.

    Attributes:
        standby: it follows the progress of another one, and holds nothing at or above its C.
        since: rows in slots up to this one prove nothing: flags that they had may be lost.
        blind: per partition: copies of rows that these files do not have may lie below. Every
            offset, where it is missing.
        redo: flags of the newest batch that are not set yet, as the lists have them.
    """

    def __init__(self, uuid: int) -> None:
        self.uuid = uuid
        self.epoch = 0
        self.generation = 0
        self.recovered = 0
        self.incarnation = 0
        self.incarnation_before = 0
        self.recovery: Recovery | None = None
        self.page_cache_lost = False
        self.files = Files()
        self.close: Close | None = None
        self.mirror: Progress | None = None
        self.standby = False
        self.durable: tuple[Files, Close] | None = None
        self.durable_taken: tuple[Files, Close] | None = None
        self.unsynced: list[Close] = []
        self.since = BEFORE_ALL
        self.blind: dict[int, int] = {}
        self.redo: set[Place] = set()
        self._lists_on_disk: set[Place] = set()

    @property
    def is_pending(self) -> bool:
        """Whether a recovery is decided and not carried out."""
        return self.recovered != self.generation

    def copy(self) -> Directory:
        twin = Directory(self.uuid)
        for name, value in vars(self).items():
            setattr(twin, name, value)
        twin.files, twin.unsynced = self.files.copy(), list(self.unsynced)
        twin.blind = dict(self.blind)
        if self.durable is not None:
            twin.durable = self.durable[0].copy(), self.durable[1]
        return twin

    def lock(self, clauses: Clauses) -> None:
        """Take engine.lock: who has it first sets the flags of the newest batch."""
        if clauses.flags_are_redone:
            self.files.flags |= self.redo & self.files.log.keys()
        self.redo = set()

    def write_close(self, close: Close) -> None:
        self.unsynced = [*self.unsynced[-3:], close]
        self.close = close

    def take_durable(self, clauses: Clauses) -> None:
        """Under the lock: what is to be synced. It counts once it is written."""
        assert self.close is not None
        self.lock(clauses)
        close = self.close
        if not clauses.durable_close_page_is_of_its_marks:
            close = self.unsynced[max(0, len(self.unsynced) - 2)] if self.unsynced else close
        self.durable_taken = self.files.copy(), close

    def write_durable(self, clauses: Clauses) -> None:
        """What was taken counts from here on: all but flags is synced."""
        assert self.durable_taken is not None
        lists = set(self.durable_taken[0].cancelled)
        if not clauses.lists_are_synced_with_the_checkpoint:
            lists &= self.durable[0].cancelled.keys() if self.durable else set()
        self._lists_on_disk = lists
        self.durable, self.durable_taken = self.durable_taken, None

    def lose_power(self, random: Random) -> None:
        """Of what is not synced, anything may be there or not: also flags that are newer than the
        durable checkpoint, in logs that it names.
        """
        self.page_cache_lost = True
        self.durable_taken = None
        self.redo = set()
        self.close = random.choice([*self.unsynced, None])
        for slot, rows in self.files.wheel.items():
            self.files.wheel[slot] = tuple(row for row in rows if random.random() < 0.5)
        if self.durable is None:
            return
        kept = self.durable[0]
        flags = (kept.flags | self.files.flags) & kept.log.keys()
        kept.flags = {row for row in sorted(flags) if random.random() < 0.5}
        for row in sorted(kept.cancelled.keys() - self._lists_on_disk):
            if random.random() < 0.5:
                del kept.cancelled[row]
