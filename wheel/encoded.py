"""What a publisher makes of deliveries before their transaction: batches, and what of the rows
goes elsewhere than they were addressed to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from duewheel.checkpoints.held_copies import Held
from duewheel.schemas.arrays import Int64
from duewheel.schemas.batches import TopicPartition
from duewheel.schemas.wire.record_batch import Batch

NO_ROWS: Int64 = np.empty(0, np.int64)


class Reason(IntEnum):
    """Why a row cannot be published; NONE if it can."""

    NONE = 0
    UNKNOWN_TARGET_TOPIC = 1
    TARGET_NOT_AUTHORIZED = 2
    BAD_TARGET_PARTITION = 3
    KEY_REQUIRED = 4
    RECORD_TOO_LARGE = 5
    RECORD_REFUSED = 6
    TARGET_UNAVAILABLE = 7
    HOT_SLOT = 8


@dataclass(frozen=True, slots=True)
class Target:
    """What is known of a target topic.

    Attributes:
        partitions: how many it has; 0 if nothing can be published there.
        batch_bytes_max: the largest batch it takes, header included.
        key_required: it is compacted and takes no record without a key.
        refusal: why nothing can be published there, else NONE.
        unavailable: partitions that take no writes for now.
        topic_id: Kafka's, of the topic that has this name now; empty if it has none.
    """

    partitions: int
    batch_bytes_max: int
    key_required: bool = False
    refusal: Reason = Reason.NONE
    unavailable: frozenset[int] = frozenset()
    topic_id: str = ""

    @property
    def available(self) -> Sequence[int]:
        """The partitions that take writes; all of them if none does."""
        every = range(self.partitions)
        if not self.unavailable:
            return every
        return [number for number in every if number not in self.unavailable] or every

    @property
    def takes_letters(self) -> bool:
        """Whether dead letters can go there: some partition takes writes, and records without key,
        which some of them are.
        """
        is_closed = self.refusal or self.unavailable.issuperset(range(self.partitions))
        return not is_closed and not self.key_required


@dataclass(frozen=True, slots=True)
class EncodingTarget:
    """A topic as encoding sees it.

    Attributes:
        target: its partitions and limits.
        batch_bytes: how large to make its batches.
    """

    target: Target
    batch_bytes: int


@dataclass(frozen=True, slots=True)
class Aside:
    """What of a transaction did not go where it was addressed; no row is in two of the first three.

    Attributes:
        parked: went back to their timer topic to wait: their target takes no writes for now, or
            they are in excess of their slot.
        letters: dead letters that went back because the dead-letter topic takes nothing; some of
            them may have become dead letters only now.
        dead_lettered: became dead letters.
        reasons: of `dead_lettered`, how many for which reason.
        held: what waits for timer partitions then, in the state topic.
        moved: whether some of it was moved to its partition.
    """

    parked: Int64 = field(default_factory=lambda: NO_ROWS)
    letters: Int64 = field(default_factory=lambda: NO_ROWS)
    dead_lettered: Int64 = field(default_factory=lambda: NO_ROWS)
    reasons: Mapping[str, int] = field(default_factory=dict)
    held: Mapping[TopicPartition, Held] = field(default_factory=dict)
    moved: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """One batch and where it goes.

    Attributes:
        topic, partition: where to.
        batch: the records.
        source: TIMER_SOURCE of its record if it holds one only, else None.
        is_whole: it was held, and cannot be divided (held_queue.py).
    """

    topic: str
    partition: int
    batch: Batch
    source: bytes | None
    is_whole: bool = False


@dataclass(frozen=True, slots=True)
class Encoded:
    """Deliveries as batches, and what they were made from.

    Attributes:
        parts: the batches; those of a partition are neighbours, in their order.
        aside: rows that do not go where they were addressed.
        used_targets: each topic that the encoding depends on, as it was then.
        refused: sources of the records that the broker had refused.
    """

    parts: list[Part]
    aside: Aside
    used_targets: Mapping[str, EncodingTarget]
    refused: frozenset[bytes]
