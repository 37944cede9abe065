"""The sorted runs of the index of ids (id_index.py): a row for each log record, in four columns.

    key           lookup hash of the timer's id << 2 | class of the record
    address       hour of the log << 32 | number of the record in it
    first offset  of the timer, or NOT_READ: only the message has it
    id key        of its partition and id (cancel_lookup.id_keys), once that is read

Rows are in the order of their keys. A large run is a file without a name in the data directory,
which takes page cache and no memory. Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from duewheel.checkpoints.fs import FileSystem
from duewheel.schemas.arrays import Bool, Int64, ranges

ROWS_AT_ONCE = 1 << 18  # 8 MiB of a run; 13 MiB of the log, mapped
_IN_MEMORY_ROWS = 1 << 14  # a smaller run is no file

CANCELLED, LIVE, DELIVERED = range(3)  # see id_index.py
_CLASS_BITS = 2
HOUR_BITS = 32
NOT_READ = np.iinfo(np.int64).min  # below every offset

_COLUMNS = 4
_KEY, ADDRESS, _FIRST_OFFSET, _ID_KEY = range(_COLUMNS)
_ROW_BYTES = 8 * _COLUMNS


class Run:
    """Rows in the order of their keys."""

    def __init__(
        self, fs: FileSystem, folder: Path, rows_max: int, *, in_memory: bool = False
    ) -> None:
        """Makes room for `rows_max` rows; a large run is a file in `folder`, unless `in_memory`.

        Raises:
            OSError: the disk has no room for it.
        """
        size = _ROW_BYTES * rows_max
        if in_memory or rows_max < _IN_MEMORY_ROWS:
            columns = np.empty(_COLUMNS * rows_max, np.int64)
        else:
            fd = fs.open_unnamed(folder)
            try:
                fs.allocate(fd, size)
                columns = np.frombuffer(fs.map(fd, size, writable=True), np.int64)
            finally:
                fs.close(fd)
        self._columns = columns.reshape(_COLUMNS, rows_max)
        self._rows = 0

    def __len__(self) -> int:
        return self._rows

    @property
    def columns(self) -> Int64:
        """All rows: shape (4, rows)."""
        return self._columns[:, : self._rows]

    @property
    def keys(self) -> Int64:
        keys: Int64 = self.columns[_KEY]
        return keys

    @property
    def addresses(self) -> Int64:
        addresses: Int64 = self.columns[ADDRESS]
        return addresses

    @property
    def first_offsets(self) -> Int64:
        """They may be changed."""
        first: Int64 = self.columns[_FIRST_OFFSET]
        return first

    @property
    def id_keys(self) -> Int64:
        """They may be changed."""
        keys: Int64 = self.columns[_ID_KEY]
        return keys

    def put(self, rows: Int64) -> None:
        """Adds rows with keys above the present ones: shape (4, rows)."""
        first, self._rows = self._rows, self._rows + rows.shape[1]
        self._columns[:, first : self._rows] = rows

    def put_new(self, hashes: Int64, addresses: Int64) -> None:
        """Adds live rows with rising hashes above the present ones, which no lookup has read."""
        rows = np.zeros((_COLUMNS, len(hashes)), np.int64)
        rows[_KEY], rows[ADDRESS] = hashes << _CLASS_BITS | LIVE, addresses
        rows[_FIRST_OFFSET] = NOT_READ
        self.put(rows)

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
        ends = (ranges(first, count), ranges(end - count, count))
        # Not np.unique: it takes a microsecond for each of a million.
        places = np.sort(np.concatenate([rows, *ends]))
        places = places[np.append(True, np.diff(places) > 0)]
        is_over = np.zeros(len(places), np.bool_)
        is_over[np.searchsorted(places, rows)] = over
        is_rest = np.zeros(len(places), np.bool_)
        is_rest[np.searchsorted(places, rows)] = ~over
        moved = self._columns[:, places]
        moved[_KEY] = np.where(is_over, moved[_KEY] + kind - LIVE, moved[_KEY])
        order = np.argsort(moved[_KEY], kind="stable")
        self._columns[:, places] = moved[:, order]
        rest: Int64 = places[is_rest[order]]
        return rest


def merged(older: Run, newer: Run) -> Iterator[Int64]:
    """Yields the rows of both runs in the order of their keys, a bounded number at once. Of one key
    the rows of the older run come first: the last ones are the newest.
    """
    at, ends = [0, 0], [len(older), len(newer)]
    while at != ends:
        parts = [
            run.columns[:, first : first + ROWS_AT_ONCE]
            for run, first in zip((older, newer), at, strict=True)
        ]
        # Rows above the lower of both last keys may follow rows that are not in these parts.
        has_more = [
            first + part.shape[1] < end for part, first, end in zip(parts, at, ends, strict=True)
        ]
        lasts = [part[_KEY, -1] for part, more in zip(parts, has_more, strict=True) if more]
        counts = [
            int(np.searchsorted(part[_KEY], min(lasts), "right")) if lasts else part.shape[1]
            for part in parts
        ]
        if has_more[0] and parts[0][_KEY, -1] == min(lasts):
            # More rows of this key may follow in the older run.
            counts[1] = int(np.searchsorted(parts[1][_KEY], min(lasts), "left"))
        rows = np.concatenate(
            [part[:, :count] for part, count in zip(parts, counts, strict=True)], axis=1
        )
        yield rows.take(np.argsort(rows[_KEY], kind="stable"), axis=1)
        at = [first + count for first, count in zip(at, counts, strict=True)]
