"""What the process that gives an answer could know: its logs, and since when it knows each cancel.

Read from the files at the moment of the answer, and from the close pages that its dequeue has
written: nothing that it remembers itself is asked.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tests.simulation.timers import TOPIC, Copy

from duewheel.checkpoints.page_contents import Close, Marks
from duewheel.checkpoints.progress import Progress
from duewheel.wheel.data_directory import DataDirectory
from duewheel.wheel.layout import WheelConfig
from duewheel.wheel.pending_rows import pieces

BEFORE_START = None


@dataclass
class Closings:
    """Those of one dequeue.

    Attributes:
        r: last slot that was delivered in full when it started.
        below: D of the next, of the partitions of which that was half delivered.
        c: marks below which everything was known to its predecessors.
        since: R and C of each closing, in their order.
        full: C when there was no room for cancels last.
    """

    r: int
    below: Marks
    c: Marks
    floor: int
    since: list[tuple[int, Marks]] = field(default_factory=list)
    full: Marks = field(default_factory=dict)

    @classmethod
    def begun(cls, close: Close, progress: Progress) -> Closings:
        """Of a dequeue that has just started; `progress`: as it has found, or claimed, it."""
        r = max(progress.slot, close.lower)
        parts = progress.partitions.items()
        below = {p: part.d for p, part in parts if part.d is not None and part.r == r}
        return cls(r, below, close.c, close.floor)

    def look(self, close: Close, *, full: bool) -> None:
        """The newest close page, and whether there is room: called often enough to see all."""
        if close.floor > self.floor:
            self.since.append((close.lower, close.c))
            self.floor = close.floor
        if full:
            self.full = close.c

    def known_since(self, partition: int, offset: int) -> tuple[int | None, int]:
        """R when a cancel became known, or BEFORE_START, and how far its partition was taken."""
        name = TOPIC, partition
        known = [(BEFORE_START, self.c), *self.since]
        return next((r, c[name]) for r, c in known if offset < c.get(name, 0))

    def may_be_given_up(self, partition: int, offset: int) -> bool:
        """Whether a cancel may have been told `unknown` because there was no room."""
        return offset < self.full.get((TOPIC, partition), 0)


@dataclass(frozen=True)
class Witness:
    """The data directory at the moment of an answer.

    Attributes:
        closings: of the dequeue that gives it.
        marks: of its ingest.
        slots: where each record of the timer topic lies, by partition and offset: those of hours
            that are still on disk.
        whole: no file has been changed behind its back.
        cancels_max: as many cancels that are over are remembered at most.
    """

    closings: Closings
    marks: Marks
    slots: dict[tuple[int, int], int]
    whole: bool
    cancels_max: int

    @classmethod
    def of(
        cls, path: Path, wheel: WheelConfig, closings: Closings, cancels_max: int, *, whole: bool
    ) -> Witness:
        """Read the directory at `path`."""
        directory = DataDirectory(path, wheel)
        try:
            commit, gone = directory.state.commit(), directory.state.gc_hour
            slots: dict[tuple[int, int], int] = {}
            if whole:
                for hour, lengths in commit.hours.items():
                    if hour >= gone:
                        slots |= _slots(directory, hour, lengths.log_bytes)
            return cls(closings, commit.marks, slots, whole, cancels_max)
        finally:
            directory.close()

    def is_pending(self, copy: Copy, cancel: int) -> bool:
        """Whether the newest copy of a timer that has not ended was still to leave when a cancel of
        its partition, at the offset `cancel`, became known: then nothing else has kept it. Where
        there was no room, it must have lain in the log then.
        """
        partition = copy.timer.partition
        since, end = self.closings.known_since(partition, cancel)
        if self.closings.may_be_given_up(partition, cancel) and copy.offset >= end:
            return False
        if copy.offset >= self.marks.get((TOPIC, partition), 0):
            return True
        slot = self.slots.get((partition, copy.offset))
        if slot is None:
            return False
        return not self._was_out(copy, slot) if since is BEFORE_START else slot > since

    def _was_out(self, copy: Copy, slot: int) -> bool:
        r, below = self.closings.r, self.closings.below
        if slot == r + 1:
            return copy.offset < below.get((TOPIC, copy.timer.partition), 0)
        return slot <= r

    def delivered_in(self, copy: Copy, cancels: list[int]) -> int | None:
        """The slot in which the log shows that a timer, the newest copy of which has ended, was
        delivered; None if it does not.

        Args:
            copy: as above.
            cancels: offsets of all that meet it: of those known at the start nobody can say that
                they came too late.
        """
        partition = copy.timer.partition
        known = self.closings.c.get((TOPIC, partition), 0)
        if any(offset < known for offset in cancels):
            return None
        return self.slots.get((partition, copy.offset))

    def may_have_left_out(self, partition: int, cancel: int, met: list[Copy], slot: int) -> bool:
        """Whether it is remembered of a cancel that it may have left out rows of `slot`, or later.

        Args:
            partition, cancel: where it lies.
            met: the newest copies of what it meets.
            slot: as above.
        """
        if cancel < self.closings.c.get((TOPIC, partition), 0):
            return True
        places = [(partition, copy.offset) for copy in met]
        return any(self.slots.get(place, slot - 1) >= slot for place in places)


def _slots(directory: DataDirectory, hour: int, log_bytes: int) -> dict[tuple[int, int], int]:
    found: dict[tuple[int, int], int] = {}
    for _, slot, records in pieces(directory, hour, 0, log_bytes):
        prefix = directory.messages.read(hour, records).prefix
        columns = prefix["source_partition"], prefix["source_offset"], slot
        for partition, offset, at in zip(*(c.tolist() for c in columns), strict=True):
            found[partition, offset] = at
    return found
