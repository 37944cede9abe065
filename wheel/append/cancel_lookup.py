"""Finds the timers that a batch's cancels may match, in the log and in the batch itself.

Ids are compared in two steps: the lookup hash in every log record, of partition and id, finds
candidates; the message of each candidate has the partition, the first offset and the id itself. The
result is columns; timers and cancels of one partition and id have the same `group`.

A lookup reads a bounded number of messages, however many timers one id has. The index returns so
many records at most. Timers that are out, or cancelled, are taken out of later lookups (`_settled`)
unless the timer is the newest of its id. A cancel that may match an unread timer is chased. A chase
needs no timer that was out when it was written; if one is unread, the reply is `unknown`, unless
the cancel has stopped a timer. Cancels that are read again after a loss read all timers that they
may stop: their replies may be written already.

Only ingest calls this, before it takes engine.lock. It alone writes the log, so a result stays true
until the batch is committed, except that dequeue may unlink delivered hours.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from duewheel.checkpoints.commit_and_close_pages import Close, Commit
from duewheel.errors import CorruptFile
from duewheel.schemas.arrays import Bool, Int32, Int64
from duewheel.schemas.batches import ANY_OFFSET, TimerBatch, TopicPartition
from duewheel.schemas.columns import Column, binary, choose, coded, concat, lengths, take
from duewheel.schemas.hashing import source_names
from duewheel.wheel.append.cancel_outcomes import PAIRS_AT_ONCE, PAIRS_MAX
from duewheel.wheel.append.id_index import (
    CANCELLED,
    DELIVERED,
    ROWS_MAX,
    SETTLED_MAX,
    IdIndex,
    LookedUp,
)
from duewheel.wheel.slots import hour_of
from duewheel.wheel.storage.byte_layouts import (
    FLAG_DEAD_LETTER,
    MAGIC_ABANDONED,
    PREFIX,
    RECORD,
    RECORD_BYTES,
    is_cancelled,
    lookup_hash_of,
    slots_in,
)
from duewheel.wheel.storage.data_directory import DataDirectory
from duewheel.wheel.storage.message_store import Prefixes, split_by_limits
from duewheel.wheel.storage.timer_log import Records

_PARTITION_BITS = 23  # beside the 40 bits of a hash
_NONE: Int64 = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class CancelLimits:
    """Bounds of the work and the memory for cancels."""

    # Timers in the logs that a batch reads, and as many that are out or cancelled. More than one
    # timer has copies within `settled_ms`, or cancels of its id would be chased for ever.
    rows_max: int = ROWS_MAX
    # Timers of one id that are out or cancelled: how many of them a chase, or a cancel of one
    # timer, reads.
    settled_max: int = SETTLED_MAX
    settled_from: int = 64  # from so many timers of one id on, those are taken out of other lookups
    settled_ms: int = 10_000  # for how long a timer must be out
    pairs_max: int = PAIRS_MAX  # pairs of chases and timers of their ids that a batch compares
    pairs_at_once: int = PAIRS_AT_ONCE  # pairs in memory at a time, unless one cancel has more


@dataclass(frozen=True, slots=True)
class LoggedTimers:
    """Timers of the log, in any order."""

    partition: Int32  # a number; the batch's partitions come first
    lookup_hash: Int64
    timer_id: Column  # never empty
    first_offset: Int64  # of the first copy
    offset: Int64  # of this copy
    slot: Int64  # the slot it is delivered in
    cancelled: Bool  # whether a cancel of an earlier batch has cancelled it
    hour: Int64
    position: Int64  # of its record in the hour's log

    def __len__(self) -> int:
        return len(self.offset)


@dataclass(frozen=True, slots=True)
class Candidates:
    """The timers that the cancels of a batch may match."""

    cancel_group: Int64
    must_chase: Bool  # cancels that may match unread timers
    unseen: Bool  # the same for chases, and timers that were out or cancelled
    in_log: LoggedTimers  # timers of earlier batches
    log_group: Int64
    batch_rows: Int64  # timers of the batch, as rows of it
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
        self._index = IdIndex(directory, limits.rows_max, limits.settled_max)
        self._settled_slot = 0  # the last slot of timers taken out as delivered

    def find(self, cancels: TimerBatch, batch: TimerBatch, commit: Commit) -> Candidates:
        """Finds the timers with the partition and id of any of the cancels, at least one. `batch`
        has the timers of the same batch, with the same `partitions`.

        Raises:
            CorruptFile: the log is damaged, or a message of a candidate.
        """
        close = self._directory.state.close()
        assert close is not None, "checked when the engine was made"
        again = read_again(cancels, close, standby=self._directory.state.standby)
        wanted = self._hashes(cancels)
        # The only match of a chase, or of a cancel that names one timer, may be out for long.
        others = (cancels.origin_offset != cancels.offset) | (cancels.named_offset != ANY_OFFSET)
        hashes, first_row = np.unique(wanted, return_index=True)
        looked_up = self._index.find(
            hashes,
            _topics(cancels)[first_row],
            np.unique(wanted[others]),
            commit,
            whole=bool(again.any()),
        )
        in_log = self._in_log(looked_up, batch.partitions, commit)
        own_hash = self._hashes(batch)
        rows = np.flatnonzero(np.isin(own_hash, wanted) & ~batch.rejected)
        own = batch.take(rows)
        default = source_names(own.partitions, own.partition, own.origin_offset)
        group = _groups(
            np.concatenate([cancels.partition, in_log.partition, own.partition]),
            np.concatenate([wanted, in_log.lookup_hash, own_hash[rows]]),
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
        delivered = np.isin(wanted, looked_up.delivered)
        unseen = np.isin(wanted, looked_up.unseen) & others
        late = np.where(others, unseen & (cancels.chase_slot < self._settled_slot), True)
        must_chase = np.isin(wanted, looked_up.left) | (delivered & late)
        self._settle(in_log, logged, looked_up, self._settled_until(close, again))
        return Candidates(group[:first], must_chase, unseen, in_log, logged, rows, group[second:])

    def close(self) -> None:
        self._index.close()

    def _hashes(self, batch: TimerBatch) -> Int64:
        return self._directory.lookup_hashes(batch.id_hash, batch.partitions, batch.partition)

    def _settled_until(self, close: Close, again: Bool) -> int:
        """Returns the last slot whose timers may be taken out of later lookups: they are out, and
        no cancel that is read again can stop them.
        """
        slot = close.lower
        if again.any():
            mirror = self._directory.state.mirror()
            assert mirror is not None, "dequeue mirrors the progress before it decides"
            slots = [part.delivered_slot for part in mirror.progress.partitions.values()]
            slot = min([slot, *slots])
        return slot - self._limits.settled_ms // self._directory.config.precision_ms

    def _settle(self, timers: LoggedTimers, group: Int64, looked_up: LookedUp, until: int) -> None:
        for hour, positions in looked_up.positions.items():
            # Not timers: abandoned records, for example.
            rest = np.setdiff1d(positions, timers.position[timers.hour == hour])
            self._index.settle(np.full(len(rest), hour), rest, CANCELLED)
        # An id is read again until all of its records are settled that can be.
        partial = np.isin(timers.lookup_hash, looked_up.left)
        few = self._limits.settled_from
        for kind, over in _settled(timers, group, until, few, partial).items():
            self._index.settle(timers.hour[over], timers.position[over], kind)
            if kind == DELIVERED and over.any():
                self._settled_slot = max(self._settled_slot, int(timers.slot[over].max()))

    def _in_log(
        self, looked_up: LookedUp, partitions: list[TopicPartition], commit: Commit
    ) -> LoggedTimers:
        parts: list[_Part] = []
        for hour, positions in looked_up.positions.items():
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
        # A hash may be equal to one of a partition that the batch lacks: that timer stays LIVE.
        partitions = list(dict.fromkeys([*partitions, *sources]))
        index = {p: number for number, p in enumerate(partitions)}
        partition = np.array([index[p] for p in sources], np.int32)[source]
        rows = np.flatnonzero((prefix["flags"] & FLAG_DEAD_LETTER) == 0)
        records, prefix, partition = records[rows], prefix[rows], partition[rows]
        first_offset = prefix["origin_offset"].astype(np.int64)
        given = take(timer_id, rows)
        default = source_names(partitions, partition, first_offset)
        slot = slots_in(records, self._directory.config.precision_ms)
        return LoggedTimers(
            partition,
            lookup_hash_of(records["reserved"]),
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


def read_again(cancels: TimerBatch, close: Close, *, standby: bool) -> Bool:
    """Returns which cancels have been taken before, by this shard or by a standby's owner."""
    c = np.array([close.marks.get(p, 0) for p in cancels.partitions], np.int64)
    again: Bool = (cancels.offset < c[cancels.partition]) | standby
    return again


def _settled(
    timers: LoggedTimers, group: Int64, until: int, rows_min: int, partial: Bool
) -> dict[int, Bool]:
    """Selects the timers that a cancel of their id need not read, for each class of the index.

    These are all copies of a timer whose last copy is cancelled, or is in a slot up to `until`,
    unless it is the newest one read of its id, or the id has few timers and all were read. So the
    newest timer of an id is always read: the outcome of a later cancel depends on it. For every
    timer they are also the earlier copies in slots up to `until`: only the last copy decides, and
    one timer that is rolled or parked over and over would fill each lookup of its id.
    """
    none = np.zeros(len(timers), np.bool_)
    if len(timers) < rows_min and not partial.any():
        return {CANCELLED: none, DELIVERED: none}
    order = np.lexsort((timers.offset, timers.first_offset, group))
    groups, first = group[order], timers.first_offset[order]
    last_of_group = np.append(groups[1:] != groups[:-1], True)[: len(order)]
    last_copy = last_of_group | np.append(first[1:] != first[:-1], True)[: len(order)]
    timer = np.cumsum(np.append(0, last_copy[:-1]))[: len(order)]
    many = np.bincount(group)[group] >= rows_min
    cancelled, left = timers.cancelled[order], timers.slot[order] <= until
    replaced = left & ~last_copy
    result = {}
    for kind, is_over in ((CANCELLED, cancelled), (DELIVERED, left & ~cancelled)):
        over = none.copy()
        by_last = (is_over & ~last_of_group)[last_copy][timer]
        over[order] = by_last | replaced if kind == CANCELLED else by_last & ~replaced
        result[kind] = over & (many | partial)
    return result


def _topics(batch: TimerBatch) -> Int64:
    """Returns the number of each row's topic."""
    numbers = {topic: number for number, (topic, _) in enumerate(batch.partitions)}
    of_partitions = np.array([numbers[topic] for topic, _ in batch.partitions], np.int64)
    topics: Int64 = of_partitions[batch.partition]
    return topics


def _groups(partition: Int32, lookup_hash: Int64, timer_id: Column) -> Int64:
    """Returns a number for each row: equal for equal partition and id."""
    same_id, _ = coded(timer_id)
    key = lookup_hash << _PARTITION_BITS | partition
    same_key = np.unique(key, return_inverse=True)[1]
    numbers = same_key * max(len(key), 1) + same_id
    groups: Int64 = np.unique(numbers, return_inverse=True)[1]
    return groups
