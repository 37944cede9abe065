"""Slots beyond the ring: their rows are committed to log and messages, and linked later.

Such slots come from a broker that stamps ahead, or a delivery that lags by a lap; a timer due
beyond the roll window rolls instead (wheel/roll_rule.py).

`state.linked` is the last slot with an entry in the wheel. A commit links its rows up to there; the
others are only in their hours' files. A linker links these once the ring reaches them, a range of
slots (linked, end] at a time, with end ≤ `Timeline.reach(lower)` and lower of the close page:

    1. without the lock: reads and verifies the committed records of the hours, and again those that
       were committed meanwhile, until they are few; collects first position, last position and
       count of each slot
    2. under engine.lock: the same for records that were committed meanwhile; overwrites the entries
       as a whole; then sets `linked` = end. Closed slots without rows count as linked, however far
       they are

A kill before the last store leaves `linked` unchanged: entries above it are not read, and the next
attempt writes them again. Overwritten entries are of slots up to `lower`, all delivered.

- Dequeue's loop links, or the follower of a standby: ingest may be down for longer than a lap. A
  closed range is delivered up to `linked` only, so no slot is delivered before it is linked.
- The checksum of a record covers its prev_pos, so ingest needs the slot's last record when it
  writes: timelines/chain_ends.py finds it in the logs.
- A damaged record could seem to be of a slot that was linked before. So records are verified before
  their slot closes; after damage all pending rows are read again from Kafka.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from duewheel.checkpoints.commit_and_close_pages import Commit
from duewheel.errors import CorruptFile
from duewheel.schemas.arrays import Int64
from duewheel.wheel.slots import hour_of
from duewheel.wheel.storage import message_store
from duewheel.wheel.storage.byte_layouts import NO_POSITION
from duewheel.wheel.storage.data_directory import DataDirectory
from duewheel.wheel.storage.log_scan import blocks
from duewheel.wheel.storage.message_store import MessageStore
from duewheel.wheel.storage.runs import Runs
from duewheel.wheel.storage.timer_log import TimerLog

_SLOTS_AT_ONCE = 1 << 17  # of a range: 3 MiB of positions and counts
_LOCKED_BYTES = 16 << 20  # of messages, verified under the lock: some 20 ms


class Linker:
    """Links the slots that the ring reaches, in steps of bounded work. For dequeue; not
    thread-safe.
    """

    def __init__(self, directory: DataDirectory) -> None:
        self._directory = directory
        self._range: _SlotRange | None = None

    def step(self, lower: int, floor: int = 0) -> bool:
        """Does one step; returns whether there are more. `lower` is that of the close page. Slots
        up to `floor` are closed: those without rows count as linked, whether the ring reaches them
        or not. After a stop of many laps most slots are of this kind.

        Raises:
            CorruptFile: a record or message is damaged; nothing of its range is linked.
            RecoveryPending: the files must be recovered first.
        """
        directory, state = self._directory, self._directory.state
        reach = directory.timeline.reach(lower)
        target = max(reach, floor)
        if state.linked >= target:
            return False
        after = max(state.linked, lower)
        if self._range is None or self._range.after != after:
            self.close()
            if self.is_empty(after, directory.state.commit()):
                with directory.locked() as commit:
                    if self.is_empty(after, commit):
                        state.set_linked(target)
                        return False
            self._range = self._next(after, target)
        slot_range = self._range
        if slot_range.read_on() or slot_range.continues(directory.state.commit()):
            return True
        with directory.locked() as commit:
            slot_range.read_up_to(commit)
            runs = slot_range.runs()
            beyond = runs.slot[runs.slot > reach]
            end = int(beyond[0]) - 1 if len(beyond) else slot_range.end
            directory.timeline.link(runs.where(runs.slot <= reach), commit.batch)
            # After the entries: with `linked` first, a kill between the two would deliver these
            # slots as empty.
            state.set_linked(end)
        self.close()
        return end < target

    def close(self) -> None:
        if self._range is not None:
            self._range.close()
            self._range = None

    def is_empty(self, after: int, commit: Commit) -> bool:
        """Returns whether no slot above `after` has a committed record."""
        first_hour = hour_of(after + 1, self._directory.config.precision_ms)
        return all(hour < first_hour for hour in commit.hours)

    def _next(self, after: int, target: int) -> _SlotRange:
        commit, end = self._directory.state.commit(), min(target, after + _SLOTS_AT_ONCE)
        return _SlotRange(self._directory, commit, after, end)


class _SlotRange:
    """Collects the chains of the slots after < s ≤ end from the logs. It has descriptors of its
    own, because the pipeline's threads use those of the directory.
    """

    def __init__(self, directory: DataDirectory, commit: Commit, after: int, end: int) -> None:
        self.after = after
        self.end = end
        self._log = TimerLog(directory.path, directory.fs)
        self._messages = MessageStore(directory.path, directory.fs)
        self._precision_ms = directory.config.precision_ms
        count = end - after
        self._first_pos, self._last_pos = np.full(count, NO_POSITION), np.full(count, NO_POSITION)
        self._num = np.zeros(count, np.int64)
        first, last = (hour_of(slot, self._precision_ms) for slot in (after + 1, end))
        self._span = range(first, last + 1)  # hours
        # Bytes of log and messages read so far, by hour.
        self._hours: dict[int, int] = {}
        self._message_bytes: dict[int, int] = {}
        self._reading = self._read(commit)

    def read_on(self) -> bool:
        """Reads a block of the records committed at the start; returns False at their end."""
        return next(self._reading, False)

    def continues(self, commit: Commit) -> bool:
        """Continues with the records committed since, unless they are few enough for engine.lock:
        its holder is killed after some seconds.
        """
        unread = sum(
            commit.hours[hour].message_bytes - self._message_bytes.get(hour, 0)
            for hour in commit.hours.keys() & self._span
        )
        if unread <= _LOCKED_BYTES:
            return False
        self._reading = self._read(commit)
        return True

    def read_up_to(self, commit: Commit) -> None:
        """Reads the records that were committed since."""
        for _ in self._read(commit):
            pass

    def close(self) -> None:
        self._log.close()
        self._messages.close()

    def _read(self, commit: Commit) -> Iterator[bool]:
        for hour in sorted(commit.hours.keys() & self._span):
            start, end = self._hours.get(hour, 0), commit.hours[hour].log_bytes
            for position, slot, records in blocks(self._log, self._precision_ms, hour, start, end):
                if np.any(hour_of(slot, self._precision_ms) != hour):
                    path = self._log.files.path(hour)
                    raise CorruptFile(path, int(position[0]), "a record of another hour")
                for block in message_store.split_by_limits(records):
                    self._messages.read(hour, block)
                    yield True
                self._note(position, slot)
            self._hours[hour], self._message_bytes[hour] = end, commit.hours[hour].message_bytes

    def _note(self, position: Int64, slot: Int64) -> None:
        place = slot - self.after - 1
        inside = (place >= 0) & (place < len(self._num))
        place, position = place[inside], position[inside]
        used, firsts, counts = np.unique(place, return_index=True, return_counts=True)
        new = self._num[used] == 0
        self._first_pos[used[new]] = position[firsts[new]]
        self._last_pos[place] = position  # positions rise: the last one stays
        self._num[used] += counts

    def runs(self) -> Runs:
        """Returns a run for each slot with records, from its first record to its last."""
        used = np.flatnonzero(self._num)
        return Runs(
            self.after + 1 + used,
            self._first_pos[used],
            self._last_pos[used],
            np.full(len(used), NO_POSITION),
            self._num[used],
        )
