"""Finds the timers with given ids in the timer log: what cancels meet, and where it lies.

Ids are not indexed. A round goes through the hash column of every hour's log on disk, for all ids
that are asked for at once: 50 to 100 million records a second with a few of them, ten million with
a million of them. A table of the lower bits of the wanted hashes leaves a few records of each piece
to be compared in full; only of these the messages are read.

Reads files alone, so that it may be done beside the loop, in a thread of its own with descriptors
of its own. What was committed when the round was asked for is looked at; committed records never
change. Hours that are unlinked meanwhile are passed over: all in them has left. On a message that
has left only a verdict depends: if it is damaged, that is told, and no error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import structlog

from duewheel.checkpoints.state import State
from duewheel.clock import Clock
from duewheel.errors import CorruptFile
from duewheel.schemas.columns import Column, binary, choose, concat
from duewheel.schemas.ids import source_names
from duewheel.schemas.timers import Bool, Int32, Int64, TopicPartition
from duewheel.wheel.layout import (
    FLAG_DEAD_LETTER,
    MAGIC_ABANDONED,
    MAGIC_ROLL,
    RECORD,
    RECORD_BYTES,
    id_hash_of,
)
from duewheel.wheel.message_store import MessageStore, Prefixes, StoredMessages, pieces
from duewheel.wheel.timer_log import Records, TimerLog
from duewheel.wheel.topic_names import TopicNames, public_name

log = structlog.get_logger(__name__)

# Records looked at in one go: 13 MiB of the log, mapped.
_RECORDS_AT_ONCE = 1 << 18
_TABLE_BITS = (16, 24)  # fewest and most
_PLACES_PER_HASH = 8
# The last bytes of a record hold the lower bits of the hash.
_LOW = np.dtype(">u4")


@dataclass(frozen=True, slots=True)
class Found:
    """Timers in the log, those of delivered slots among them.

    Attributes:
        partitions: what `partition` indexes.
        partition, offset: where each one's record lies in Kafka.
        origin: offset of its first copy.
        id_hash, timer_id: of each; never the empty id.
        slot: in which it lies.
        rolled: whether it leaves, or has left, to be written to its timer topic again.
        damaged: hashes in records that have left and cannot be read any more.
        scanned: records that were looked at.
        took_ms: how long it took.
    """

    partitions: list[TopicPartition]
    partition: Int32
    offset: Int64
    origin: Int64
    id_hash: Int64
    timer_id: Column
    slot: Int64
    rolled: Bool
    damaged: Int64
    scanned: int = 0
    took_ms: int = 0


@dataclass(frozen=True, slots=True)
class _Part:
    """What is kept of messages that were read: key, value and headers may be large."""

    records: Records
    prefix: Prefixes
    timer_id: Column

    @classmethod
    def of(cls, records: Records, messages: StoredMessages) -> _Part:
        return cls(records, messages.prefix, messages.timer_id)


class Lookups:
    """Rounds over the files of one data directory, one at a time."""

    def __init__(
        self, path: Path, precision_ms: int, clock: Clock, executor: Executor | None = None
    ) -> None:
        """Open the files of an existing directory.

        Args:
            path: the directory.
            precision_ms: length of a slot.
            clock: measures the rounds.
            executor: of one thread, in which rounds are made; None: in the caller's.
        """
        self._log = TimerLog(path)
        self._messages = MessageStore(path)
        self._topics = TopicNames(path)
        self._state = State.open(path)
        self._precision_ms = precision_ms
        self._clock = clock
        self._executor = executor

    def begin(self, hashes: Int64, log_bytes: Mapping[int, int], r: int) -> Future[Found]:
        """Look for timers whose id has one of these hashes.

        Args:
            hashes: in any order.
            log_bytes: committed length of each hour's log.
            r: last slot delivered in full.

        The future raises CorruptFile if a message that was found in a later slot is damaged.
        """
        wanted = np.unique(hashes)
        if self._executor is not None:
            return self._executor.submit(self._round, wanted, log_bytes, r)
        done: Future[Found] = Future()
        try:
            done.set_result(self._round(wanted, log_bytes, r))
        except CorruptFile as error:
            done.set_exception(error)
        return done

    def close(self) -> None:
        """Wait for the round that is going on, and let go of the files."""
        if self._executor is not None:
            self._executor.shutdown()
        self._log.close()
        self._messages.close()
        self._topics.close()
        self._state.release()

    def _round(self, hashes: Int64, log_bytes: Mapping[int, int], r: int) -> Found:
        begun_ms = self._clock.boottime_ms()
        table = lower_bits(hashes)
        parts: list[_Part] = []
        damaged: list[Int64] = []
        try:
            for hour, length in sorted(log_bytes.items()):
                try:
                    for piece in self._hour(hour, length, hashes, table):
                        parts += self._read(hour, piece, r, damaged)
                except CorruptFile:
                    if hour >= self._state.gc_hour:
                        raise
        finally:
            # An hour that is unlinked before the next round would keep its room on the disk.
            self._log.close()
            self._messages.close()
        scanned = sum(log_bytes.values()) // RECORD_BYTES
        found = self._found(parts)
        took_ms = self._clock.boottime_ms() - begun_ms
        left = np.concatenate([found.damaged, *damaged])
        return replace(found, damaged=left, scanned=scanned, took_ms=took_ms)

    def _hour(self, hour: int, length: int, hashes: Int64, table: Bool) -> Iterator[Records]:
        if hour < self._state.gc_hour or not length:
            return
        view = self._log.view(hour, length)
        for first in range(0, length // RECORD_BYTES, _RECORDS_AT_ONCE):
            records = view[first : min(first + _RECORDS_AT_ONCE, length // RECORD_BYTES)]
            near = records.take(with_hashes(records, hashes, table))
            yield from pieces(near[near["magic"] != MAGIC_ABANDONED])

    def _read(self, hour: int, piece: Records, r: int, damaged: list[Int64]) -> Iterator[_Part]:
        """A piece with its messages; without those of slots up to `r` that are damaged."""
        try:
            found = self._messages.read(hour, piece)
        except CorruptFile as error:
            half = len(piece) // 2
            if half:
                yield from self._read(hour, piece[:half], r, damaged)
                yield from self._read(hour, piece[half:], r, damaged)
                return
            if hour < self._state.gc_hour or self._slots(piece)[0] > r:
                raise
            log.warning("a message that has left is damaged", reason=str(error))
            damaged.append(id_hash_of(piece["reserved"]))
        else:
            yield _Part.of(piece, found)

    def _found(self, parts: list[_Part]) -> Found:
        records = np.concatenate([np.empty(0, RECORD), *(part.records for part in parts)])
        prefix = np.concatenate([part.prefix for part in parts]) if parts else None
        if prefix is None:
            none, index = np.empty(0, np.int64), np.empty(0, np.int32)
            flags = np.empty(0, np.bool_)
            return Found([], index, none, none, none, binary([]), none, flags, none)
        named = concat([part.timer_id for part in parts])
        code = prefix["source_topic"].astype(np.int64) << 32 | prefix["source_partition"]
        codes, partition = np.unique(code, return_inverse=True)
        names = self._topics.names(int(codes[-1]) >> 32)
        partitions = [(names[c >> 32], c & 0xFFFFFFFF) for c in codes.tolist()]
        origin = prefix["origin_offset"].astype(np.int64)
        homes = [(public_name(topic), number) for topic, number in partitions]
        default = source_names(homes, partition.astype(np.int32), origin)
        timers = np.flatnonzero((prefix["flags"] & FLAG_DEAD_LETTER) == 0)
        return Found(
            partitions,
            partition.astype(np.int32)[timers],
            prefix["source_offset"].astype(np.int64)[timers],
            origin[timers],
            id_hash_of(records["reserved"])[timers],
            choose(prefix["id_size"] == 0, default, named).take(timers),
            self._slots(records)[timers],
            ((records["magic"] & MAGIC_ROLL) != 0)[timers],
            np.empty(0, np.int64),
        )

    def _slots(self, records: Records) -> Int64:
        slots: Int64 = records["write_time"].astype(np.int64) + records["delay"]
        return slots // self._precision_ms


def with_hashes(records: Records, hashes: Int64, table: Bool) -> Int64:
    """Which records have one of these hashes.

    Args:
        records: of a log, neighbours.
        hashes: rising.
        table: `lower_bits` of them.
    """
    low = np.ndarray(
        (len(records),),
        _LOW,
        records.view(np.uint8).data,
        offset=RECORD.itemsize - _LOW.itemsize,
        strides=(RECORD_BYTES,),
    )
    rows = np.flatnonzero(table[low & np.uint32(len(table) - 1)])
    hash_of = id_hash_of(records["reserved"].take(rows))
    at = np.minimum(np.searchsorted(hashes, hash_of), len(hashes) - 1)
    found: Int64 = rows[hashes[at] == hash_of]
    return found


def lower_bits(hashes: Int64) -> Bool:
    """Which lower bits occur; as many bits as leave few records of no interest."""
    fewest, most = _TABLE_BITS
    bits = min(max((_PLACES_PER_HASH * len(hashes)).bit_length(), fewest), most)
    table = np.zeros(1 << bits, np.bool_)
    table[hashes & (len(table) - 1)] = True
    return table
