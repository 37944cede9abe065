"""The TimerLog: 52-byte records (bytes: byte_layouts.py) in one append-only file per slot hour.

    position    0    52   104   156   …   520   572        of one hour's log
    slot        a     a     a     b   …     a     a
    prev_pos   −1     0    52    −1   …   104   520
    distance    0     1     2     0   …     0     1        so the runs are 0–104, 156, 520–572

    entry of slot a in the TimerWheel: first_pos 0, last_pos 572, num 5

- A batch is sorted by slot, so the records of one slot of one batch are neighbours: a *run*.
  Inside it prev_pos is the record before; the run's first record points to the last record of the
  slot's previous run. Every record has its distance to the run's first.
- Invariant: prev_pos is lower than the record's own position, and in the same hour's file. So a
  walk ends, and never leaves one file.
- Records beyond the committed length belong to no batch. Committed ones never change, except for
  the byte that marks a record as cancelled.
- All closing slots are walked in lockstep, one gather per generation of runs: with delays spread
  widely runs are one record long, and a loop per record would be tens of times slower. The few
  longest chains are finished one by one: if thousands of batches have timers in one slot, a gather
  for each of its runs would be tens of times slower, too.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from duewheel.checkpoints.fs import HOST_FS, FileSystem
from duewheel.errors import CorruptFile
from duewheel.schemas.arrays import Int64
from duewheel.wheel.slots import hour_of
from duewheel.wheel.storage.byte_layouts import (
    MAGIC_ABANDONED,
    MAGIC_CANCELLED,
    NO_POSITION,
    RECORD,
    RECORD_BYTES,
    Entries,
    cancelled_bytes,
    distance_of,
    link_at,
    slots_in,
)
from duewheel.wheel.storage.hour_files import HourFiles
from duewheel.wheel.storage.runs import Runs, SlotRuns

FOLDER = "timerlog"

# A whole log is read in blocks of this many records, 52 MB; of more if one run is longer.
BLOCK_RECORDS = 1_000_000

# A gather takes some 20 µs, a step along one chain 0.5 µs: fewer chains are walked one by one.
_CHAINS_ALONE_MAX = 32
_FORWARD = "a chain runs forward"
_OUTSIDE = "a chain points outside the log"

Records = npt.NDArray[np.void]  # of dtype RECORD


class TimerLog:
    """The log of every hour. Ingest writes, all processes read. Not thread-safe."""

    def __init__(self, directory: Path, fs: FileSystem = HOST_FS) -> None:
        self.files = HourFiles(directory / FOLDER, fs)
        self._fs = fs
        self._views: dict[int, Records] = {}
        self._marks: dict[int, npt.NDArray[np.uint8]] = {}

    def view(self, hour: int, log_bytes: int) -> Records:
        """Maps the hour's records read-only, at least up to position `log_bytes`.

        Raises:
            CorruptFile: the file is shorter than that.
        """
        view = self._views.get(hour)
        if view is None or view.nbytes < log_bytes:
            size = self.files.size(hour)
            if size < log_bytes:
                path = self.files.path(hour)
                raise CorruptFile(path, size, f"the log ends before position {log_bytes}")
            whole = size - size % RECORD_BYTES
            # An empty file cannot be mapped.
            mapped = self._fs.map(self.files.fd(hour), whole, writable=False) if whole else b""
            view = self._views[hour] = np.frombuffer(mapped, RECORD)
        return view

    def mark_cancelled(self, hour: int, log_bytes: int, positions: Int64) -> None:
        """Marks the records at these positions as cancelled, with a store of one byte each: a kill
        leaves a record either unchanged or cancelled.

        Raises:
            CorruptFile: the file is shorter than `log_bytes`, or a position is not that of a
                record.
        """
        octets = self._cancelled_bytes(hour, log_bytes)
        bad = (positions < 0) | (positions % RECORD_BYTES != 0) | (positions >= log_bytes)
        if np.any(bad):
            at = int(positions[bad][0])
            raise CorruptFile(self.files.path(hour), at, "a cancelled record lies outside the log")
        octets[positions // RECORD_BYTES] = MAGIC_CANCELLED

    def remove_marks(self, hour: int, log_bytes: int) -> None:
        """Marks no record of an hour as cancelled.

        Raises:
            CorruptFile: the file is shorter than `log_bytes`.
        """
        octets = self._cancelled_bytes(hour, log_bytes)
        octets[octets == MAGIC_CANCELLED] = 0

    def _cancelled_bytes(self, hour: int, log_bytes: int) -> npt.NDArray[np.uint8]:
        """Maps the byte of each record that marks it as cancelled, writable."""
        octets = self._marks.get(hour)
        if octets is None or len(octets) * RECORD_BYTES < log_bytes:
            path, size = self.files.path(hour), self.files.size(hour)
            if size < log_bytes:
                raise CorruptFile(path, size, f"the log ends before position {log_bytes}")
            whole = size - size % RECORD_BYTES
            mapped = self._fs.map(self.files.fd(hour), whole, writable=True)
            octets = self._marks[hour] = cancelled_bytes(np.frombuffer(mapped, np.uint8))
        return octets

    def read(self, hour: int, start: int, end: int) -> Records:
        """Reads copies of the records between two positions."""
        return np.frombuffer(self.files.read(hour, start, end - start), RECORD)

    def blocks(
        self, hour: int, log_bytes: int, block_records: int = BLOCK_RECORDS
    ) -> Iterator[tuple[int, Records]]:
        """Reads an hour's records in order, a bounded number of whole runs at a time: the position
        of the first one, and copies.

        Raises:
            CorruptFile: the file is shorter than `log_bytes`.
        """
        start, wanted = 0, block_records
        while start < log_bytes:
            end = min(start + wanted * RECORD_BYTES, log_bytes)
            records = self.read(hour, start, end)
            if end < log_bytes:
                # The last run may continue after `end`: it belongs to the next block.
                begins = np.flatnonzero(distance_of(records["reserved"]) == 0)
                records = records[: begins[-1] if len(begins) else 0]
            if not len(records):
                wanted *= 2
                continue
            yield start, records
            start, wanted = start + records.nbytes, block_records

    def runs(self, hour: int, records: Records, start: int, precision_ms: int) -> Runs:
        """Finds the runs in an hour's records, as `runs_in`, and verifies that they can be linked.

        Raises:
            CorruptFile: a run is another hour's, and would take the entry of another slot; or it
                does not lead back, and its chain would not end.
        """
        runs = runs_in(records, start, precision_ms)
        bad = (hour_of(runs.slot, precision_ms) != hour) | (runs.prev_pos >= runs.first_pos)
        if np.any(bad):
            row = int(np.flatnonzero(bad)[0])
            detail = f"a run of slot {runs.slot[row]} behind position {runs.prev_pos[row]}"
            raise CorruptFile(self.files.path(hour), int(runs.first_pos[row]), detail)
        return runs

    def slots_at(self, hour: int, log_bytes: int, positions: Int64, precision_ms: int) -> Int64:
        """Returns the slot of the record at each position below `log_bytes`; −1 for a position
        without a live record.

        Raises:
            CorruptFile: the file is shorter than `log_bytes`.
        """
        inside = (positions >= 0) & (positions % RECORD_BYTES == 0)
        inside &= positions + RECORD_BYTES <= log_bytes
        slots = np.full(len(positions), -1)
        if inside.any():
            view = self.view(hour, log_bytes)
            records = view.take(positions[inside] // RECORD_BYTES)
            alive = records["magic"] != MAGIC_ABANDONED
            slots[inside] = np.where(alive, slots_in(records, precision_ms), -1)
        return slots

    def forget_below(self, hour: int) -> None:
        self.files.forget_below(hour)
        for mapped in (self._views, self._marks):
            for old in [h for h in mapped if h < hour]:
                del mapped[old]

    def unlink_below(self, hour: int) -> None:
        self.forget_below(hour)
        self.files.unlink_below(hour)

    def walk(self, hour: int, entries: Entries, *, alone_max: int = _CHAINS_ALONE_MAX) -> SlotRuns:
        """Walks the chains of the given slots of one hour, from the wheel's entries. At most
        `alone_max` chains are finished one by one.

        Raises:
            CorruptFile: a chain leaves the file, does not lead back, or has another number of
                records than its entry says.
        """
        last = entries["last_pos"].astype(np.int64)
        owner = np.arange(len(entries))
        view = self.view(hour, int(last.max(initial=-RECORD_BYTES)) + RECORD_BYTES)
        generations: list[tuple[Int64, Int64, Int64]] = []
        while len(last) > alone_max:
            first, count, previous = self._one_generation(hour, view, last)
            generations.append((owner, first, count))
            more = previous != NO_POSITION
            forward = more & (previous >= first)
            if np.any(forward):
                at = int(first[forward][0])
                raise CorruptFile(self.files.path(hour), at, _FORWARD)
            owner, last = owner[more], previous[more]
        for of, end in zip(owner.tolist(), last.tolist(), strict=True):
            first, count = self._one_chain(hour, view, end)
            generations.append((np.full(len(first), of), first, count))
        found, first, count = (
            np.concatenate(parts) if generations else np.empty(0, np.int64)
            for parts in (zip(*generations, strict=True) if generations else ((), (), ()))
        )
        expected = entries["num"].astype(np.int64)
        counted = np.bincount(found, weights=count, minlength=len(entries)).astype(np.int64)
        if np.any(counted != expected):
            bad = int(np.flatnonzero(counted != expected)[0])
            raise CorruptFile(
                self.files.path(hour),
                int(entries["last_pos"][bad]),
                f"slot {entries['time'][bad]} has {counted[bad]} records, its entry says "
                f"{expected[bad]}",
            )
        order = np.lexsort((first, found))
        slots = entries["time"].astype(np.int64)
        return SlotRuns(slots[found[order]], first[order], count[order])

    def _one_generation(self, hour: int, view: Records, last: Int64) -> tuple[Int64, Int64, Int64]:
        """Returns first position, length and predecessor of the runs that end at `last`."""
        self._require_inside(hour, view, last)
        distance = distance_of(view["reserved"][last // RECORD_BYTES])
        first = last - distance * RECORD_BYTES
        self._require_inside(hour, view, first)
        previous = view["prev_pos"][first // RECORD_BYTES].astype(np.int64)
        return first, distance + 1, previous

    def _one_chain(self, hour: int, view: Records, last: int) -> tuple[Int64, Int64]:
        """Returns first position and length of each run of the chain that ends at `last`."""
        octets = view.view(np.uint8).data
        firsts, counts = array("q"), array("q")
        while True:
            if not 0 <= last < len(octets) or last % RECORD_BYTES:
                raise CorruptFile(self.files.path(hour), last, _OUTSIDE)
            previous, distance = link_at(octets, last)
            first = last
            if distance:
                first -= distance * RECORD_BYTES
                if first < 0:
                    raise CorruptFile(self.files.path(hour), first, _OUTSIDE)
                previous, _ = link_at(octets, first)
            # A damaged chain that leads ahead could be a ring: the walk would not end.
            if previous >= first:
                raise CorruptFile(self.files.path(hour), first, _FORWARD)
            firsts.append(first)
            counts.append(distance + 1)
            if previous == NO_POSITION:
                break
            last = previous
        return np.array(firsts, np.int64), np.array(counts, np.int64)

    def _require_inside(self, hour: int, view: Records, positions: Int64) -> None:
        # numpy would read a negative position from the end of the log.
        bad = (positions < 0) | (positions >= view.nbytes) | (positions % RECORD_BYTES != 0)
        if np.any(bad):
            at = int(positions[bad][0])
            raise CorruptFile(self.files.path(hour), at, _OUTSIDE)

    def close(self) -> None:
        self._views.clear()
        self._marks.clear()
        self.files.close()


def runs_in(records: Records, start: int, precision_ms: int) -> Runs:
    """Finds the runs in neighbouring records from position `start` on, without abandoned records,
    for redo, rebuild and check.
    """
    alive = np.flatnonzero(records["magic"] != MAGIC_ABANDONED)
    kept = records[alive]
    firsts = np.flatnonzero(distance_of(kept["reserved"]) == 0)
    lasts = np.append(firsts[1:], len(kept))[: len(firsts)] - 1
    position = start + alive * RECORD_BYTES
    return Runs(
        slots_in(kept[firsts], precision_ms),
        position[firsts],
        position[lasts],
        kept["prev_pos"][firsts].astype(np.int64),
        lasts - firsts + 1,
    )
