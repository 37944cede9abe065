"""Deliveries in encoded form: batches, and the rows that do not go to their target.

A publisher makes these values before the transaction (`prepare`, or `renew`); the loop reads
`Aside` once the transaction is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from duewheel.checkpoints.pauses import NONE_PAUSED, PausedTimers
from duewheel.schemas.arrays import Int64
from duewheel.schemas.wire.codec_names import Codec
from duewheel.schemas.wire.record_batch import Batch
from duewheel.wheel.target_rules import Target

# Called with the time in ms once a transaction is certainly committed.
Committed = Callable[[int], None]

NO_ROWS: Int64 = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Aside:
    """The rows of a transaction that did not go to their target, each under one cause."""

    # Rows that went back to their timer topic because their target takes no writes for now
    parked: Int64 = field(default_factory=lambda: NO_ROWS)
    postponed: Int64 = field(default_factory=lambda: NO_ROWS)  # the same, because of a policy
    # Dead letters that went back because the dead-letter topic takes no writes; some of them may
    # have become dead letters only now.
    letters: Int64 = field(default_factory=lambda: NO_ROWS)
    dead_lettered: Int64 = field(default_factory=lambda: NO_ROWS)  # rows that became dead letters
    codes: Sequence[str] = ()  # reasons of dead letters, indexed by `code`
    code: Int64 = field(default_factory=lambda: NO_ROWS)  # the reason of each `dead_lettered` row
    # Rows that went back because their target was not looked up yet; it may not exist
    unresolved: Int64 = field(default_factory=lambda: NO_ROWS)

    @property
    def rows(self) -> tuple[Int64, ...]:
        """All of them, by cause."""
        return self.parked, self.postponed, self.letters, self.dead_lettered, self.unresolved

    @property
    def reasons(self) -> dict[str, int]:
        """The number of `dead_lettered` rows by reason."""
        numbers, counts = np.unique(self.code, return_counts=True)
        return {self.codes[n]: c for n, c in zip(numbers.tolist(), counts.tolist(), strict=True)}


@dataclass(frozen=True, slots=True)
class Part:
    """One batch and its destination."""

    topic: str
    partition: int
    batch: Batch
    source: bytes | None  # TIMER_SOURCE of its record if it has only one
    codec: Codec = "none"  # in which it is sent; the batch itself is not compressed
    is_whole: bool = False  # a batch of held copies, which cannot be divided (held_queue.py)


@dataclass(frozen=True, slots=True)
class Writes:
    """The partitions that each row is written to: its own, and that of its receipt.

    Attributes:
        row: of each write, the row.
        partition: of each write, a number of the partition, the same for the same partition.
    """

    row: Int64
    partition: Int64


@dataclass(frozen=True, slots=True)
class Encoded:
    """Deliveries as batches, and the metadata that they depend on."""

    parts: list[Part]  # those of a partition are neighbours, in their order
    writes: Writes  # of the deliveries in their order
    aside: Aside  # rows that do not go to their target
    # Each topic that the encoding depends on, with the metadata that was used
    used_targets: Mapping[str, Target]
    refused: frozenset[bytes]  # sources of the records that the broker had refused
    copy_key: bytes  # of the MACs of copies; empty: they have none
    encoded_ms: int  # by the clock of the rows' waits
    paused: PausedTimers = NONE_PAUSED  # the topics that were paused
    on_commit: Committed | None = None  # an observer's

    def rows_of(self, parts: Iterable[Part]) -> Int64:
        """The deliveries in these of its parts; receipts have none."""
        wanted = {id(part) for part in parts}
        counts = [part.batch.count for part in self.parts]
        rows = np.flatnonzero(np.repeat([id(part) in wanted for part in self.parts], counts))
        # Receipts come last, and each row has one other write.
        return self.writes.row[rows[rows < len(np.unique(self.writes.row))]]

    @property
    def partitions(self) -> int:
        """The number of partitions that are written to."""
        return len({(part.topic, part.partition) for part in self.parts})
