"""The model's ingest: decides slots without the lock, commits under it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from tests.model.clauses import Clauses
from tests.model.files_model import RING, Cancel, Close, Directory, Place
from tests.model.kafka_model import Kafka, Record, Row, slot_of, window_at
from tests.model.recovery_model import placed
from tests.model.resolving_model import cancel_at, resolve


@dataclass(slots=True)
class Batch:
    """What ingest is about to commit; rows in the order in which they were read.

    Attributes:
        close: as it was when the batch was read.
        again: some of the rows were there when slots were closed; the floor moves only for a
            standby.
    """

    close: Close
    again: bool
    rows: list[tuple[int, Row]] = field(default_factory=list)
    cancels: list[Cancel] = field(default_factory=list)
    marks: dict[int, int] = field(default_factory=dict)


class Ingest:
    """The process that fills the wheel.

    Args:
        dies: whether it is killed between the commit page and the flags of a batch.
    """

    def __init__(
        self, directory: Directory, kafka: Kafka, clauses: Clauses, dies: Callable[[], bool]
    ) -> None:
        self.directory = directory
        self.generation = directory.generation
        self.batch: Batch | None = None
        self._kafka, self._clauses, self._dies = kafka, clauses, dies

    def read(self, partitions: list[int], count: Callable[[], int]) -> None:
        """Decide slots for a batch, without the lock."""
        directory = self.directory
        assert directory.close is not None
        c, marks = directory.close.c, directory.files.marks
        again = directory.standby or any(marks.get(p, 0) < end for p, end in c.items())
        self.batch = batch = Batch(directory.close, again)
        limited = directory.standby and self._clauses.standby_takes_only_rows_below_c
        for partition in partitions:
            first = directory.files.marks.get(partition, 0)
            end = min(len(self._kafka.topic[partition]), first + count())
            if limited:
                end = max(first, min(end, c.get(partition, 0)))
            batch.marks[partition] = end
            for offset in range(first, end):
                record = self._kafka.topic[partition][offset]
                if record is not None and not self._take(batch, partition, offset, record):
                    break

    def _take(self, batch: Batch, partition: int, offset: int, record: Record) -> bool:
        """Returns whether the partition may go on."""
        clauses, mirror = self._clauses, self.directory.mirror
        assert mirror is not None
        if not record.is_timer:
            batch.cancels.append(cancel_at(partition, offset, record, clauses))
            return True
        windows = mirror.windows_of(partition)
        if not clauses.row_is_judged_by_the_epoch_of_its_offset:
            windows = ((0, windows[-1][1]),)
        known = record
        if not clauses.not_before_counts_in_the_slot:
            known = replace(record, not_before=0)
        slot, rolls = slot_of(known, window_at(windows, offset))
        place = placed(batch.close, mirror, partition, offset, slot, clauses)
        if place is not None and not self._fits(place):
            if clauses.full_ring_stops_the_partition:
                batch.marks[partition] = offset
                return False
            return True
        if place is not None:
            batch.rows.append((place, Row(partition, offset, rolls)))
        if record.is_request and (place is not None or clauses.cancel_of_a_done_row_counts):
            batch.cancels.append(cancel_at(partition, offset, record, clauses))
        return True

    def _fits(self, slot: int) -> bool:
        if not self._clauses.ring_is_never_overwritten:
            return True
        assert self.directory.mirror is not None
        return slot - self.directory.mirror.r < RING

    def commit(self) -> bool:
        """Under the lock: the batch becomes part of the files. False: this process must end."""
        directory, batch, self.batch = self.directory, self.batch, None
        assert batch is not None
        assert directory.close is not None
        if directory.generation != self.generation:
            if self._clauses.running_ingest_sees_the_generation:
                return False
            self.generation = directory.generation
        directory.lock(self._clauses)
        floor = directory.close.floor
        stays = batch.again and self._clauses.standby_rows_do_not_move
        moved = floor != batch.close.floor and not stays
        moved = moved or not self._clauses.rows_read_again_do_not_move
        if moved and not self._fits(floor + 1) and any(slot <= floor for slot, _ in batch.rows):
            return True  # all of it waits
        before = set(directory.files.log)
        for slot, row in self._moved(batch, floor) if moved else batch.rows:
            directory.files.append(slot, row)
        directory.files.marks.update(batch.marks)
        return self._carry_out(batch, before)

    def _carry_out(self, batch: Batch, before: set[Place]) -> bool:
        """The cancels of the batch, behind its rows: segment and lists, commit page, flags."""
        directory, clauses = self.directory, self._clauses
        known = None if clauses.cancel_meets_rows_of_its_batch else before
        outcomes, cancelled = resolve(
            batch.cancels, batch.close, directory, self._kafka, clauses, known
        )
        dies, files = self._dies(), directory.files
        if not dies or clauses.segment_is_written_before_the_marks:
            files.segments.extend(outcomes)
        if not dies or clauses.list_is_written_before_the_marks:
            files.cancelled |= cancelled
            directory.redo = set(cancelled)
        if dies:
            return False
        files.flags |= cancelled.keys()
        directory.redo = set()
        return True

    def _moved(self, batch: Batch, floor: int) -> list[tuple[int, Row]]:
        """The rows once slots were closed meanwhile: one run in the earliest open slot."""
        if not self._clauses.rows_closed_meanwhile_move:
            return batch.rows
        if self._clauses.rows_move_with_those_of_their_new_slot:
            return [(max(slot, floor + 1), row) for slot, row in batch.rows]
        stay = [(slot, row) for slot, row in batch.rows if slot > floor]
        return stay + [(floor + 1, row) for slot, row in batch.rows if slot <= floor]
