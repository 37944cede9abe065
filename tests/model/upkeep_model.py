"""Maintenance of the model's files: hours are unlinked, a loss in Kafka is accepted."""

from __future__ import annotations

from tests.model.clauses import Clauses
from tests.model.files_model import Close, Directory, Marks
from tests.model.kafka_model import Progress


def collect(directory: Directory, committed: Progress, clauses: Clauses) -> None:
    """Unlink the logs of slots that are over, both by Kafka and by the durable checkpoint.

    A row that is gone cannot be matched any more, though its copy may be on its way: cancels that
    lie below the log end of now must not decide without it.
    """
    if directory.durable is None or directory.mirror is None:
        return
    until = min(committed.r, directory.durable[1].lower)
    if not any(slot <= until for slot in directory.files.log.values()):
        return
    if clauses.blind_is_raised_before_hours_go:
        directory.blind = {}
    for files in (directory.files, directory.durable[0]):
        files.drop({row for row, slot in files.log.items() if slot <= until})
    directory.durable_taken = None  # it names files that are gone


def pending_from(directory: Directory, r: int, partition: int, end: int, clauses: Clauses) -> bool:
    """Whether a pending row lies at or behind `end`, or was cancelled from there."""
    files = directory.files
    rows = [at for at, slot in files.log.items() if at[0] == partition and slot > r]
    if any(offset >= end for _, offset in rows):
        return True
    if not clauses.cut_waits_for_rows_flagged_from_behind_it:
        return False
    return any(files.cancelled.get(row, 0) >= end for row in rows)


def cut(directory: Directory, partition: int, end: int) -> None:
    """Take away what comes from `end` on: other records will have those offsets."""
    files, close = directory.files, directory.close
    assert close is not None
    c = _cut_marks(close.c, partition, end)
    close = Close(close.lower, _cut_marks(close.c_before, partition, end), close.floor, c)
    files.marks = _cut_marks(files.marks, partition, end)
    files.drop({at for at in files.log if at[0] == partition and at[1] >= end})
    files.segments = [
        x for x in files.segments if x.cancel.partition != partition or x.cancel.offset < end
    ]
    directory.durable = directory.durable_taken = None
    directory.unsynced, directory.close = [close], close


def _cut_marks(marks: Marks, partition: int, end: int) -> dict[int, int]:
    return {p: min(mark, end) if p == partition else mark for p, mark in marks.items()}
