"""Finds log records by the hash of the timer's id: an index beside the logs, never trusted.

    heads       of each bucket, the newest row in it, or −1      bucket = low bits of the hash
    links       of each row, the one before it in its bucket, or −1
    tags        of each row, the upper 32 bits of its hash
    addresses   of each row, hour of the log << 32 | number of the record

A batch with cancels adds all records that were appended to the logs since the last such batch. So
batches without cancels cost nothing, and a start reads nothing. The caller reads each result from
the log; records of expired hours are skipped.

`forget` takes out rows that decide nothing for a new cancel: without it the chain of an id that is
replaced over and over would grow without end. A cancel that may match older timers, as a chase may,
then needs the logs. A full index is rebuilt from the logs, with room for half as many more rows. It
lies in a file without a name in the data directory, so it takes page cache and no memory. Without
room for that, or if a chain is too long, the hash columns of the logs are scanned: 50 to 100
million records a second.

Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import structlog

from duewheel.checkpoints.commit_and_close_pages import Commit
from duewheel.errors import CorruptFile
from duewheel.schemas.arrays import Bool, Int64
from duewheel.wheel.storage.byte_layouts import RECORD, RECORD_BYTES, id_hash_of
from duewheel.wheel.storage.data_directory import DataDirectory
from duewheel.wheel.storage.timer_log import Records

log = structlog.get_logger(__name__)

ROWS_MIN = 1 << 16
STEPS_MAX = 20_000  # along one chain

_RECORDS_AT_ONCE = 1 << 18  # 13 MiB of the log, mapped
_TABLE_BITS = (16, 24)  # fewest and most
_BITS_PER_HASH = 8
_LOW = np.dtype(">u4")  # the last bytes of a record: the lower bits of the hash
_TAG_BITS = 8  # of the hash that are not in the tag
_HOUR_BITS = 32
_ROW_BYTES = 4 + 4 + 8  # link, tag, address

Positions = Iterator[tuple[int, Int64]]


class IdIndex:
    """The index of one data directory; see the module's head."""

    def __init__(
        self, directory: DataDirectory, rows_min: int = ROWS_MIN, steps_max: int = STEPS_MAX
    ) -> None:
        """
        Args:
            directory: whose logs are indexed.
            rows_min: the fewest rows that a table is made for.
            steps_max: the longest chain that is walked; beyond it the logs are scanned.
        """
        self._rows_min, self._steps_max = rows_min, steps_max
        self._directory = directory
        self._table: _Table | None = None
        self._added: dict[int, int] = {}  # records of each hour
        self._walked: _Rows | None = None  # rows of the last lookup
        self._partial: Int64 = np.empty(0, np.int64)  # hashes of which rows were forgotten

    def positions(self, hashes: Int64, whole: Int64, commit: Commit) -> Positions:
        """Yields the log positions of records with any of these hashes, hour by hour, including
        abandoned and without forgotten ones. Exhaust it before `forget`, which uses the rows of the
        last call.

        Args:
            hashes: rising, each once.
            whole: those of them that also need forgotten rows.
            commit: the newest.

        Raises:
            CorruptFile: a log is shorter than it must be.
        """
        self._walked = None
        try:
            self._add_new(commit)
            assert self._table is not None, "made where rows are added"
            self._walked = self._table.walk(hashes, self._steps_max)
        except OSError as error:
            log.warning("no room for the index of ids: logs are scanned", reason=str(error))
            self.close()
        if self._walked is None or np.isin(whole, self._partial).any():
            self._walked = None
            yield from self._scan(hashes, commit)
            return
        address = np.sort(self._walked.address[np.isin(self._walked.hash, hashes)])
        hours, numbers = address >> _HOUR_BITS, address & ((1 << _HOUR_BITS) - 1)
        for hour in np.unique(hours).tolist():
            if hour >= self._directory.state.live.gc_hour:
                yield hour, numbers[hours == hour] * RECORD_BYTES

    def forget(self, hour: Int64, position: Int64) -> None:
        """Removes these of the last returned records, and all records of expired hours."""
        if self._table is None or self._walked is None:
            return
        over = np.isin(self._walked.address, hour << _HOUR_BITS | position // RECORD_BYTES)
        if over.any():
            self._partial = np.union1d(self._partial, self._walked.hash[over])
        over |= self._walked.address >> _HOUR_BITS < self._directory.state.live.gc_hour
        if over.any():
            self._table.take_out(self._walked, over)
        self._walked = None

    def close(self) -> None:
        """Drops the index."""
        self._table, self._walked, self._added = None, None, {}
        self._partial = np.empty(0, np.int64)

    def _add_new(self, commit: Commit) -> None:
        """Adds the records that were appended since; in a new table if this one has no room."""
        new = self._new_records(commit)
        if self._table is None or self._table.left < new:
            self.close()
            new = self._new_records(commit)
            self._table = _Table(self._directory, max(self._rows_min, new + new // 2))
        table = self._table
        for hour, first, end in self._new_ranges(commit):
            try:
                view = self._directory.log.view(hour, end * RECORD_BYTES)
            except CorruptFile:
                if hour >= self._directory.state.live.gc_hour:
                    raise
                continue
            numbers = np.arange(first, end)
            hashes = id_hash_of(view["reserved"][first:end])
            table.add(hashes, hour << _HOUR_BITS | numbers)
            self._added[hour] = end

    def _new_records(self, commit: Commit) -> int:
        return sum(end - first for _, first, end in self._new_ranges(commit))

    def _new_ranges(self, commit: Commit) -> Iterator[tuple[int, int, int]]:
        """Yields records outside the index: hour, first and end, a bounded number at once."""
        gc_hour = self._directory.state.live.gc_hour
        for hour, lengths in sorted(commit.hours.items()):
            records = lengths.log_bytes // RECORD_BYTES
            for first in range(self._added.get(hour, 0), records, _RECORDS_AT_ONCE):
                if hour >= gc_hour:
                    yield hour, first, min(first + _RECORDS_AT_ONCE, records)

    def _scan(self, hashes: Int64, commit: Commit) -> Positions:
        """Finds the same positions in the logs alone."""
        table = _lower_bits(hashes)
        for hour, lengths in sorted(commit.hours.items()):
            if hour < self._directory.state.live.gc_hour or not lengths.log_bytes:
                continue
            view, parts = self._directory.log.view(hour, lengths.log_bytes), []
            count = lengths.log_bytes // RECORD_BYTES
            for first in range(0, count, _RECORDS_AT_ONCE):
                block = view[first : min(first + _RECORDS_AT_ONCE, count)]
                parts.append(first + _with_hashes(block, hashes, table))
            found = np.concatenate(parts)
            if len(found):
                yield hour, found * RECORD_BYTES


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows walked along some chains, chain after chain, newest first.

    Attributes:
        bucket: of each.
        number: in the table.
        hash, address: of each.
    """

    bucket: Int64
    number: Int64
    hash: Int64
    address: Int64


class _Table:
    """The arrays of the module's head."""

    def __init__(self, directory: DataDirectory, rows_max: int) -> None:
        """
        Args:
            directory: of its file.
            rows_max: how many rows it can take.

        Raises:
            OSError: the disk has no room for it.
        """
        buckets = 1 << max((rows_max - 1).bit_length(), _TAG_BITS)
        size = rows_max * _ROW_BYTES + buckets * 4
        fs = directory.fs
        fd = fs.open_unnamed(directory.path)
        try:
            fs.allocate(fd, size)
            octets = np.frombuffer(fs.map(fd, size, writable=True), np.uint8)
        finally:
            fs.close(fd)
        self._addresses = octets[: 8 * rows_max].view(np.int64)
        self._tags = octets[8 * rows_max : 12 * rows_max].view(np.uint32)
        self._links = octets[12 * rows_max : 16 * rows_max].view(np.int32)
        self._heads = octets[16 * rows_max :].view(np.int32)
        self._heads[:] = -1
        self._rows = 0

    @property
    def left(self) -> int:
        """The number of free rows."""
        return len(self._addresses) - self._rows

    def add(self, hashes: Int64, addresses: Int64) -> None:
        """Adds rows to their buckets; later ones are newer."""
        count, first = len(hashes), self._rows
        self._rows += count
        numbers = np.arange(first, first + count)
        self._addresses[first : first + count] = addresses
        self._tags[first : first + count] = hashes >> _TAG_BITS
        bucket = hashes & (len(self._heads) - 1)
        order = np.argsort(bucket, kind="stable")
        bucket, numbers = bucket[order], numbers[order]
        begins = np.append(True, bucket[1:] != bucket[:-1])[:count]
        ends = np.append(begins[1:], True)[:count]
        earlier = np.append(-1, numbers[:-1])[:count]
        self._links[numbers] = np.where(begins, self._heads[bucket], earlier)
        self._heads[bucket[ends]] = numbers[ends]

    def walk(self, hashes: Int64, steps_max: int) -> _Rows | None:
        """Returns all rows in the buckets of these hashes; None if a chain is longer than
        `steps_max`.
        """
        buckets = np.unique(hashes & (len(self._heads) - 1))
        chain, at = np.arange(len(buckets)), self._heads[buckets].astype(np.int64)
        steps: list[tuple[Int64, Int64]] = []
        while True:
            going = at >= 0
            chain, at = chain[going], at[going]
            if not len(at):
                break
            if len(steps) == steps_max:
                return None
            steps.append((chain, at))
            at = self._links[at].astype(np.int64)
        none = np.empty(0, np.int64)
        chains = np.concatenate([none, *(step[0] for step in steps)])
        order = np.argsort(chains, kind="stable")
        bucket = buckets[chains[order]]
        number = np.concatenate([none, *(step[1] for step in steps)])[order]
        low = bucket & ((1 << _TAG_BITS) - 1)
        hash_of = self._tags[number].astype(np.int64) << _TAG_BITS | low
        return _Rows(bucket, number, hash_of, self._addresses[number])

    def take_out(self, rows: _Rows, over: Bool) -> None:
        """Removes rows from their chains.

        Args:
            rows: all rows of some chains; none was added since.
            over: the rows to remove.
        """
        self._heads[rows.bucket] = -1
        bucket, number = rows.bucket[~over], rows.number[~over]
        last = np.append(bucket[1:] != bucket[:-1], True)[: len(bucket)]
        following = np.append(number[1:], -1)[: len(number)]
        self._links[number] = np.where(last, -1, following)
        begins = np.append(True, last[:-1])[: len(bucket)]
        self._heads[bucket[begins]] = number[begins]


def _with_hashes(records: Records, hashes: Int64, table: Bool) -> Int64:
    """Selects the records with one of these hashes.

    Args:
        records: of a log, neighbours.
        hashes: rising.
        table: `_lower_bits` of them.
    """
    low: npt.NDArray[np.uint32] = np.ndarray(
        (len(records),),
        _LOW,
        records.view(np.uint8).data,
        offset=RECORD.itemsize - _LOW.itemsize,
        strides=(RECORD_BYTES,),
    )
    rows = np.flatnonzero(table[low & np.uint32(len(table) - 1)])
    hash_of = id_hash_of(records["reserved"].take(rows))
    at = np.minimum(np.searchsorted(hashes, hash_of), len(hashes) - 1)
    matching: Int64 = rows[hashes[at] == hash_of]
    return matching


def _lower_bits(hashes: Int64) -> Bool:
    """Makes a table of the lower bits; so many bits that few records need a full comparison."""
    fewest, most = _TABLE_BITS
    bits = min(max((_BITS_PER_HASH * len(hashes)).bit_length(), fewest), most)
    table = np.zeros(1 << bits, np.bool_)
    table[hashes & (len(table) - 1)] = True
    return table
