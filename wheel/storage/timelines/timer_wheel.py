"""The TimerWheel file: a mapped ring of 2 × slots entries, each with the chain of one slot.

    entry       0         1                 s mod ring            ring − 1
              │    …    │    …    │   …   │ time = s     │   …   │    …    │
                                            first_pos ─► oldest record of s in timerlog/<hour of s>
                                            last_pos ──► newest one; its chain leads to the oldest

Invariants:

- Slot s has entry s mod ring; an entry that names an earlier lap's slot is empty for s. An entry
  that was never used names the lap before the first, a number below 0, and has num 0. One that was
  used holds positions of records. Any other content, all zero included, is damage
  (`require_sound`): a slot that seems empty by it would lose its timers.
- Half of the ring is for the future, half for the past while delivery lags. No undelivered slot is
  ever overwritten: slots beyond the ring are linked later (far_slots.py).
- (num, magic) is stored last, as one aligned 8-byte store. `magic` names the batch, so the redo of
  a half-applied batch adds nothing twice.
- The file is synced when it is made, and at a clean stop. After a loss of power a start rebuilds it
  from the logs.

Threads: this module takes no lock. Ingest writes its batches under engine.lock; under the same lock
the next holder redoes a batch, and dequeue links slots that the ring has come to reach. Readers use
only closed slots, whose entries no longer change. Not thread-safe.

Cost: some 30 ns per slot touched, whatever the number of pending timers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from duewheel.checkpoints.disk_room import Room
from duewheel.checkpoints.fs import HOST_FS, FileSystem, NewFile
from duewheel.errors import NO_ROOM, CorruptFile, DiskFull
from duewheel.schemas.arrays import Bool, Int64
from duewheel.wheel.storage.byte_layouts import (
    ENTRY,
    ENTRY_BYTES,
    NO_POSITION,
    RECORD_BYTES,
    Entries,
)
from duewheel.wheel.storage.runs import OnProgress, Runs

FILE_NAME = "timerwheel"

_BATCHES = 1 << 31  # the number of distinct names; ten batches a second use them up in seven years
_ENTRIES_AT_ONCE = 1 << 16  # a block of the ring that is copied at a time, 2 MiB


def _no_progress(_done: int, _all: int) -> None:
    pass


def batch_magic(batch: int) -> int:
    """Returns the name of a batch in entries."""
    return batch % _BATCHES


def newest_batch(entries: Entries, near: int) -> int:
    """Returns the sequence of the newest batch in entries, 0 if all are empty. Names repeat after
    _BATCHES batches: each stands for the batch nearest to `near`.
    """
    named = entries["magic"][entries["num"] > 0].astype(np.int64)
    ahead = (named - near + _BATCHES // 2) % _BATCHES - _BATCHES // 2
    return near + int(ahead.max(initial=-near))


def is_used(entries: Entries) -> Bool:
    """Returns for each entry whether it can be a slot's: it has records, and its positions are
    some.

    No earlier lap's log is kept to look them up. They may also disagree for a moment: a kill in
    `_put` leaves the new first position beside the former last one and number.
    """
    used: Bool = entries["num"] > 0
    for name in ("first_pos", "last_pos"):
        position = entries[name].astype(np.int64)
        used = used & (position >= 0) & (position % RECORD_BYTES == 0)
    return used


class TimerWheel:
    """The mapped ring; see the module's head."""

    def __init__(self, path: Path, ring: int, fs: FileSystem = HOST_FS) -> None:
        size = ring * ENTRY_BYTES
        try:
            found = path.stat().st_size
        except FileNotFoundError as error:
            raise CorruptFile(path, 0, "there is no wheel: timer.timeline may differ") from error
        if found != size:
            raise CorruptFile(path, 0, f"{found} bytes long, expected {size}")
        fd = fs.open_file(path)
        try:
            mapped = fs.map(fd, size, writable=True)
            self._inode = os.fstat(fd).st_ino
        finally:
            fs.close(fd)
        self.path = path
        self.ring = ring
        self._entries = np.frombuffer(mapped, ENTRY)
        self._num_magic = np.frombuffer(mapped, np.uint64)[3::4]

    @staticmethod
    def exists(path: Path, ring: int) -> bool:
        """Returns whether a file with the size of such a ring exists."""
        return path.exists() and path.stat().st_size == ring * ENTRY_BYTES

    @staticmethod
    def create(
        path: Path, ring: int, progress: OnProgress = _no_progress, fs: FileSystem = HOST_FS
    ) -> NewFile:
        """Writes and syncs an empty wheel, which the caller then puts in place: gigabytes take
        minutes. `progress` gets bytes done and bytes in all.

        Raises:
            DiskFull: the file system has too little room.
        """
        size = ring * ENTRY_BYTES
        free = Room.of(path.parent).free_bytes
        try:
            new = NewFile(path, size, fs)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            raise DiskFull(
                f"{path}: the wheel takes {size >> 20} MiB, {free >> 20} are free there: make "
                "room, lower timer.slots, or set storage.data_dir to a larger disk"
            ) from error
        try:
            for first in range(0, ring, _ENTRIES_AT_ONCE):
                progress(first * ENTRY_BYTES, size)
                unused = _unused(first, min(first + _ENTRIES_AT_ONCE, ring), ring)
                new.write(unused.tobytes(), first * ENTRY_BYTES)
            new.sync()
            progress(size, size)
        except BaseException:
            new.close()
            raise
        return new

    @property
    def is_in_place(self) -> bool:
        """Whether the mapped file still has its name."""
        try:
            return self.path.stat().st_ino == self._inode
        except FileNotFoundError:
            return False

    def last_positions(self, slots: Int64, before: Int64) -> Int64:
        """Returns the newest record of each slot (not delivered yet), NO_POSITION where it is
        empty. The slot's chain is below `before`, the position of its next record.

        Raises:
            CorruptFile: an entry leads elsewhere; a new record would be linked to no record.
        """
        entries = self._entries.take(slots % self.ring)
        mine = (entries["time"] == slots) & (entries["num"] > 0)
        last = entries["last_pos"].astype(np.int64)
        bad = mine & ((last < 0) | (last >= before) | (last % RECORD_BYTES != 0))
        if np.any(bad):
            row = int(np.flatnonzero(bad)[0])
            detail = f"slot {slots[row]} ends at {last[row]}, its log before {before[row]}"
            raise CorruptFile(self.path, int(slots[row]) % self.ring * ENTRY_BYTES, detail)
        return np.where(mine, last, NO_POSITION)

    def require_sound(self, slots: Int64) -> tuple[Int64, Int64]:
        """Refuses entries of these slots that only damage explains. The slots are not delivered
        yet: else a later lap may have their entries. Returns the slots whose entry names another
        lap's slot, and its last_pos: the entry alone does not show whether its `time` is damaged.

        Raises:
            CorruptFile: names the first such slot.
        """
        entries = self._entries.take(slots % self.ring)
        time = entries["time"]
        unused = (time == slots % self.ring - self.ring) & (entries["num"] == 0)
        used = (time <= slots) & (time % self.ring == slots % self.ring) & is_used(entries)
        possible = used | unused
        if not np.all(possible):
            bad = int(np.flatnonzero(~possible)[0])
            place = int(slots[bad]) % self.ring
            detail = f"no entry of slot {slots[bad]} or of an earlier lap: {entries[bad].item()}"
            raise CorruptFile(self.path, place * ENTRY_BYTES, detail)
        earlier = used & (time < slots)
        return slots[earlier], entries["last_pos"][earlier].astype(np.int64)

    def apply(self, runs: Runs, batch: int) -> None:
        """Links a batch's runs. A second call, after a kill during the first, changes nothing.

        Raises:
            CorruptFile: an entry has the batch's name without its run.
        """
        assert np.all(runs.first_pos > runs.prev_pos), "a chain leads back"
        magic = batch_magic(batch)
        at = runs.slot % self.ring
        entries = self._entries.take(at)
        named = entries["time"] == runs.slot
        done = named & (entries["magic"] == magic) & (entries["num"] > 0)
        wrong = done & (entries["last_pos"] != runs.last_pos)
        if np.any(wrong):  # the batch's name is damaged, and the run would be left out
            row = int(np.flatnonzero(wrong)[0])
            detail = f"batch {batch} ends slot {runs.slot[row]} elsewhere: {entries[row].item()}"
            raise CorruptFile(self.path, int(at[row]) * ENTRY_BYTES, detail)
        self._put(runs.where(~done), magic)

    def _put(self, runs: Runs, magic: int) -> None:
        at = runs.slot % self.ring
        entries = self._entries.take(at)
        # prev_pos shows whether the slot was empty, the entry does not: a half-applied batch may
        # already have its name there.
        fresh = runs.prev_pos == NO_POSITION
        num = np.where(fresh, 0, entries["num"].astype(np.int64)) + runs.count
        # (num, magic) last: with the batch's name before the fields, a redo after a kill would take
        # the run for linked, and leave it out.
        self._entries["first_pos"][at] = np.where(fresh, runs.first_pos, entries["first_pos"])
        self._entries["last_pos"][at] = runs.last_pos
        self._entries["time"][at] = runs.slot
        packed = (num.astype(np.uint64) << np.uint64(32)) | np.uint64(magic)
        self._num_magic[at] = packed.byteswap()

    def clear(self) -> None:
        for first in range(0, self.ring, _ENTRIES_AT_ONCE):
            end = min(first + _ENTRIES_AT_ONCE, self.ring)
            self._entries[first:end] = _unused(first, end, self.ring)

    def link(self, runs: Runs, batch: int) -> None:
        """Links runs of many batches, several per slot, oldest first, for a rebuild or for slots
        that the ring has come to reach. A slot's first run replaces the content of its entry. If
        slots share an entry, the latest one gets it: an entry is used again only when its earlier
        slot is delivered.
        """
        order = np.argsort(runs.slot, kind="stable")
        slot = runs.slot[order]
        firsts = np.flatnonzero(np.append(True, slot[1:] != slot[:-1])[: len(slot)])
        lasts = np.append(firsts[1:], len(slot))[: len(firsts)] - 1
        counts = np.add.reduceat(runs.count[order], firsts) if len(slot) else slot
        whole = Runs(
            slot[firsts],
            runs.first_pos[order][firsts],
            runs.last_pos[order][lasts],
            runs.prev_pos[order][firsts],
            counts,
        )
        entries = self._entries.take(whole.slot % self.ring)
        latest = (entries["num"] == 0) | (entries["time"] <= whole.slot)
        self._put(whole.where(latest), batch_magic(batch))

    def range(self, after: int, until: int) -> Entries:
        """Copies the non-empty entries of slots after < s ≤ until, in slot order."""
        assert 0 <= until - after <= self.ring
        first, last = (after + 1) % self.ring, (until + 1) % self.ring
        slots = np.arange(after + 1, until + 1)
        if until == after:
            entries = self._entries[:0]
        elif first < last:
            entries = self._entries[first:last]
        else:
            entries = np.concatenate([self._entries[first:], self._entries[:last]])
        filled: Entries = entries[(entries["time"] == slots) & (entries["num"] > 0)]
        return filled.copy()

    def count(self, after: int, until: int) -> int:
        """Counts the records of the slots after < s ≤ until."""
        return sum(
            int(e["num"][(e["time"] > after) & (e["time"] <= until)].sum()) for e in self._blocks()
        )

    def newest_batch(self, near: int) -> int:
        """Returns the newest batch of the ring, as the function `newest_batch`."""
        return max(newest_batch(entries, near) for entries in self._blocks())

    def _blocks(self) -> Iterator[Entries]:
        for first in range(0, self.ring, _ENTRIES_AT_ONCE):
            yield self._entries[first : first + _ENTRIES_AT_ONCE]

    def view(self) -> Entries:
        """Returns the whole ring, uncopied: valid only while no other process writes."""
        return self._entries

    def snapshot(self) -> Entries:
        return self._entries.copy()


def _unused(first: int, end: int, ring: int) -> Entries:
    """Makes the entries [first, end) of an unused ring."""
    entries = np.zeros(end - first, ENTRY)
    entries["time"] = np.arange(first, end) - ring
    return entries
