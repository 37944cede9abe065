"""Deliveries in encoded form: batches, and the rows that do not go to their target.

A publisher makes these values before the transaction (`prepare`, or `renew`); the loop reads
`Aside` once the transaction is committed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from duewheel.checkpoints.held_copies import Held
from duewheel.checkpoints.pauses import NONE_PAUSED, PausedTimers
from duewheel.schemas.arrays import Int64
from duewheel.schemas.batches import TopicPartition
from duewheel.schemas.wire.compression import Codec
from duewheel.schemas.wire.record_batch import Batch

NO_ROWS: Int64 = np.empty(0, np.int64)


class Reason(IntEnum):
    """The reason why a row cannot be published; NONE if it can."""

    NONE = 0
    UNKNOWN_TARGET_TOPIC = 1
    TARGET_NOT_AUTHORIZED = 2
    BAD_TARGET_PARTITION = 3
    KEY_REQUIRED = 4
    RECORD_TOO_LARGE = 5
    RECORD_REFUSED = 6
    TARGET_UNAVAILABLE = 7
    HOT_SLOT = 8  # the policy of this name has forbidden it, as have those below
    EXPIRED = 9


@dataclass(frozen=True, slots=True)
class Target:
    """The loaded metadata of a target topic."""

    partitions: int  # the number of partitions; 0 if it takes no record
    batch_bytes_max: int  # the largest batch it takes, header included
    key_required: bool = False  # whether it is compacted, and so takes no record without a key
    refusal: Reason = Reason.NONE  # why it takes no record, else NONE
    unavailable: frozenset[int] = frozenset()  # partitions that take no writes for now
    topic_id: str = ""  # Kafka's id of the topic that has this name now; empty if it has none
    # The setting that closes all partitions to writes; empty if there is none
    closed_by: str = ""
    is_unknown: bool = False  # its metadata has not come yet, so the other values mean nothing
    batch_bytes: int = 0  # the size of its batches before compression
    codec: Codec = "none"  # of its deliveries

    @property
    def available(self) -> Sequence[int]:
        """The partitions that take writes; all of them if none does."""
        every = range(self.partitions)
        if not self.unavailable:
            return every
        return [number for number in every if number not in self.unavailable] or every

    @property
    def takes_letters(self) -> bool:
        """Whether it takes dead letters: a partition takes writes, and the topic takes records
        without a key, as some dead letters are.
        """
        is_closed = self.refusal or self.unavailable.issuperset(range(self.partitions))
        return not is_closed and not self.key_required


@dataclass(frozen=True, slots=True)
class Aside:
    """The rows of a transaction that did not go to their target. No row is in two of the first
    four.
    """

    # Rows that went back to their timer topic because their target takes no writes for now
    parked: Int64 = field(default_factory=lambda: NO_ROWS)
    postponed: Int64 = field(default_factory=lambda: NO_ROWS)  # the same, because of a policy
    # Dead letters that went back because the dead-letter topic takes no writes; some of them may
    # have become dead letters only now.
    letters: Int64 = field(default_factory=lambda: NO_ROWS)
    dead_lettered: Int64 = field(default_factory=lambda: NO_ROWS)  # rows that became dead letters
    # The number of `dead_lettered` rows by reason
    reasons: Mapping[str, int] = field(default_factory=dict)
    # The held copies after the transaction
    held: Mapping[TopicPartition, Held] = field(default_factory=dict)
    moved: bool = False  # whether held copies were moved to their partition


@dataclass(frozen=True, slots=True)
class Part:
    """One batch and its destination."""

    topic: str
    partition: int
    batch: Batch
    source: bytes | None  # TIMER_SOURCE of its record if it has only one
    is_whole: bool = False  # a batch of held copies, which cannot be divided (held_queue.py)


@dataclass(frozen=True, slots=True)
class Encoded:
    """Deliveries as batches, and the metadata that they depend on."""

    parts: list[Part]  # those of a partition are neighbours, in their order
    aside: Aside  # rows that do not go to their target
    # Each topic that the encoding depends on, with the metadata that was used
    used_targets: Mapping[str, Target]
    refused: frozenset[bytes]  # sources of the records that the broker had refused
    copy_key: bytes  # of the MACs of copies; empty: they have none
    encoded_ms: int  # by the clock of the rows' waits
    paused: PausedTimers = NONE_PAUSED  # the topics that were paused

    @property
    def partitions(self) -> int:
        """The number of partitions that are written to."""
        return len({(part.topic, part.partition) for part in self.parts})
