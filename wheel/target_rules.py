"""Whether a target topic takes a record, in which partition, and if not, why.

The rules take columns; a single record is a column of one. Deliveries (dequeue/fate.py) and the
commands that write records (kafka/ledger/command_ledger.py) apply the same ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from duewheel.checkpoints.progress import COPY_BYTES_MAX
from duewheel.schemas.arrays import Bool, Int32, Int64
from duewheel.schemas.batches import NO_KEY, NO_PARTITION
from duewheel.schemas.wire.codec_names import Codec

_TOPIC_SHOWN_MAX = 249  # Kafka's limit for a name; a longer one, a mistake, is shown in part


class Reason(IntEnum):
    """The reason why a record cannot be published; NONE if it can."""

    NONE = 0
    UNKNOWN_TARGET_TOPIC = 1
    TARGET_NOT_AUTHORIZED = 2
    BAD_TARGET_PARTITION = 3
    KEY_REQUIRED = 4
    RECORD_TOO_LARGE = 5
    RECORD_REFUSED = 6
    TARGET_UNAVAILABLE = 7
    FORBIDDEN = 8  # by a policy: code and sentence of the dead letter are the policy's

    @property
    def code(self) -> str:
        """As dead letters, counts and verdicts have it."""
        return self.name.lower()


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
    slow_by: str = ""  # its setting that makes appends slow; empty if there is none
    is_unknown: bool = False  # its metadata has not come yet, so the other values mean nothing
    batch_bytes: int = 0  # the size of its batches before compression
    codec: Codec = "none"  # of all batches to it

    @property
    def identity(self) -> tuple[str, int]:
        """Another topic of this name, or one with more partitions, has another."""
        return self.topic_id, self.partitions

    @property
    def available(self) -> Sequence[int]:
        """The partitions that take writes; all of them if none does."""
        every = range(self.partitions)
        if not self.unavailable:
            return every
        return [number for number in every if number not in self.unavailable] or every

    def takes_writes(self, partition: int) -> bool:
        """Whether it has a partition of this number that takes writes now."""
        return partition < self.partitions and partition not in self.unavailable

    @property
    def why_unavailable(self) -> str:
        """Why its unavailable partitions take no writes, as far as metadata shows."""
        return self.closed_by or "no leader, no log yet, or too few replicas in sync"

    @property
    def takes_letters(self) -> bool:
        """Whether it takes dead letters: a partition takes writes, and the topic takes records
        without a key, as some dead letters are.
        """
        is_closed = self.refusal or self.unavailable.issuperset(range(self.partitions))
        return not is_closed and not self.key_required

    def partition_of(self, key_hash: int, sticky: int) -> int:
        """The partition of a record that requests none: by its key, or any that takes writes, for
        all of one `sticky` the same. 0 without partitions.
        """
        if not self.partitions:
            return 0
        free = self.available[sticky % len(self.available)]
        return int(key_partition(np.array(key_hash), np.array(self.partitions), np.array(free)))


NO_TARGET = Target(0, 0)


def key_partition(key_hash: Int32 | Int64, partitions: Int64, sticky: Int64) -> Int64:
    """The partition of records that request none: by the key, as Kafka's clients choose it, or
    without a key `sticky`.
    """
    chosen: Int64 = np.where(key_hash == NO_KEY, sticky, key_hash % partitions)
    return chosen


def why_not(
    targets: Sequence[Target], target: Int32, partition: Int32, keyless: Bool, too_large: Bool
) -> Int32:
    """The first Reason, as a number, why each record can never be written to its target.

    Args:
        target: of each record, the index in `targets`.
        partition: the requested one, or NO_PARTITION.
        too_large: its batch, if alone, is larger than `batch_bytes_max`.
    """
    refusal = np.array([each.refusal for each in targets], np.int32)[target]
    partitions = np.array([each.partitions for each in targets], np.int32)[target]
    key_required = np.array([each.key_required for each in targets], np.bool_)[target]
    # The last of these that applies to a record counts.
    reason = np.where(too_large, Reason.RECORD_TOO_LARGE, Reason.NONE).astype(np.int32)
    reason[key_required & keyless] = Reason.KEY_REQUIRED
    reason[(partition >= partitions) | (partition < NO_PARTITION)] = Reason.BAD_TARGET_PARTITION
    return np.where(refusal != Reason.NONE, refusal, reason)


def reason_text(reason: Reason, topic: str, target: Target) -> str:
    """The reason as a sentence, with the topic's limits."""
    named = f"topic {topic[:_TOPIC_SHOWN_MAX]!r}"
    return {
        Reason.NONE: "",
        Reason.UNKNOWN_TARGET_TOPIC: f"{named} does not exist",
        Reason.TARGET_NOT_AUTHORIZED: f"no right to write to {named}",
        Reason.BAD_TARGET_PARTITION: f"{named} has partitions 0 to {target.partitions - 1}, "
        "the requested one is not among them",
        Reason.KEY_REQUIRED: f"{named} is compacted, its records need a key",
        Reason.RECORD_TOO_LARGE: f"{named} takes {target.batch_bytes_max} bytes at most, and a "
        f"copy for a timer topic has {COPY_BYTES_MAX} at most: the record with its headers needs "
        "more",
        Reason.RECORD_REFUSED: f"the broker refused this record for {named}",
        Reason.TARGET_UNAVAILABLE: f"{named} takes no writes for now, and the record cannot wait: "
        "its copy is more than the timer topic takes, or it is an answer",
    }[reason]
