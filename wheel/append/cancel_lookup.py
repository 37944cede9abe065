"""Finds the timers that a batch's cancels may match, in the log and in the batch itself.

Ids are compared in two steps: the 40-bit hash in every log record finds candidates; the message of
each candidate has the partition, the first offset and the id itself. The result is columns, in
which timers and cancels of one partition and id have the same `group`.

Only ingest calls this, before it takes engine.lock. It alone writes the log, so a result stays true
until the batch is committed, except that dequeue may unlink delivered hours.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc

from duewheel.checkpoints.commit_and_close_pages import Commit
from duewheel.errors import CorruptFile
from duewheel.schemas.arrays import Bool, Int32, Int64
from duewheel.schemas.batches import ANY_OFFSET, TimerBatch, TopicPartition
from duewheel.schemas.columns import Column, binary, choose, concat, lengths, take
from duewheel.schemas.hashing import source_names
from duewheel.wheel.append.cancel_outcomes import PAIRS_AT_ONCE
from duewheel.wheel.append.id_index import ROWS_MIN, STEPS_MAX, IdIndex
from duewheel.wheel.slots import hour_of
from duewheel.wheel.storage.byte_layouts import (
    FLAG_DEAD_LETTER,
    MAGIC_ABANDONED,
    PREFIX,
    RECORD,
    RECORD_BYTES,
    id_hash_of,
    is_cancelled,
    slots_in,
)
from duewheel.wheel.storage.data_directory import DataDirectory
from duewheel.wheel.storage.message_store import Prefixes, split_by_limits
from duewheel.wheel.storage.timer_log import Records

_PARTITION_BITS = 23  # beside the 40 bits of a hash
_NONE: Int64 = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class CancelLimits:
    """Bounds of what resolving a batch's cancels keeps in memory.

    Attributes:
        index_rows_min: the fewest rows that an index of ids is made for.
        chain_steps_max: the longest chain of the index that is walked; beyond it the logs are
            scanned.
        forget_from: the rows of one id from which on the index forgets those that decide nothing.
        pairs_at_once: cancels and timers compared at a time, unless one cancel has more.
    """

    index_rows_min: int = ROWS_MIN
    chain_steps_max: int = STEPS_MAX
    forget_from: int = 64
    pairs_at_once: int = PAIRS_AT_ONCE


@dataclass(frozen=True, slots=True)
class LoggedTimers:
    """Timers of the log, in any order.

    Attributes:
        partition: index in the batch's partitions.
        id_hash, timer_id: of each; no id is empty.
        first_offset, offset: of the first copy, and of this one.
        slot: in which it leaves, or has left.
        cancelled: whether a cancel of an earlier batch has cancelled it.
        hour, position: of its log record.
    """

    partition: Int32
    id_hash: Int64
    timer_id: Column
    first_offset: Int64
    offset: Int64
    slot: Int64
    cancelled: Bool
    hour: Int64
    position: Int64

    def __len__(self) -> int:
        return len(self.offset)


@dataclass(frozen=True, slots=True)
class Candidates:
    """The timers that the cancels of a batch may match.

    Attributes:
        cancel_group: of each cancel.
        in_log: timers of earlier batches.
        log_group: of each of these.
        batch_rows: timers of the batch, as rows of it.
        batch_group: of each of these.
    """

    cancel_group: Int64
    in_log: LoggedTimers
    log_group: Int64
    batch_rows: Int64
    batch_group: Int64


class _Part(NamedTuple):
    """Records of one hour, the needed parts of their messages, and the records' positions."""

    records: Records
    prefix: Prefixes
    timer_id: Column
    position: Int64


class CancelLookup:
    """Looks up timers in one data directory. Not thread-safe: the engine owns it."""

    def __init__(self, directory: DataDirectory, limits: CancelLimits) -> None:
        self._directory = directory
        self._limits = limits
        self._index = IdIndex(directory, limits.index_rows_min, limits.chain_steps_max)

    def find(self, cancels: TimerBatch, batch: TimerBatch, commit: Commit) -> Candidates:
        """Finds the timers with the partition and id of any of the cancels.

        Args:
            cancels: at least one row that cancels.
            batch: the timers of the same batch, with the same `partitions`.
            commit: the newest, with the lengths of the logs.

        Raises:
            CorruptFile: the log is damaged, or a message of a candidate.
        """
        hashes = np.unique(cancels.id_hash)
        # The only match of a chase, or of a cancel that names one timer, may be an old timer whose
        # row the index has forgotten: for their ids the logs are scanned.
        some = (cancels.origin_offset != cancels.offset) | (cancels.named_offset != ANY_OFFSET)
        in_log = self._in_log(hashes, cancels.id_hash[some], batch.partitions, commit)
        rows = np.flatnonzero(np.isin(batch.id_hash, hashes) & ~batch.rejected)
        own = batch.take(rows)
        default = source_names(own.partitions, own.partition, own.origin_offset)
        group = _groups(
            np.concatenate([cancels.partition, in_log.partition, own.partition]),
            np.concatenate([cancels.id_hash, in_log.id_hash, own.id_hash]),
            concat(
                [
                    cancels.timer_id,
                    in_log.timer_id,
                    choose(lengths(own.timer_id) == 0, default, own.timer_id),
                ]
            ),
        )
        first, second = len(cancels), len(cancels) + len(in_log)
        logged = group[first:second]
        over = _decides_nothing(in_log, logged, self._limits.forget_from)
        self._index.forget(in_log.hour[over], in_log.position[over])
        return Candidates(group[:first], in_log, logged, rows, group[second:])

    def close(self) -> None:
        """Drops the index."""
        self._index.close()

    def _in_log(
        self, hashes: Int64, whole: Int64, partitions: list[TopicPartition], commit: Commit
    ) -> LoggedTimers:
        parts: list[_Part] = []
        for hour, positions in self._index.positions(hashes, whole, commit):
            try:
                parts += self._read(hour, commit.hours[hour].log_bytes, positions)
            except CorruptFile:
                # An hour that dequeue has unlinked meanwhile is delivered: no candidate in it.
                if hour >= self._directory.state.live.gc_hour:
                    raise
        records = np.concatenate([np.empty(0, RECORD), *(part.records for part in parts)])
        prefix = np.concatenate([np.empty(0, PREFIX), *(part.prefix for part in parts)])
        timer_id = concat([binary([]), *(part.timer_id for part in parts)])
        sources, source = self._directory.topics.sources(prefix)
        index = {p: number for number, p in enumerate(partitions)}
        partition = np.array([index.get(p, -1) for p in sources], np.int32)[source]
        rows = np.flatnonzero((partition >= 0) & ((prefix["flags"] & FLAG_DEAD_LETTER) == 0))
        records, prefix, partition = records[rows], prefix[rows], partition[rows]
        first_offset = prefix["origin_offset"].astype(np.int64)
        given = take(timer_id, rows)
        default = source_names(partitions, partition, first_offset)
        slot = slots_in(records, self._directory.config.precision_ms)
        return LoggedTimers(
            partition,
            id_hash_of(records["reserved"]),
            choose(lengths(given) == 0, default, given),
            first_offset,
            prefix["source_offset"].astype(np.int64),
            slot,
            is_cancelled(records),
            hour_of(slot, self._directory.config.precision_ms),
            np.concatenate([_NONE, *(part.position for part in parts)])[rows],
        )

    def _read(self, hour: int, log_bytes: int, positions: Int64) -> Iterator[_Part]:
        """Reads the live records at these positions, a bounded number of messages at once."""
        records = self._directory.log.view(hour, log_bytes).take(positions // RECORD_BYTES)
        alive = records["magic"] != MAGIC_ABANDONED
        records, positions = records[alive], positions[alive]
        end = 0
        for block in split_by_limits(records):
            begin, end = end, end + len(block)
            prefix, timer_id = self._directory.messages.read_ids(hour, block)
            yield _Part(block, prefix, timer_id, positions[begin:end])


def _decides_nothing(timers: LoggedTimers, group: Int64, rows_min: int) -> Bool:
    """Selects rows, of ids with many, that do not affect the outcome of a new cancel: their timer's
    last copy is cancelled, and another timer of the id was written later.
    """
    if len(timers) < rows_min:
        return np.zeros(len(timers), np.bool_)
    order = np.lexsort((timers.offset, timers.first_offset, group))
    groups, first = group[order], timers.first_offset[order]
    last_of_group = np.append(groups[1:] != groups[:-1], True)[: len(order)]
    last_copy = last_of_group | np.append(first[1:] != first[:-1], True)[: len(order)]
    timer = np.cumsum(np.append(0, last_copy[:-1]))[: len(order)]
    is_over = timers.cancelled[order][last_copy] & ~last_of_group[last_copy]
    over = np.zeros(len(order), np.bool_)
    over[order] = is_over[timer]
    return over & (np.bincount(group)[group] >= rows_min)


def _groups(partition: Int32, id_hash: Int64, timer_id: Column) -> Int64:
    """Returns a number for each row: equal for equal partition and id."""
    encoded: Any = pc.dictionary_encode(timer_id)
    same_id = np.asarray(encoded.indices, np.int64)
    key = id_hash << _PARTITION_BITS | partition
    same_key = np.unique(key, return_inverse=True)[1]
    numbers = same_key * max(len(key), 1) + same_id
    groups: Int64 = np.unique(numbers, return_inverse=True)[1]
    return groups
