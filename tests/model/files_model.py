"""The model's data directory: what is synced, what a loss of power leaves of the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from random import Random

from tests.model.clauses import Clauses
from tests.model.kafka_model import Progress, Row

RING = 28  # slots in the ring: twice the longest window and the margin

Marks = Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Close:
    """The close page: slots (lower, floor] were closed at C, slot `lower` at C before."""

    lower: int
    c_before: Marks
    floor: int
    c: Marks


@dataclass(frozen=True, slots=True)
class Cancel:
    """A record of the cancel log.

    Attributes:
        partition, offset: where the cancel lies in Kafka.
        id: of timers with a lower origin that it meets.
        again: a copy has brought it again: it is not answered.
    """

    partition: int
    offset: int
    id: int
    again: bool = False


@dataclass(slots=True)
class Files:
    """Commit page, logs and wheel; `cancels`: the cancel log, by rising numbers."""

    marks: dict[int, int] = field(default_factory=dict)
    wheel: dict[int, tuple[Row, ...]] = field(default_factory=dict)
    cancels: dict[int, Cancel] = field(default_factory=dict)
    written: int = 0

    def copy(self) -> Files:
        return Files(dict(self.marks), dict(self.wheel), dict(self.cancels), self.written)

    def cancel(self, *cancels: Cancel) -> None:
        """Add to the cancel log."""
        for cancel in cancels:
            self.cancels[self.written] = cancel
            self.written += 1

    def append(self, slot: int, *rows: Row) -> None:
        """Add to a slot; the entry that the ring had there belongs to an earlier lap. With it goes
        what is older: logs are given up in their order.
        """
        for earlier in [known for known in self.wheel if known <= slot - RING]:
            del self.wheel[earlier]
        self.wheel[slot] = (*self.wheel.get(slot, ()), *rows)


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

    `standby`: it follows the progress of another one, and holds nothing at or above its C.
    """

    def __init__(self, uuid: int) -> None:
        self.uuid = uuid
        self.epoch = 0
        self.generation = 0
        self.recovered = 0
        self.lineage = 0
        self.lineage_before = 0
        self.recovery: Recovery | None = None
        self.page_cache_lost = False
        self.files = Files()
        self.close: Close | None = None
        self.mirror: Progress | None = None
        self.standby = False
        self.durable: tuple[Files, Close] | None = None
        self.durable_taken: tuple[Files, Close] | None = None
        self.unsynced: list[Close] = []

    @property
    def is_pending(self) -> bool:
        """Whether a recovery is decided and not carried out."""
        return self.recovered != self.generation

    def copy(self) -> Directory:
        twin = Directory(self.uuid)
        for name, value in vars(self).items():
            setattr(twin, name, value)
        twin.files, twin.unsynced = self.files.copy(), list(self.unsynced)
        if self.durable is not None:
            twin.durable = self.durable[0].copy(), self.durable[1]
        return twin

    def write_close(self, close: Close) -> None:
        self.unsynced = [*self.unsynced[-3:], close]
        self.close = close

    def take_durable(self, clauses: Clauses) -> None:
        """Under the lock: what is to be synced. It counts once it is written."""
        assert self.close is not None
        close = self.close
        if not clauses.durable_close_page_is_of_its_marks:
            close = self.unsynced[max(0, len(self.unsynced) - 2)] if self.unsynced else close
        self.durable_taken = self.files.copy(), close

    def write_durable(self) -> None:
        self.durable, self.durable_taken = self.durable_taken, None

    def lose_power(self, random: Random) -> None:
        """Of what is not synced, anything may be there or not."""
        self.page_cache_lost = True
        self.durable_taken = None
        self.close = random.choice([*self.unsynced, None])
        for slot, rows in self.files.wheel.items():
            self.files.wheel[slot] = tuple(row for row in rows if random.random() < 0.5)
