"""Finds the timers that a batch's cancels may match, in the log and in the batch itself.

Ids are compared in two steps: the lookup hash in every log record, of partition and id, finds
candidates; the message of each candidate has the partition, the first offset and the id itself. The
result is columns; timers and cancels of one partition and id have the same `group`.

A lookup reads the heads of a bounded number of messages, however many timers one id has, and
however large they are. The index returns so many records at most. Timers that are out, or
cancelled, are taken out of later lookups (`_settled`) unless the timer is the newest of its id. A
cancel that may match an unread timer is chased; a timer that was read once is read again only by
cancels that match it, so the chases of an id end. A chase needs no timer that was out when it was
written; if one is unread, the reply is `unknown`, unless the cancel has stopped a timer. Cancels
that are read again after a loss read all timers that they may stop, in parts: their replies may be
written already.

A timer with `keep` reads a bounded number in any case: one that is pending decides, and one that is
overlooked lets it stay. Where all timers of an id have `keep` or `replace`, one is pending at most,
among the newest; so many other ids in a batch hide none.

Only ingest calls this, before it takes engine.lock. It alone writes the log, so a result stays true
until the batch is committed, except that dequeue may unlink delivered hours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np

from duewheel.checkpoints.commit_and_close_pages import Close, Commit
from duewheel.errors import CorruptFile
from duewheel.schemas.arrays import Bool, Int32, Int64, index_among
from duewheel.schemas.batches import ANY_OFFSET, TimerBatch, TopicPartition
from duewheel.schemas.columns import Column, choose, lengths, take
from duewheel.schemas.hashing import source_names
from duewheel.wheel.append.cancel_matches import PAIRS_AT_ONCE, PAIRS_MAX
from duewheel.wheel.append.id_index import ROWS_MAX, SETTLED_MAX, IdIndex, LookedUp, WantedTimers
from duewheel.wheel.append.id_runs import CANCELLED, DELIVERED
from duewheel.wheel.slots import hour_of
from duewheel.wheel.storage.byte_layouts import (
    FLAG_DEAD_LETTER,
    MAGIC_ABANDONED,
    RECORD_BYTES,
    is_cancelled,
    slots_in,
)
from duewheel.wheel.storage.data_directory import DataDirectory
from duewheel.wheel.storage.message_store import Prefixes, split_by_count
from duewheel.wheel.storage.timer_log import Records

_NO_GROUP = -1
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
    """Timers of the log that a cancel may match, in any order."""

    group: Int64
    first_offset: Int64  # of the first copy
    offset: Int64  # of this copy
    slot: Int64  # the slot it is delivered in
    cancelled: Bool  # whether a cancel of an earlier batch has cancelled it
    position: Int64  # of its record in the log of the slot's hour

    def __len__(self) -> int:
        return len(self.offset)

    @classmethod
    def joined(cls, parts: Sequence[LoggedTimers]) -> LoggedTimers:
        names = [each.name for each in fields(cls)]
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


@dataclass(frozen=True, slots=True)
class Candidates:
    """The timers that the cancels of a batch may match."""

    cancel_group: Int64
    must_chase: Bool  # cancels that may match unread timers
    unseen: Bool  # the same for chases, and timers that were out or cancelled
    in_log: LoggedTimers  # timers of earlier batches
    batch_rows: Int64  # timers of the batch, as rows of it
    batch_group: Int64
    # Of each request, for timers with `keep` its outcome (cancel_log.py); None: there are none
    outcome: Int32 | None = None


class _Part(NamedTuple):
    """Timers of one log, and the needed parts of their messages."""

    hour: int
    position: Int64  # of the record
    records: Records
    prefix: Prefixes
    timer_id: Column

    def take(self, rows: Int64) -> _Part:
        if len(rows) == len(self.position):
            return self  # nearly always
        return _Part(
            self.hour,
            self.position[rows],
            self.records[rows],
            self.prefix[rows],
            take(self.timer_id, rows),
        )


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
        groups = _Groups(cancels)
        # The only match of a chase, or of a cancel that names one timer, may be out for long.
        others = (cancels.origin_offset != cancels.offset) | (cancels.named_offset != ANY_OFFSET)
        hash_of = self._hashes(cancels)
        all_timers = again & cancels.cancels
        wanted = _wanted(cancels, hash_of, groups, others, all_timers)
        if all_timers.any() and others.any():
            self._read_unread(wanted, groups, commit)
        looked_up = self._index.find(wanted, commit)
        in_log = self._in_log(looked_up, wanted, groups, commit)
        rows = np.flatnonzero(np.isin(self._hashes(batch), wanted.hashes) & ~batch.rejected)
        own = batch.take(rows)
        own_group = groups.of(
            _keys_of(own.partitions, own.partition, own.timer_id, own.origin_offset)
        )
        rows, own_group = rows[own_group != _NO_GROUP], own_group[own_group != _NO_GROUP]
        delivered = np.isin(hash_of, looked_up.delivered)
        unseen = np.isin(hash_of, looked_up.unseen) & others
        late = np.where(others, unseen & (cancels.chase_slot < self._settled_slot), True)
        is_partial = np.isin(hash_of, looked_up.left)
        partial = np.isin(in_log.group, groups.of_cancels[is_partial])
        self._settle(in_log, partial, self._settled_until(close, again))
        must_chase = is_partial | (delivered & late)
        return Candidates(groups.of_cancels, must_chase, unseen, in_log, rows, own_group)

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

    def _settle(self, timers: LoggedTimers, partial: Bool, until: int) -> None:
        # An id is read again until all of its records are settled that can be.
        few = self._limits.settled_from
        for kind, over in _settled(timers, until, few, partial).items():
            hour = hour_of(timers.slot[over], self._directory.config.precision_ms)
            self._index.settle(hour, timers.position[over], kind)
            if kind == DELIVERED and over.any():
                self._settled_slot = max(self._settled_slot, int(timers.slot[over].max()))

    def _read_unread(self, wanted: WantedTimers, groups: _Groups, commit: Commit) -> None:
        """Reads the first offsets of all timers of the ids that need them, in parts: a lookup
        without a limit then has only those in memory that a cancel matches.
        """
        whole, topic = wanted.whole, wanted.topic[np.isin(wanted.hashes, wanted.whole)]
        unread = WantedTimers(whole, topic, *[_NONE] * 6)
        is_whole = not self._index.add_all(commit)
        while not is_whole:
            looked_up = self._index.find(unread, commit)
            self._in_log(looked_up, unread, groups, commit)
            is_whole = not len(looked_up.left)

    def _in_log(
        self, looked_up: LookedUp, wanted: WantedTimers, groups: _Groups, commit: Commit
    ) -> LoggedTimers:
        """Reads the timers that were looked up, in parts, and returns those that a cancel may
        match. The index then has their first offsets and ids, and knows which records are no
        timers.
        """
        found = [LoggedTimers(_NONE, _NONE, _NONE, _NONE, np.empty(0, np.bool_), _NONE)]
        read = [(_NONE, _NONE, _NONE, _NONE)]
        for part in self._read(looked_up, commit):
            first = part.prefix["origin_offset"].astype(np.int64)
            sources, source = self._directory.topics.sources(part.prefix)
            key = _keys_of(sources, source, part.timer_id, first)
            read.append((np.full(len(first), part.hour), part.position, first, key))
            group = groups.of(key)
            # A hash may be equal to one of another id or partition: that timer stays LIVE.
            rows = np.flatnonzero((group != _NO_GROUP) & wanted.matches(first, key))
            found.append(self._logged(part, rows, group, first))
        hour, position, first, key = (np.concatenate(column) for column in zip(*read, strict=True))
        self._index.note(hour, position, first, key)
        for each, positions in looked_up.positions.items():
            # Not timers: abandoned records, for example.
            rest = np.setdiff1d(positions, position[hour == each])
            self._index.settle(np.full(len(rest), each), rest, CANCELLED)
        return LoggedTimers.joined(found)

    def _logged(self, part: _Part, rows: Int64, group: Int64, first: Int64) -> LoggedTimers:
        """Returns these rows of a part, whose groups and first offsets are given."""
        return LoggedTimers(
            group[rows],
            first[rows],
            part.prefix["source_offset"][rows].astype(np.int64),
            slots_in(part.records[rows], self._directory.config.precision_ms),
            is_cancelled(part.records[rows]),
            part.position[rows],
        )

    def _read(self, looked_up: LookedUp, commit: Commit) -> Iterator[_Part]:
        """Reads the timers that were looked up, a bounded number of messages at once."""
        for hour, positions in looked_up.positions.items():
            try:
                yield from self._read_hour(hour, commit.hours[hour].log_bytes, positions)
            except CorruptFile:
                # An hour that dequeue has unlinked meanwhile is delivered: no candidate in it.
                if hour >= self._directory.state.live.gc_hour:
                    raise

    def _read_hour(self, hour: int, log_bytes: int, positions: Int64) -> Iterator[_Part]:
        records = self._directory.log.view(hour, log_bytes).take(positions // RECORD_BYTES)
        alive = records["magic"] != MAGIC_ABANDONED
        records, positions = records[alive], positions[alive]
        end = 0
        for block in split_by_count(records):
            begin, end = end, end + len(block)
            prefix, timer_id = self._directory.messages.read_ids(hour, block)
            part = _Part(hour, positions[begin:end], block, prefix, timer_id)
            yield part.take(np.flatnonzero((prefix["flags"] & FLAG_DEAD_LETTER) == 0))


class _Groups:
    """Numbers for the partitions and ids of a batch's cancels, in the order of the cancels."""

    def __init__(self, cancels: TimerBatch) -> None:
        key = id_keys(cancels.partitions, cancels.partition, cancels.timer_id)
        # By the keys, which are others in each process; `number` of each cancel among them.
        self.id_keys, first, self.number = np.unique(key, return_index=True, return_inverse=True)
        self._group = np.argsort(np.argsort(first))
        self.of_cancels = self._group[self.number]

    def of(self, key: Int64) -> Int64:
        """Returns the group of each id key; _NO_GROUP if no cancel has it."""
        index, is_one = index_among(key, self.id_keys)
        return np.where(is_one, self._group[index], _NO_GROUP)


def id_keys(partitions: Sequence[TopicPartition], partition: Int32, timer_id: Column) -> Int64:
    """64 bits for each partition and id. Python's hash has a key of this process (unless
    PYTHONHASHSEED is set), so that no producer finds ids that have those of others.
    """
    of_partition = np.array([hash(each) for each in partitions], np.int64)
    of_id = np.fromiter(map(hash, timer_id.to_pylist()), np.int64, len(timer_id))
    return of_id ^ of_partition[partition]


def _keys_of(
    partitions: Sequence[TopicPartition], partition: Int32, timer_id: Column, first_offset: Int64
) -> Int64:
    """The id keys of timers; an empty id is the default one."""
    default = source_names(partitions, partition, first_offset)
    return id_keys(partitions, partition, choose(lengths(timer_id) == 0, default, timer_id))


def read_again(cancels: TimerBatch, close: Close, *, standby: bool) -> Bool:
    """Returns which cancels have been taken before, by this shard or by a standby's owner."""
    c = np.array([close.marks.get(p, 0) for p in cancels.partitions], np.int64)
    again: Bool = (cancels.offset < c[cancels.partition]) | standby
    return again


def _wanted(
    cancels: TimerBatch, hash_of: Int64, groups: _Groups, with_settled: Bool, whole: Bool
) -> WantedTimers:
    """Makes the request for a lookup; `hash_of` is the lookup hash of each cancel, the last two say
    which need settled records, and all live ones.
    """
    hashes, first_row = np.unique(hash_of, return_index=True)
    naming, below = cancels.named_offset != ANY_OFFSET, np.zeros(len(groups.id_keys), np.int64)
    np.maximum.at(below, groups.number[~naming], cancels.origin_offset[~naming])
    return WantedTimers(
        hashes,
        _topics(cancels)[first_row],
        groups.id_keys,
        below,
        np.unique(cancels.named_offset[naming]),
        np.unique(hash_of[with_settled]),
        np.unique(hash_of[whole]),
        np.unique(hash_of[cancels.keeps]),
    )


def _settled(timers: LoggedTimers, until: int, rows_min: int, partial: Bool) -> dict[int, Bool]:
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
    group = timers.group
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
