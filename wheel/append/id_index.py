"""Finds log records by the lookup hash of the timer's id: an index beside the logs, never trusted.

The index is sorted runs of columns (id_runs.py): the hash and the class of each record, its place,
and the first offset and the id of its timer, once a lookup has read them.

    LIVE       a lookup must read the record, unless it was read and matches no cancel
    DELIVERED  it is out for long; it decides only about a cancel of one timer, or a chase
    CANCELLED  the same; a later cancel never depends on it

A batch with cancels adds records that were appended to the logs since the last such batch, as one
more run. So batches without cancels cost nothing, and a start reads nothing. Of very many records,
as after a start, it adds a part, and scans the hash columns of the others for its ids, in a
thirtieth of the time: else one cancel would delay the timers of all others by the whole build. Runs
of similar size are merged, so there are few; large ones are files without a name in the data
directory, which take page cache and no memory. The caller reads each result from the log; records
of expired hours are skipped, and dropped when their run is merged.

One id may have any number of records. A lookup returns `rows_max` live ones at most, and as many
others. Timer topics have equal parts, and share again the rows that some leave unused; in a topic
ids with few records come first. It names the ids that have more. Of such an id it returns the
newest ones, or, in every other lookup on average, neighbours from a random place on: lookups that
are repeated reach records below many that cannot be settled yet. `settle` takes records that decide
nothing out of later lookups, and `note` lets them skip those that no cancel matches, also of other
ids with the same hash, which a producer can find: lookups that are repeated end. So an id with
millions of records, and any number of ids with some, cost the cancels of other topics a bounded
number of messages per batch. Two exceptions: an id may need all of its live records (`whole`), or
the newest three in any case (`newest`).

A scan reads 50 to 100 million records a second. To it every record is live, and a lookup forgets
which of these it has noted or settled. Without room on the disk all records are scanned, and those
of the wanted ids are in memory for the lookup, 32 bytes each.

Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import structlog

from duewheel.checkpoints.commit_and_close_pages import Commit
from duewheel.errors import CorruptFile
from duewheel.schemas.arrays import Bool, Int64, index_among, ranges
from duewheel.wheel.append.id_runs import (
    ADDRESS,
    CANCELLED,
    DELIVERED,
    HOUR_BITS,
    LIVE,
    NOT_READ,
    ROWS_AT_ONCE,
    Run,
    merged,
)
from duewheel.wheel.storage.byte_layouts import RECORD, RECORD_BYTES, lookup_hash_of
from duewheel.wheel.storage.data_directory import DataDirectory
from duewheel.wheel.storage.timer_log import Records

log = structlog.get_logger(__name__)

ROWS_MAX = 1 << 16
SETTLED_MAX = 1 << 10
NEWEST = 3  # for the cancels of one batch (20,000) together about as many as `rows_max`

# A batch adds a 32nd of the new records, in about the time of their scan, and at least so many:
# more than a batch of ingest has by default, or new ones would come faster than they are added.
_ADDED_PART_BITS, _ADDED_BLOCKS_MIN = 5, 2
_TABLE_BITS = (16, 24)  # fewest and most
_BITS_PER_HASH = 8
_LOW = np.dtype(">u4")  # the last bytes of a record: the lower bits of the hash

_Bounds = tuple[Int64, Int64]  # the first row of each hash in a run, and the end of its rows
_NONE: Int64 = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class WantedTimers:
    """The timers that the cancels of a batch may match, by the lookup hashes of their ids."""

    hashes: Int64  # rising
    topic: Int64  # a number for each
    id_keys: Int64  # rising: of the partitions and ids, as the index has those that it has read
    below: Int64  # for each, the first offsets that a cancel of all timers of the id matches; or 0
    named: Int64  # rising: first offsets that other cancels name, of any of the ids
    with_settled: Int64  # those of the hashes that also need records that are not live
    whole: Int64  # those of the hashes that need all live records, not a bounded number
    newest: Int64  # those of the hashes that need their NEWEST live records in any case

    def matches(self, first_offset: Int64, id_key: Int64) -> Bool:
        """Returns which timers may match, by the first offset and the id of each. One that is
        NOT_READ may.
        """
        matching: Bool = first_offset == NOT_READ
        named = index_among(first_offset, self.named)[1]
        # Few are left for the search among the ids, which takes 20 times as long.
        rows = np.flatnonzero((first_offset < self.below.max(initial=0)) & ~matching | named)
        index, is_one = index_among(id_key[rows], self.id_keys)
        rows, index = rows[is_one], index[is_one]
        matching[rows] = (first_offset[rows] < self.below[index]) | named[rows]
        return matching


@dataclass(frozen=True, slots=True)
class LookedUp:
    """The result of a lookup."""

    positions: dict[int, Int64]  # of log records, by hour, including abandoned ones
    left: Int64  # hashes with other live records that may match: the lookup is not whole
    delivered: Int64  # hashes with DELIVERED records, returned or not
    unseen: Int64  # hashes with DELIVERED or CANCELLED records that were not returned


class IdIndex:
    """The index of one data directory; see the module's head. Of the records of one hash that are
    not live a lookup returns at most `settled_max`.
    """

    def __init__(
        self, directory: DataDirectory, rows_max: int = ROWS_MAX, settled_max: int = SETTLED_MAX
    ) -> None:
        self._rows_max, self._settled_max = rows_max, settled_max
        self._directory = directory
        self._runs: list[Run] = []  # sizes fall by at least half
        self._added: dict[int, int] = {}  # number of indexed records, by hour
        # Live rows of the last result, with their runs.
        self._last: list[tuple[Run, Int64]] = []
        self._chance = np.random.default_rng(0)  # the same places for the same lookups

    def find(self, wanted: WantedTimers, commit: Commit) -> LookedUp:
        """Finds the log records of timers that may match. Where an id needs all live records, all
        records of the logs are added before.

        Raises:
            CorruptFile: a log is shorter than it must be.
        """
        try:
            self._add_new(commit, whole=len(wanted.whole) > 0)
            runs = [*self._runs, *self._scanned(wanted.hashes, commit)]
        except OSError as error:
            log.warning("no room for the index of ids: logs are scanned", reason=str(error))
            self.close()
            scan = self._scan(wanted.hashes, commit)
            runs = [self._run(*found, in_memory=True) for found in scan]
        return self._find(wanted, runs)

    def add_all(self, commit: Commit) -> bool:
        """Adds all records, for lookups that are repeated until nothing is left to note. Returns
        False without room for them: a scan forgets its notes, so there would be no end.
        """
        with suppress(OSError):  # `find` says so
            self._add_new(commit, whole=True)
            return True
        return False

    def _find(self, wanted: WantedTimers, runs: list[Run]) -> LookedUp:
        hashes, topic = wanted.hashes, wanted.topic
        delivered, cancelled = (
            _Selected([run.bounds(hashes, kind) for run in runs], len(hashes))
            for kind in (DELIVERED, CANCELLED)
        )
        # Of live rows the numbers among those of their run that may match.
        bounds = [run.bounds(hashes, LIVE) for run in runs]
        ends = [
            np.cumsum(_count_matching(run, of_run, wanted))
            for run, of_run in zip(runs, bounds, strict=True)
        ]
        live = _Selected([(np.append(0, end[:-1]), end) for end in ends], len(hashes))
        whole = live.count * np.isin(hashes, wanted.whole)
        taken = whole + _within(live.count - whole, topic, self._rows_max)
        needs_newest = np.isin(hashes, wanted.newest)
        taken = np.maximum(taken, np.minimum(live.count, NEWEST) * needs_newest)
        place = np.maximum(2 * self._chance.random(len(hashes)) - 1, 0) * ~needs_newest
        newer = (place * (live.count - taken + 1)).astype(np.int64)
        last_rows = [
            _matching_at(run, of_run, wanted, at)
            for run, of_run, at in zip(runs, bounds, live.last(taken, newer), strict=True)
        ]
        self._last = list(zip(runs, last_rows, strict=True))
        settled_count = delivered.count + cancelled.count
        seen = np.minimum(settled_count, self._settled_max) * np.isin(hashes, wanted.with_settled)
        seen = _within(seen, topic, max(self._rows_max, self._settled_max))
        settled = [delivered.last(seen), cancelled.last(np.maximum(seen - delivered.count, 0))]
        addresses = [
            run.addresses[rows]
            for found in (last_rows, *settled)
            for run, rows in zip(runs, found, strict=True)
        ]
        # They would fill `rows_max` until their runs are merged.
        self._settle_where(lambda address: address >> HOUR_BITS < self._gc_hour, CANCELLED)
        return LookedUp(
            self._by_hour(np.concatenate([_NONE, *addresses])),
            hashes[taken < live.count],
            hashes[delivered.count > 0],
            hashes[settled_count > seen],
        )

    def note(self, hour: Int64, position: Int64, first_offset: Int64, id_key: Int64) -> None:
        """Notes the first offsets and ids of the last returned live records, as far as they were
        read: none of these records may be settled yet.
        """
        addresses = hour << HOUR_BITS | position // RECORD_BYTES
        order = np.argsort(addresses)
        for run, rows in self._last:
            place, is_read = index_among(run.addresses[rows], addresses[order])
            read = order[place[is_read]]
            run.first_offsets[rows[is_read]] = first_offset[read]
            run.id_keys[rows[is_read]] = id_key[read]

    def settle(self, hour: Int64, position: Int64, kind: int) -> None:
        """Makes these of the last returned live records DELIVERED or CANCELLED."""
        addresses = np.sort(hour << HOUR_BITS | position // RECORD_BYTES)
        self._settle_where(lambda address: index_among(address, addresses)[1], kind)

    def _settle_where(self, is_over: Callable[[Int64], Bool], kind: int) -> None:
        """Settles the last returned live records whose addresses are over."""
        for number, (run, rows) in enumerate(self._last):
            over = is_over(run.addresses[rows])
            if over.any():
                self._last[number] = run, run.settle(rows, over, kind)

    def close(self) -> None:
        self._runs, self._added, self._last = [], {}, []

    def _by_hour(self, addresses: Int64) -> dict[int, Int64]:
        address = np.sort(addresses[addresses >> HOUR_BITS >= self._gc_hour])
        hours, numbers = address >> HOUR_BITS, address & ((1 << HOUR_BITS) - 1)
        return {
            hour: numbers[hours == hour] * RECORD_BYTES
            for hour in np.unique(hours).tolist()  # few: one lap of the ring at most
        }

    @property
    def _gc_hour(self) -> int:
        return self._directory.state.live.gc_hour

    def _add_new(self, commit: Commit, *, whole: bool) -> None:
        """Adds records that were appended since; of very many, unless `whole`, a part."""
        self._last = []
        new = sum(end - first for _, first, end in self._new_ranges(commit))
        part = max(new >> _ADDED_PART_BITS, _ADDED_BLOCKS_MIN * ROWS_AT_ONCE)
        left = new if whole else part
        for hour, first, records in self._new_records(commit):
            self._runs.append(
                self._run(lookup_hash_of(records["reserved"]), _addresses(hour, first, records))
            )
            self._added[hour] = first + len(records)
            self._merge(self._runs)
            left -= len(records)
            if left <= 0:
                return

    def _scanned(self, hashes: Int64, commit: Commit) -> list[Run]:
        """Returns the records with these hashes that are not added, as runs for one lookup."""
        runs: list[Run] = []
        for found in self._scan(hashes, commit):
            runs.append(self._run(*found))
            self._merge(runs)
        return runs

    def _scan(self, hashes: Int64, commit: Commit) -> Iterator[tuple[Int64, Int64]]:
        """Yields the hashes and addresses of the records with these hashes that are not added."""
        table = _lower_bits(hashes)
        for hour, first, records in self._new_records(commit):
            rows, hash_of = _with_hashes(records, hashes, table)
            if len(rows):
                yield hash_of, _addresses(hour, first, records)[rows]

    def _run(self, hashes: Int64, addresses: Int64, *, in_memory: bool = False) -> Run:
        order = np.argsort(hashes, kind="stable")
        directory = self._directory
        run = Run(directory.fs, directory.path, len(order), in_memory=in_memory)
        run.put_new(hashes[order], addresses[order])
        return run

    def _merge(self, runs: list[Run]) -> None:
        """Merges the last two runs until each run has less than half the rows of the one before."""
        while len(runs) > 1 and 2 * len(runs[-1]) > len(runs[-2]):
            older, newer = runs[-2:]
            run = Run(self._directory.fs, self._directory.path, len(older) + len(newer))
            for rows in merged(older, newer):
                kept = rows[ADDRESS] >> HOUR_BITS >= self._gc_hour
                run.put(rows if kept.all() else rows[:, kept])
            runs[-2:] = [run]

    def _new_records(self, commit: Commit) -> Iterator[tuple[int, int, Records]]:
        """Yields neighbouring records outside the index: hour, number of the first, records."""
        for hour, first, end in self._new_ranges(commit):
            try:
                view = self._directory.log.view(hour, end * RECORD_BYTES)
            except CorruptFile:
                if hour >= self._gc_hour:
                    raise
                continue
            yield hour, first, view[first:end]

    def _new_ranges(self, commit: Commit) -> Iterator[tuple[int, int, int]]:
        """Yields records outside the index: hour, first and end, a bounded number at once."""
        for hour, lengths in sorted(commit.hours.items()):
            records = lengths.log_bytes // RECORD_BYTES
            for first in range(self._added.get(hour, 0), records, ROWS_AT_ONCE):
                if hour >= self._gc_hour:
                    yield hour, first, min(first + ROWS_AT_ONCE, records)


class _Selected:
    """The rows of some hashes in one class, in all runs; `bounds` has those of each hash by run."""

    def __init__(self, bounds: list[_Bounds], hashes: int) -> None:
        self._bounds = bounds
        self.count = np.zeros(hashes, np.int64)
        for first, end in bounds:
            self.count += end - first

    def last(self, most: Int64, newer: Int64 | None = None) -> list[Int64]:
        """Returns for each run its last rows of each hash, up to `most` of all runs together: those
        of the newest run first, after skipping as many as `newer`.
        """
        rows, left = [], most.copy()
        passed = np.zeros_like(most) if newer is None else newer.copy()
        for first, end in reversed(self._bounds):
            over = np.minimum(end - first, passed)
            taken = np.minimum(end - over - first, left)
            rows.append(ranges(end - over - taken, taken))
            passed -= over
            left -= taken
        return rows[::-1]


def _matching(run: Run, bounds: _Bounds, wanted: WantedTimers) -> Iterator[tuple[int, int, Int64]]:
    """Yields the rows of a run that may match, in their order, a bounded number at once, with the
    indexes of their hashes: the first one and the one after the last. `bounds` has the live rows of
    each hash.
    """
    first, end = bounds
    total, begin = np.cumsum(end - first), 0
    while begin < len(first):
        before = total[begin - 1] if begin else 0
        until = max(int(np.searchsorted(total, before + ROWS_AT_ONCE, "right")), begin + 1)
        if until == begin + 1:  # a view of them, in a fifth of the time
            for row in range(int(first[begin]), int(end[begin]), ROWS_AT_ONCE):
                part = slice(row, min(row + ROWS_AT_ONCE, int(end[begin])))
                matches = wanted.matches(run.first_offsets[part], run.id_keys[part])
                yield begin, until, row + np.flatnonzero(matches)
        else:
            count = (end - first)[begin:until]
            rows = ranges(first[begin:until], count)
            matches = wanted.matches(run.first_offsets[rows], run.id_keys[rows])
            yield begin, until, rows[matches]
        begin = until


def _count_matching(run: Run, bounds: _Bounds, wanted: WantedTimers) -> Int64:
    """Counts the rows of each hash that may match."""
    first, end = bounds
    count = np.zeros(len(first), np.int64)
    for begin, until, rows in _matching(run, bounds, wanted):
        count[begin:until] += np.searchsorted(rows, end[begin:until])
        count[begin:until] -= np.searchsorted(rows, first[begin:until])
    return count


def _matching_at(run: Run, bounds: _Bounds, wanted: WantedTimers, numbers: Int64) -> Int64:
    """Returns those of the rows that may match which have these numbers, which rise."""
    found, before = [_NONE], 0
    for _, _, rows in _matching(run, bounds, wanted):
        first, end = np.searchsorted(numbers, [before, before + len(rows)])
        found.append(rows[numbers[first:end] - before])
        before += len(rows)
    return np.concatenate(found)


def _within(count: Int64, topic: Int64, most: int) -> Int64:
    """Distributes `most` rows: topics get equal parts, and in a topic the smallest counts theirs
    first.

    >>> _within(np.array([50, 3, 10, 4]), np.array([0, 0, 0, 1]), 20).tolist()
    [3, 3, 10, 4]
    """
    taken, left = np.zeros_like(count), most
    numbers, of_row = np.unique(topic, return_inverse=True)
    sizes = np.bincount(of_row, count, len(numbers)).astype(np.int64)
    for passed, number in enumerate(np.argsort(sizes, kind="stable").tolist()):
        part = min(int(sizes[number]), left // (len(numbers) - passed))
        left -= part
        rows = np.flatnonzero(of_row == number)
        rows = rows[np.argsort(count[rows], kind="stable")]
        before = np.cumsum(count[rows]) - count[rows]
        taken[rows] = np.clip(part - before, 0, count[rows])
    return taken


def _addresses(hour: int, first: int, records: Records) -> Int64:
    addresses: Int64 = hour << HOUR_BITS | np.arange(first, first + len(records))
    return addresses


def _with_hashes(records: Records, hashes: Int64, table: Bool) -> tuple[Int64, Int64]:
    """Selects the records (neighbours of a log) with one of these hashes (rising); returns their
    numbers among these, and hashes. `table` is `_lower_bits` of the hashes.
    """
    low: npt.NDArray[np.uint32] = np.ndarray(
        (len(records),),
        _LOW,
        records.view(np.uint8).data,
        offset=RECORD.itemsize - _LOW.itemsize,
        strides=(RECORD_BYTES,),
    )
    rows = np.flatnonzero(table[low & np.uint32(len(table) - 1)])
    hash_of = lookup_hash_of(records["reserved"].take(rows))
    is_one = index_among(hash_of, hashes)[1]
    return rows[is_one], hash_of[is_one]


def _lower_bits(hashes: Int64) -> Bool:
    """Makes a table of the lower bits, with enough bits that few records need a full comparison."""
    fewest, most = _TABLE_BITS
    bits = min(max((_BITS_PER_HASH * len(hashes)).bit_length(), fewest), most)
    table = np.zeros(1 << bits, np.bool_)
    table[hashes & (len(table) - 1)] = True
    return table
