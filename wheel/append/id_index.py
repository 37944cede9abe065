"""Finds log records by the lookup hash of the timer's id: an index beside the logs, never trusted.

The index is sorted runs of two columns. `keys` has the hash and the class of each record,
`addresses` its place: hour of the log << 32 | number of the record.

    LIVE       a lookup must read the record
    DELIVERED  it is out for long; it decides only about a cancel of one timer, or a chase
    CANCELLED  the same; a later cancel never depends on it

A batch with cancels adds all records that were appended to the logs since the last such batch, as
one more run. So batches without cancels cost nothing, and a start reads nothing. Runs of similar
size are merged, so there are few; large ones are files without a name in the data directory, which
take page cache and no memory. The caller reads each result from the log; records of expired hours
are skipped, and dropped when their run is merged.

One id may have any number of records. A lookup returns `rows_max` live ones at most, and as many
others. Timer topics have equal parts, and share again the rows that some leave unused; in a topic
ids with few records come first. It names the ids that have more. Of such an id it returns the
newest ones, or, in every other lookup on average, neighbours from a random place on: lookups that
are repeated reach records below many that no cancel matches. `settle` takes records that decide
nothing out of later lookups. So an id with millions of records, and any number of ids with some,
cost the cancels of other topics a bounded time per batch.

Without room on the disk the hash columns of the logs are scanned: 50 to 100 million records a
second; then every record is live.

Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import structlog

from duewheel.checkpoints.commit_and_close_pages import Commit
from duewheel.checkpoints.fs import FileSystem
from duewheel.errors import CorruptFile
from duewheel.schemas.arrays import Bool, Int64, ranges
from duewheel.wheel.storage.byte_layouts import RECORD, RECORD_BYTES, lookup_hash_of
from duewheel.wheel.storage.data_directory import DataDirectory
from duewheel.wheel.storage.timer_log import Records

log = structlog.get_logger(__name__)

ROWS_AT_ONCE = 1 << 18  # 13 MiB of the log, mapped
ROWS_MAX = 1 << 16
SETTLED_MAX = 1 << 10

CANCELLED, LIVE, DELIVERED = range(3)
_CLASS_BITS = 2
_IN_MEMORY_ROWS = 1 << 14  # a smaller run is no file

_TABLE_BITS = (16, 24)  # fewest and most
_BITS_PER_HASH = 8
_LOW = np.dtype(">u4")  # the last bytes of a record: the lower bits of the hash
_HOUR_BITS = 32

_NONE: Int64 = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class LookedUp:
    """The result of a lookup."""

    positions: dict[int, Int64]  # of log records, by hour, including abandoned ones
    left: Int64  # hashes with live records beyond `rows_max`: the lookup is not whole
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
        self._runs: list[_Run] = []  # sizes fall by at least half
        self._added: dict[int, int] = {}  # number of indexed records, by hour
        self._last_rows: list[Int64] = []  # live rows of each run in the last result
        self._chance = np.random.default_rng(0)  # the same places for the same lookups

    def find(
        self, hashes: Int64, topic: Int64, with_settled: Int64, commit: Commit, *, whole: bool
    ) -> LookedUp:
        """Finds the log records with any of these hashes, which rise; `topic` is a number for each.
        `with_settled`: those of them that also need records that are not live. `whole`: live
        records are returned without a limit.

        Raises:
            CorruptFile: a log is shorter than it must be.
        """
        try:
            self._add_new(commit)
        except OSError as error:
            log.warning("no room for the index of ids: logs are scanned", reason=str(error))
            self.close()
            return LookedUp(dict(self._scan(hashes, commit)), _NONE, _NONE, _NONE)
        live, delivered, cancelled = (
            _Selected([run.bounds(hashes, kind) for run in self._runs], len(hashes))
            for kind in (LIVE, DELIVERED, CANCELLED)
        )
        taken = live.count if whole else _within(live.count, topic, self._rows_max)
        place = np.maximum(2 * self._chance.random(len(hashes)) - 1, 0)
        newer = (place * (live.count - taken + 1)).astype(np.int64)
        self._last_rows = live.last(taken, newer)
        settled_count = delivered.count + cancelled.count
        seen = np.minimum(settled_count, self._settled_max) * np.isin(hashes, with_settled)
        seen = _within(seen, topic, max(self._rows_max, self._settled_max))
        settled = [delivered.last(seen), cancelled.last(np.maximum(seen - delivered.count, 0))]
        addresses = [
            run.addresses[rows]
            for found in (self._last_rows, *settled)
            for run, rows in zip(self._runs, found, strict=True)
        ]
        # They would fill `rows_max` until their runs are merged.
        self._settle_where(lambda address: address >> _HOUR_BITS < self._gc_hour, CANCELLED)
        return LookedUp(
            self._by_hour(np.concatenate([_NONE, *addresses])),
            hashes[taken < live.count],
            hashes[delivered.count > 0],
            hashes[settled_count > seen],
        )

    def settle(self, hour: Int64, position: Int64, kind: int) -> None:
        """Makes these of the last returned live records DELIVERED or CANCELLED."""
        addresses = hour << _HOUR_BITS | position // RECORD_BYTES
        self._settle_where(lambda address: np.isin(address, addresses), kind)

    def _settle_where(self, is_over: Callable[[Int64], Bool], kind: int) -> None:
        """Settles the last returned live records whose addresses are over."""
        for number, run in enumerate(self._runs):
            rows = self._last_rows[number]
            over = is_over(run.addresses[rows])
            if over.any():
                self._last_rows[number] = run.settle(rows, over, kind)

    def close(self) -> None:
        self._runs, self._added, self._last_rows = [], {}, []

    def _by_hour(self, addresses: Int64) -> dict[int, Int64]:
        address = np.sort(addresses[addresses >> _HOUR_BITS >= self._gc_hour])
        hours, numbers = address >> _HOUR_BITS, address & ((1 << _HOUR_BITS) - 1)
        return {
            hour: numbers[hours == hour] * RECORD_BYTES
            for hour in np.unique(hours).tolist()  # few: one lap of the ring at most
        }

    @property
    def _gc_hour(self) -> int:
        return self._directory.state.live.gc_hour

    def _add_new(self, commit: Commit) -> None:
        """Adds the records that were appended since."""
        self._last_rows = []
        for hour, first, end in self._new_ranges(commit):
            try:
                view = self._directory.log.view(hour, end * RECORD_BYTES)
            except CorruptFile:
                if hour >= self._gc_hour:
                    raise
                continue
            hashes = lookup_hash_of(view["reserved"][first:end])
            order = np.argsort(hashes, kind="stable")
            run = _Run(self._directory.fs, self._directory.path, end - first)
            run.put(hashes[order] << _CLASS_BITS | LIVE, hour << _HOUR_BITS | (first + order))
            self._runs.append(run)
            self._added[hour] = end
            self._merge()

    def _merge(self) -> None:
        """Merges the last two runs until each run has less than half the rows of the one before."""
        while len(self._runs) > 1 and 2 * len(self._runs[-1]) > len(self._runs[-2]):
            older, newer = self._runs[-2:]
            run = _Run(self._directory.fs, self._directory.path, len(older) + len(newer))
            for keys, addresses in _merged(older, newer):
                kept = addresses >> _HOUR_BITS >= self._gc_hour
                run.put(keys[kept], addresses[kept])
            self._runs[-2:] = [run]

    def _new_ranges(self, commit: Commit) -> Iterator[tuple[int, int, int]]:
        """Yields records outside the index: hour, first and end, a bounded number at once."""
        for hour, lengths in sorted(commit.hours.items()):
            records = lengths.log_bytes // RECORD_BYTES
            for first in range(self._added.get(hour, 0), records, ROWS_AT_ONCE):
                if hour >= self._gc_hour:
                    yield hour, first, min(first + ROWS_AT_ONCE, records)

    def _scan(self, hashes: Int64, commit: Commit) -> Iterator[tuple[int, Int64]]:
        """Finds the same positions in the logs alone."""
        table = _lower_bits(hashes)
        for hour, lengths in sorted(commit.hours.items()):
            if hour < self._gc_hour or not lengths.log_bytes:
                continue
            view, parts = self._directory.log.view(hour, lengths.log_bytes), []
            count = lengths.log_bytes // RECORD_BYTES
            for first in range(0, count, ROWS_AT_ONCE):
                block = view[first : min(first + ROWS_AT_ONCE, count)]
                parts.append(first + _with_hashes(block, hashes, table))
            found = np.concatenate(parts)
            if len(found):
                yield hour, found * RECORD_BYTES


class _Run:
    """Rows in the order of their keys: hash << _CLASS_BITS | class."""

    def __init__(self, fs: FileSystem, folder: Path, rows_max: int) -> None:
        """Makes room for `rows_max` rows; a large run is a file in `folder`.

        Raises:
            OSError: the disk has no room for it.
        """
        if rows_max < _IN_MEMORY_ROWS:
            columns = np.empty(2 * rows_max, np.int64)
        else:
            fd = fs.open_unnamed(folder)
            try:
                fs.allocate(fd, 16 * rows_max)
                columns = np.frombuffer(fs.map(fd, 16 * rows_max, writable=True), np.int64)
            finally:
                fs.close(fd)
        self._keys, self._addresses = columns[:rows_max], columns[rows_max:]
        self._rows = 0

    def __len__(self) -> int:
        return self._rows

    @property
    def keys(self) -> Int64:
        return self._keys[: self._rows]

    @property
    def addresses(self) -> Int64:
        return self._addresses[: self._rows]

    def put(self, keys: Int64, addresses: Int64) -> None:
        """Adds rows with keys above the present ones."""
        first, self._rows = self._rows, self._rows + len(keys)
        self._keys[first : self._rows], self._addresses[first : self._rows] = keys, addresses

    def bounds(self, hashes: Int64, kind: int) -> tuple[Int64, Int64]:
        """Returns the first row of each hash in a class, and the end of its rows."""
        key = hashes << _CLASS_BITS | kind
        return np.searchsorted(self.keys, key), np.searchsorted(self.keys, key + 1)

    def settle(self, rows: Int64, over: Bool, kind: int) -> Int64:
        """Changes the class of those of the LIVE `rows` that are `over` to `kind`; returns the new
        places of the others.
        """
        hashes, count = np.unique(self.keys[rows] >> _CLASS_BITS, return_counts=True)
        first, end = self.bounds(hashes, LIVE)
        # Rows change places with the first or the last ones of their hash: CANCELLED comes before
        # LIVE, DELIVERED after it.
        ends = np.union1d(ranges(first, count), ranges(end - count, count))
        places = np.union1d(rows, ends)
        is_over = np.zeros(len(places), np.bool_)
        is_over[np.searchsorted(places, rows)] = over
        is_rest = np.zeros(len(places), np.bool_)
        is_rest[np.searchsorted(places, rows)] = ~over
        keys = np.where(is_over, self.keys[places] + kind - LIVE, self.keys[places])
        order = np.argsort(keys, kind="stable")
        self._keys[places], self._addresses[places] = keys[order], self._addresses[places[order]]
        rest: Int64 = places[is_rest[order]]
        return rest


class _Selected:
    """The rows of some hashes in one class, in all runs; `bounds` has those of each hash by run."""

    def __init__(self, bounds: list[tuple[Int64, Int64]], hashes: int) -> None:
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


def _merged(older: _Run, newer: _Run) -> Iterator[tuple[Int64, Int64]]:
    """Yields the rows of both runs in the order of their keys, a bounded number at once."""
    at, ends = [0, 0], [len(older), len(newer)]
    while at != ends:
        parts = [
            run.keys[first : first + ROWS_AT_ONCE]
            for run, first in zip((older, newer), at, strict=True)
        ]
        # Rows above the lower of both last keys may follow rows that are not in these parts.
        lasts = [
            part[-1]
            for part, first, end in zip(parts, at, ends, strict=True)
            if first + len(part) < end
        ]
        counts = [
            int(np.searchsorted(part, min(lasts), "right")) if lasts else len(part)
            for part in parts
        ]
        keys = np.concatenate([part[:count] for part, count in zip(parts, counts, strict=True)])
        addresses = np.concatenate(
            [
                run.addresses[first : first + count]
                for run, first, count in zip((older, newer), at, counts, strict=True)
            ]
        )
        order = np.argsort(keys, kind="stable")
        yield keys[order], addresses[order]
        at = [first + count for first, count in zip(at, counts, strict=True)]


def _with_hashes(records: Records, hashes: Int64, table: Bool) -> Int64:
    """Selects the records (neighbours of a log) with one of these hashes (rising); `table` is
    `_lower_bits` of the hashes.
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
    at = np.minimum(np.searchsorted(hashes, hash_of), len(hashes) - 1)
    matching: Int64 = rows[hashes[at] == hash_of]
    return matching


def _lower_bits(hashes: Int64) -> Bool:
    """Makes a table of the lower bits, with enough bits that few records need a full comparison."""
    fewest, most = _TABLE_BITS
    bits = min(max((_BITS_PER_HASH * len(hashes)).bit_length(), fewest), most)
    table = np.zeros(1 << bits, np.bool_)
    table[hashes & (len(table) - 1)] = True
    return table
