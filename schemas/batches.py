"""The two batch types at the wheel's seams: TimerBatch on the way in, Deliveries on the way out.

Both are columns: one array per field, all of the same length. No object per message exists
anywhere between Spark and Kafka. Encoded parts are Kafka v2 record bytes (see record_codec.py):

    key_value   varint(len key) key varint(len value) value      (-1 for null)
    headers     { varint(len name) name varint(len value) value } * header_count

Publishing therefore joins bytes and decodes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from duewheel.schemas.arrays import Bool, Int32, Int64

NO_PARTITION = -1  # no target partition requested
NO_KEY = -1  # key hash of a null key
ACCEPTED = -1  # code of a row that is not rejected
NO_LEVEL = 0  # a due time that was not requested by a level
LEVEL_MAX = 255  # one byte on disk
ANY_TIME = -(2**62)  # not_before_ms of a row that does not wait
ANY_OFFSET = -1  # named_offset of a cancel that matches all timers of its id
NO_SLOT = -(2**62)  # chase_slot of a user's cancel
NEVER = 2**62  # not_before_ms of a row that must not go to its target: above all instants
DROPPED = NEVER + 1  # the same, of one that becomes no dead letter either: above NEVER
NO_POLICY = -1  # policy of a row that no policy postpones

TopicPartition = tuple[str, int]
OffsetRanges = Mapping[TopicPartition, tuple[int, int]]  # first offset, and the end

RETIRED = "~"  # in the name of a deleted or recreated timer topic: Kafka forbids the character


def topic_numbers(
    partitions: Sequence[TopicPartition], before: Sequence[str] = ()
) -> tuple[list[str], Int64]:
    """The topics `before` and of these partitions, each once, and each partition's index in them.

    >>> topic_numbers([("a", 0), ("b", 0), ("a", 1)])
    (['a', 'b'], array([0, 1, 0]))
    """
    topics = list(dict.fromkeys([*before, *(topic for topic, _ in partitions)]))
    number_of = {topic: number for number, topic in enumerate(topics)}
    return topics, np.array([number_of[topic] for topic, _ in partitions], np.int64)


def is_retired(topic: str) -> bool:
    """Returns whether rows under this name are of a deleted or recreated topic."""
    return RETIRED in topic


@dataclass(frozen=True, slots=True)
class TimerBatch:
    """Timers of one ingest batch, in Kafka order within each source partition. Every fact about a
    row is a column, so there are many.
    """

    partitions: list[TopicPartition]  # indexed by `partition`
    partition: Int32
    offset: Int64  # source offset; rising within a partition
    # Offset of the timer's first copy: another one than `offset` only in a copy
    origin_offset: Int64
    due_ms: Int64  # requested due time, epoch ms; meaningless where `rejected`
    # Of a waiting copy: its slot is no earlier, even if it is due; else ANY_TIME
    not_before_ms: Int64
    codes: list[str]  # error codes, indexed by `code`
    # Index in `codes`, or ACCEPTED. Any other row goes to the dead-letter topic as soon as
    # possible; `targets[target]` is that topic and `headers` already end with the error headers.
    code: Int32
    # The row is a timer, or rejected. False for a pure cancel: its due time and target mean
    # nothing; its key, value and user's headers go into its reply.
    timer: Bool
    # The row cancels the timers of its partition with the same id and a lower origin offset: a pure
    # cancel, or the first copy of a reschedule. Its `timer_id` is not empty. A chase
    # (wheel/dequeue/cancel_replies.py) is a pure cancel, too: its `origin_offset` is that of the
    # request, below `offset`.
    cancels: Bool
    # Of such a row: origin offset of the one timer that it matches, or ANY_OFFSET
    named_offset: Int64
    targets: list[str]  # topic names, indexed by `target`
    target: Int32
    target_partition: Int32  # requested partition or NO_PARTITION
    key_hash: Int32  # murmur2(key) & 0x7fffffff, as Kafka's Java client partitions, or NO_KEY
    id_hash: Int64  # 40-bit hash of the timer id, 0 … 2**40 - 1
    timer_id: pa.LargeBinaryArray  # empty where the id is the default "topic-partition@offset"
    key_value: pa.LargeBinaryArray  # see the module's head
    headers: pa.LargeBinaryArray  # the user's headers, request headers taken out
    header_count: Int32  # number of headers in `headers`
    roll_times: Int32  # how often the timer has been rolled
    # How often in a row it was parked, or waited as a dead letter; at least 1 if it was spread
    retries: Int32
    level: Int32  # the DELAY level that requested its due time, 0 for none
    timestamp_ms: Int64  # of the record; a timer due more than the roll window later is rolled
    # Of a chase, the last slot delivered in full when it was written, else NO_SLOT
    chase_slot: Int64
    chase_flags: Int32  # of a chase, CHASE_FLAG_FOUND and CHASE_FLAG_RESCHEDULE, else 0
    # The row is a recurring timer: its `headers` have its recurrence (request/recurrences.py),
    # which its deliveries have not.
    recurring: Bool
    # Of these the user's record: it is due at its timestamp, and fires nothing: its first copy is
    # written then.
    seed: Bool
    forged: Bool  # whether it has headers of copies that duewheel did not write: they were ignored
    # The row is a timer that is dropped if an earlier one of its partition and id is pending. It
    # has an id of its own, and cancels nothing.
    keeps: Bool

    @classmethod
    def none(cls) -> TimerBatch:
        no32, no64, no = np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.bool_)
        text: pa.LargeBinaryArray = pa.array([], pa.large_binary())
        return cls(
            *([], no32, no64, no64, no64, no64, [], no32, no, no, no64, [], no32, no32, no32, no64),
            *(text, text, text, no32, no32, no32, no32, no64, no64, no32, no, no, no, no),
        )

    def __len__(self) -> int:
        return len(self.offset)

    @property
    def rejected(self) -> Bool:
        """Which rows are dead letters."""
        rejected: Bool = self.code != ACCEPTED
        return rejected

    def rejections(self) -> dict[str, int]:
        """How many rows are rejected, by code."""
        rows = np.bincount(self.code[self.rejected], minlength=len(self.codes)).tolist()
        counts: dict[str, int] = {}
        for code, count in zip(self.codes, rows, strict=True):  # two rules may have the same
            if count:
                counts[code] = counts.get(code, 0) + count
        return counts

    def take(self, rows: Int64) -> TimerBatch:
        """The batch of the given rows, in the given order."""
        return _taken(self, rows)

    def extended_by(self, *others: TimerBatch) -> TimerBatch:
        """The rows of all, these first."""
        batches = [self, *others]
        partitions = list(dict.fromkeys(p for each in batches for p in each.partitions))
        targets = list(dict.fromkeys(name for each in batches for name in each.targets))
        codes = list(dict.fromkeys(code for each in batches for code in each.codes))
        renamed = [_renamed(each, partitions, targets, codes) for each in batches]
        return replace(renamed[0], **_joined(renamed))


def _renamed(
    batch: TimerBatch, partitions: list[TopicPartition], targets: list[str], codes: list[str]
) -> TimerBatch:
    """The same rows, with indexes into the given lists."""
    partition_index = {partition: i for i, partition in enumerate(partitions)}
    target_index = {name: i for i, name in enumerate(targets)}  # a target per row is possible
    partition = np.array([partition_index[p] for p in batch.partitions], np.int32)
    target = np.array([target_index[name] for name in batch.targets], np.int32)
    code = np.array([*(codes.index(name) for name in batch.codes), ACCEPTED], np.int32)
    return replace(
        batch,
        partitions=partitions,
        partition=partition[batch.partition],
        targets=targets,
        target=target[batch.target],
        codes=codes,
        code=code[batch.code],  # ACCEPTED is the last one
    )


class PolicyLabel(NamedTuple):
    """A policy of delivery as its counts and its dead letters show it."""

    name: str  # in metrics, in the log, and as the code of its dead letters
    refusal: str  # the sentence of its dead letters


@dataclass(frozen=True, slots=True)
class Deliveries:
    """Messages ready to be published, in the order of their delivery. Every fact that routing and
    encoding need is a column, as in TimerBatch, except:
    """

    targets: list[str]
    target: Int32
    target_partition: Int32
    key_hash: Int32
    due_ms: Int64
    source_partitions: list[TopicPartition]  # the timer partitions, indexed by `source_partition`
    source_partition: Int32  # the timer's own partition
    origin_offset: Int64  # NO_ORIGIN if the topic was deleted or recreated
    source: pa.LargeBinaryArray  # "topic-partition@offset": source partition and origin offset
    timer_id: pa.LargeBinaryArray  # never empty: default ids are filled in
    key_value: pa.LargeBinaryArray
    headers: pa.LargeBinaryArray
    header_count: Int32
    roll_times: Int32
    retries: Int32  # as in TimerBatch
    level: Int32
    dead_letter: Bool  # the row is a dead letter: of the added headers it gets TIMER_SOURCE only
    # The row is a copy on its way back to its timer topic, rolled, waiting or a chase: its
    # `headers` are complete.
    is_copy: Bool
    # Of a row that a policy postpones (wheel/policies/policy.py): it returns to its timer topic
    # with this instant, becomes a dead letter if that is NEVER, or is left out if that is DROPPED;
    # else ANY_TIME.
    not_before_ms: Int64
    policies: list[PolicyLabel]  # indexed by `policy`
    policy: Int32  # the one that postpones the row, or NO_POLICY
    # The row is the reply to a cancel: of the added headers it gets TIMER_SOURCE only, and it never
    # waits.
    answer: Bool

    @classmethod
    def none(cls) -> Deliveries:
        no32, no64, no = np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.bool_)
        text: pa.LargeBinaryArray = pa.array([], pa.large_binary())
        return cls(
            *([], no32, no32, no32, no64, [], no32, no64, text, text, text, text),
            *(no32, no32, no32, no32, no, no, no64, [], no32, no),
        )

    def __len__(self) -> int:
        return len(self.target)

    def take(self, rows: Int64) -> Deliveries:
        return _taken(self, rows)

    def extended_by(self, others: Deliveries) -> Deliveries:
        """These rows, then `others`, whose lists begin with those of these."""
        assert others.targets[: len(self.targets)] == self.targets
        assert others.source_partitions == self.source_partitions
        return replace(others, **_joined([self, others]))

    def slice(self, first: int, end: int) -> Deliveries:
        """The rows [first, end); copies nothing."""
        return _picked(self, lambda column: column[first:end], lambda column: column[first:end])


Rows = TypeVar("Rows", TimerBatch, Deliveries)


def _joined(batches: Sequence[Rows]) -> dict[str, Any]:
    """The columns of all, by field."""
    joined: dict[str, Any] = {}
    for name in batches[0].__slots__:
        parts = [getattr(each, name) for each in batches]
        if isinstance(parts[0], np.ndarray):
            joined[name] = np.concatenate(parts)
        elif isinstance(parts[0], pa.Array):
            joined[name] = pa.concat_arrays(parts)
    return joined


def _taken(rows_of: Rows, rows: Int64) -> Rows:
    picked = pa.array(rows, pa.int64())
    return _picked(rows_of, lambda column: column[rows], lambda column: column.take(picked))


def _picked(
    rows_of: Rows, from_array: Callable[[Any], Any], from_column: Callable[[Any], Any]
) -> Rows:
    """The same fields with some rows of every column. The lists that columns index stay as is."""
    columns = []
    for field in rows_of.__slots__:
        value = getattr(rows_of, field)
        if isinstance(value, np.ndarray):
            value = from_array(value)
        elif isinstance(value, pa.Array):
            value = from_column(value)
        columns.append(value)
    return type(rows_of)(*columns)
