"""Cancels whose timers are due much later, on disk until then.

A cancel acts when a slot with one of its timers is delivered, and need not be in memory before:
what it meets lies in slots from `first` on, and does not move (a copy that comes later brings the
cancel again: bringing_again.py). So what is far can be *put away*, and is *brought back* before the
slots from `first` on are delivered.

    put away      a run of cancels by rising `first`, cut into pages; a file of its own for each run
    brought back  of all runs, the pages that begin up to a slot, those that begin first first

In memory is, of each page, where it begins and lies, and of each run its lowest offsets and
segment: K and the cancel log wait for what is put away as for what is not.

The files have no names: they vanish with the process, which learns of all cancels anew when it
starts (cancel_reader.py). So nothing of this has to outlive anything, nor to be recovered. A page
is an Arrow record batch as it is sent between processes; its checksum stays in memory.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from duewheel.checkpoints import files
from duewheel.errors import CorruptFile, RecoveryPending
from duewheel.schemas.columns import large_binary
from duewheel.schemas.timers import Bool, Int64
from duewheel.wheel.growing import GrowingTombstones
from duewheel.wheel.tombstones import Tombstones

RUNS_MAX = 256  # each has a file open
CROWD = 1_024  # as many of one slot in a run are counted
PAGE = 4_096  # cancels
_NEVER = np.iinfo(np.int64).max
_NAMELESS = Path("cancels put away")

# The published types of Arrow do not know numpy's arrays.
_pa: Any = pa
_COLUMNS = [field.name for field in fields(Tombstones)]


@dataclass(frozen=True, slots=True)
class _Page:
    """Some cancels of a run.

    Attributes:
        first: the least `first` of all in this page and the next ones.
        position, size, check: where it lies in the file, and its CRC-32C.
    """

    first: int
    position: int
    size: int
    check: int


@dataclass(frozen=True, slots=True)
class _Run:
    """Cancels that were put away at once.

    Attributes:
        fd: of their file.
        schema: of its pages.
        pages: that are not brought back yet, by rising `first`.
        k: the lowest offset in each partition that was known then; the greatest number where there
            is none.
        hour: the lowest segment of the cancel log.
    """

    fd: int
    schema: pa.Schema
    pages: deque[_Page]
    k: Int64
    hour: int


class FarCancels:
    """Of one data directory. Not thread-safe: the loop owns it."""

    def __init__(self, folder: Path) -> None:
        """
        Args:
            folder: on whose disk they are put away.
        """
        self._folder = folder
        self._runs: list[_Run] = []
        self._count = 0
        self._crowds: Counter[int] = Counter()

    def __len__(self) -> int:
        """How many are put away."""
        return self._count

    @property
    def is_full(self) -> bool:
        """Whether no more can be put away."""
        return len(self._runs) >= RUNS_MAX

    def may_go(self, first: Int64, most: int) -> Bool:
        """Which cancels may be put away: not of a slot of which so many are, for all of one slot
        come back at once.

        Args:
            first: of each.
            most: of one slot; what is beyond it at once does not count, nor do small parts of runs.
        """
        full = [slot for slot, count in self._crowds.items() if count >= most]
        return ~np.isin(first, np.array(full, np.int64))

    @property
    def hour(self) -> int:
        """The lowest segment of the cancel log; the greatest number if there is none."""
        return min((run.hour for run in self._runs), default=_NEVER)

    def k(self, partitions: int) -> Int64:
        """The lowest offset in each of so many partitions; the greatest number if there is none."""
        k = np.full(partitions, _NEVER)
        for run in self._runs:
            k[: len(run.k)] = np.minimum(k[: len(run.k)], run.k)
        return k

    def put_away(self, live: Tombstones, rows: Int64) -> None:
        """Write those rows.

        Raises:
            OSError: the disk is full, or fails; nothing has changed.
        """
        rows = rows[np.argsort(live.first[rows], kind="stable")]
        fd = files.open_unnamed(self._folder)
        try:
            run = _written(fd, live, rows)
        except OSError:
            files.close(fd)
            raise
        self._runs.append(run)
        self._count += len(rows)
        slots, counts = np.unique(live.first[rows], return_counts=True)
        many = counts >= CROWD
        self._crowds.update(dict(zip(slots[many].tolist(), counts[many].tolist(), strict=True)))

    def bring_back(self, after: int, until: int, most: int) -> tuple[Tombstones, int]:
        """What is needed before slots are delivered, and the last slot that may be.

        It is less than `until` if more would come back; all of one slot come at once.

        Args:
            after: last slot delivered in full.
            until: last slot to be delivered, if possible.
            most: how many may come, but for a page, and those of the first slot.

        Raises:
            RecoveryPending: a file is damaged: the next start learns of all cancels anew.
        """
        back = GrowingTombstones()
        begins = [(run.pages[0].first, number) for number, run in enumerate(self._runs)]
        heapq.heapify(begins)
        while begins and begins[0][0] <= until:
            first, number = heapq.heappop(begins)
            if len(back) >= most and first > after + 1:
                until = first - 1
                break
            run = self._runs[number]
            page = run.pages.popleft()
            back.append(_read(run, page))
            if run.pages:
                heapq.heappush(begins, (run.pages[0].first, number))
        self._count -= len(back)
        for run in self._runs:
            if not run.pages:
                files.close(run.fd)
        self._runs = [run for run in self._runs if run.pages]
        for slot in [slot for slot in self._crowds if slot <= until]:
            del self._crowds[slot]
        return back.rows, until

    def close(self) -> None:
        """Let go of the files, and of what is in them."""
        for run in self._runs:
            files.close(run.fd)
        self._runs, self._count = [], 0


def _written(fd: int, live: Tombstones, rows: Int64) -> _Run:
    pages, position, schema = deque[_Page](), 0, _batch(live.take(rows[:0])).schema
    for begin in range(0, len(rows), PAGE):
        part = live.take(rows[begin : begin + PAGE])
        octets = memoryview(_batch(part).serialize())
        files.write_at(fd, octets, position)
        check = crc32c(octets)
        pages.append(_Page(int(part.first[0]), position, len(octets), check))
        position += len(octets)
    k = np.full(int(live.partition[rows].max()) + 1, _NEVER)
    np.minimum.at(k, live.partition[rows], live.offset[rows])
    return _Run(fd, schema, pages, k, int(live.hour[rows].min()))


def _read(run: _Run, page: _Page) -> Tombstones:
    octets = bytearray(page.size)
    try:
        files.read_into(run.fd, memoryview(octets), page.position, _NAMELESS)
    except (CorruptFile, OSError) as error:
        raise RecoveryPending(f"{error}: starting anew") from error
    if crc32c(octets) != page.check:
        raise RecoveryPending("what was put away of cancels is damaged: starting anew")
    batch = _pa.ipc.read_record_batch(_pa.py_buffer(octets), run.schema)
    columns = {name: batch.column(name) for name in _COLUMNS}
    ids = large_binary(columns.pop("timer_id"))
    arrays = {n: column.to_numpy(zero_copy_only=False) for n, column in columns.items()}
    return Tombstones(timer_id=ids, **arrays)


def _batch(cancels: Tombstones) -> pa.RecordBatch:
    columns = [_pa.array(getattr(cancels, name)) for name in _COLUMNS]
    batch: pa.RecordBatch = _pa.RecordBatch.from_arrays(columns, names=_COLUMNS)
    return batch
