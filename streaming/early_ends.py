"""Where a batch ended early: its tasks had read the bytes that they may (byte_budget.py), or the
next record leads too far ahead (wheel/append/far_hours.py).

Spark plans a batch by offsets, and only its tasks learn how large the records are. They end early
in some partitions, the sink takes the batch as ended there, and the next batch begins there:

    sink       writes the file `early-ends` (JSON after its CRC-32) before Spark plans again
    planner    reads it; the planned offsets have the begins beside the ends (`offsets_to`), because
               Spark would repeat the planned end of the batch before, and starts no batch if the
               planned offsets equal the previous ones

A query starts without the file: it begins at the engine's marks, and a checkpoint above them is set
aside. Spark's planning processes import this and no library.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from duewheel.checkpoints.commit_and_close_pages import Marks, marks_from, marks_to
from duewheel.checkpoints.fs import HOST_FS
from duewheel.checkpoints.json_fields import MISSHAPEN, read_json, swap_json

if TYPE_CHECKING:  # it imports numpy and pyarrow
    from duewheel.schemas.batches import TopicPartition

_FILE_NAME = "early-ends"
# No topic has such a name.
_BEGINS, _AGAIN, _WAITING, _ADDED = "/begins", "/again", "/waiting", "/added-messages"
_NONE_ADDED: Mapping[str, int] = MappingProxyType({})


def offsets_to(ends: Marks, begins: Marks) -> dict[str, Any]:
    """A planned batch, as Spark keeps it: the ends of all partitions, and the begins of those in
    which it does not begin at the end of the batch before.
    """
    return marks_to(ends) | ({_BEGINS: marks_to(begins)} if begins else {})


def offsets_after(before: Mapping[str, Any], ends: Marks, begins: Marks) -> dict[str, Any]:
    """As `offsets_to`, and different from the batch before, if there is something to read: that
    may have had these ends and begins, and all of its bytes from other partitions.
    """
    planned = offsets_to(ends, begins)
    is_same = planned == before and any(ends[p] > at for p, at in begins.items())
    return planned | {_AGAIN: True} if is_same else planned


def offsets_from(planned: Mapping[str, Any]) -> tuple[Marks, Marks]:
    """The inverse of `offsets_to` and `offsets_after`; raises MISSHAPEN for another shape."""
    ends = {name: each for name, each in planned.items() if name not in (_BEGINS, _AGAIN)}
    return marks_from(ends), marks_from(planned.get(_BEGINS, {}))


class EarlyEnds:
    """The early ends of a query's newest batch, in a file of this folder. Not thread-safe."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / _FILE_NAME
        self._version: tuple[int, int] | None = None  # of the file that was read
        self.ends: Marks = {}  # as last written or read; a reader may be in another thread
        # Partitions that are seldom planned, because the record at this offset leads too far ahead
        # (wheel/append/far_hours.py).
        self.waiting: Marks = {}
        # By topic, the messages that the batch's bytes count as beyond its offsets, for quotas
        # (topic_quotas.py).
        self.added_messages: Mapping[str, int] = {}

    def clear(self) -> None:
        """Removes the file, at the start of a query."""
        self._path.unlink(missing_ok=True)
        self.ends, self.waiting, self.added_messages = {}, {}, {}

    def note(
        self,
        planned: Marks,
        early: Marks,
        marks: Marks,
        far: Collection[TopicPartition] = (),
        added_messages: Mapping[str, int] = _NONE_ADDED,
    ) -> Marks:
        """Notes that a batch has been read, and returns its ends: those planned, or the early ones.

        A batch that is read again may end earlier than before. Rows that the engine has taken are
        not read a third time, and no end is below an earlier one: that would be a log's lost end.
        The partitions in `far` are among the early ones; they wait until a batch reads further.
        """
        ends = {p: max(end, marks.get(p, 0)) for p, end in early.items()}
        ends = {p: end for p, end in ends.items() if end < planned[p]}
        waiting = {p: at for p, at in self.waiting.items() if planned.get(p, at) <= at}
        waiting |= {p: ends[p] for p in far if p in ends}
        noted = ends, waiting, dict(added_messages)
        if noted != (self.ends, self.waiting, self.added_messages):
            more = {_WAITING: marks_to(waiting), _ADDED: noted[2]}
            filled = {name: each for name, each in more.items() if each}
            swap_json(self._path, marks_to(ends) | filled, HOST_FS)
            self.ends, self.waiting, self.added_messages = noted
        return {**planned, **ends}

    def read(self) -> Marks:
        """Reads those of the newest batch. Costs a `stat`, unless the file was replaced.

        Raises:
            OSError, ValueError: the file cannot be read. Without it the next batch would leave
                records out.
        """
        try:
            found = self._path.stat()
        except FileNotFoundError:
            self.ends, self.waiting, self.added_messages, self._version = {}, {}, {}, None
            return {}
        version = (found.st_ino, found.st_mtime_ns)
        if version != self._version:
            raw = read_json(self._path)
            self.waiting = marks_from(raw.pop(_WAITING, {}))
            self.added_messages = raw.pop(_ADDED, {})
            self.ends, self._version = marks_from(raw), version
        return self.ends


def waiting_far_ahead(folder: Path) -> Marks:
    """The partitions that wait at a record that leads too far ahead, and where; for other
    processes. None if the file is missing or damaged.
    """
    newest = EarlyEnds(folder)
    with suppress(OSError, *MISSHAPEN):
        newest.read()
    return newest.waiting
