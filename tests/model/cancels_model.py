"""The model's cancels: what dequeue knows of them, for how long, and what they are told.

A cancel becomes known at a closing, or at a start, with all others below C. From then on no row
that it meets leaves any more but by being left out. It is forgotten once all that it met in the
wheel, as of that closing or later, has left, and it is answered. Copies that were made before may
still be on their way: they lie below the partition's end as of then. Such a copy brings the cancel
again (`ingest_model`). Until ingest is there, and the cancel *settled*, K stays at it, and it stays
in the log. There it also stays as long as the wheel has a row that it may have left out: a start
finds it beside that row, and of neither it is known which of them came first.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.model.clauses import Clauses
from tests.model.files_model import Cancel, Directory, Files, Marks
from tests.model.kafka_model import Answer, Kafka, PartitionProgress, Progress, Row, Word

BEFORE_START = -(1 << 40)


@dataclass(slots=True)
class Tombstone:
    """A cancel that is known.

    Attributes:
        cancel: its record.
        after: R when it became known: what lies in later slots it keeps from leaving. Or
            BEFORE_START: it may have kept anything from leaving.
        log_end: the partition's end then.
        last: once looked up: the greatest slot of a row that it meets, -1 without any.
        word: once found out: its answer.
    """

    cancel: Cancel
    after: int
    log_end: int
    last: int | None = None
    word: Word | None = None


class Cancels:
    """Of one dequeue, from the moment at which nothing is missing below C."""

    def __init__(
        self, directory: Directory, kafka: Kafka, clauses: Clauses, first: Progress
    ) -> None:
        self._directory, self._kafka, self._clauses = directory, kafka, clauses
        self._started = first
        self._from = {p: tombstones_from(part) for p, part in first.partitions.items()}
        self._answered = {p: part.a for p, part in first.partitions.items()}
        if not clauses.cancel_is_answered_once:
            self._answered.clear()
        self._live: dict[int, Tombstone] = {}  # by number in the cancel log
        self._past: dict[int, Tombstone] = {}
        self._forgotten: list[tuple[Cancel, int]] = []  # not settled; with their log_end
        self._seen: set[int] = set()
        self._marks: Marks = {}
        self._is_begun = False

    def learn(self, r: int, c: dict[int, int]) -> None:
        """At a start or a closing: what lies below C is known from here on."""
        files = self._directory.files
        self._marks = dict(files.marks)
        after = BEFORE_START
        if self._is_begun or not self._clauses.cancels_of_before_may_have_left_out_anything:
            after = r
        for number, cancel in files.cancels.items():
            partition, offset = cancel.partition, cancel.offset
            if number in self._seen or offset >= c.get(partition, 0):
                continue
            self._seen.add(number)
            if offset < self._from.get(partition, 0):
                self._past[number] = Tombstone(cancel, after, 0)
                continue
            if not self._clauses.tombstone_takes_the_place_of_no_other:
                self._live = {
                    n: known
                    for n, known in self._live.items()
                    if (known.cancel.partition, known.cancel.id) != (partition, cancel.id)
                }
            self._live[number] = Tombstone(cancel, after, len(self._kafka.topic[partition]))
        self._is_begun = True

    def meet(self, row: Row) -> bool:
        """Whether the row is not to leave any more."""
        return any(self._meets(known, row) for known in self._live.values())

    def _meets(self, known: Tombstone, row: Row) -> bool:
        return meets(known.cancel, row, self._kafka)

    def look(self) -> None:
        """Look up what each of them meets; see the module's head."""
        for known in self._live.values():
            settled = self._is_settled(known.cancel, known.log_end)
            if known.last is not None and (known.word is not None or not settled):
                continue
            rows = [
                (slot, row)
                for slot, rows in self._directory.files.wheel.items()
                for row in rows
                if self._meets(known, row)
            ]
            if any(slot > known.after and not self._was_out(slot, row) for slot, row in rows):
                known.word = Word.CANCELLED
            known.last = max((slot for slot, _ in rows), default=-1)
            if known.word is None and (settled or not self._clauses.verdict_waits_until_settled):
                known.word = self._word(rows)

    def _is_settled(self, cancel: Cancel, log_end: int) -> bool:
        marks = self._marks
        if not self._clauses.cancels_are_settled_by_the_marks_of_a_closing:
            marks = self._directory.files.marks
        return marks[cancel.partition] >= log_end

    def _word(self, rows: list[tuple[int, Row]]) -> Word:
        """Of a cancel that has met nothing pending: whether what it meets is known to have left."""
        others = [*self._past.values(), *self._live.values()]
        left_out = {
            _origin(row, self._kafka)
            for slot, row in rows
            for known in others
            if slot > known.after and self._meets(known, row)
        }
        if not self._clauses.left_out_is_not_delivered:
            left_out = set()
        left = any(
            not row.rolls
            and _origin(row, self._kafka) not in left_out
            and (self._clauses.what_left_before_is_told or not self._was_out(slot, row))
            for slot, row in rows
        )
        return Word.ALREADY_DELIVERED if left else Word.UNKNOWN

    def _was_out(self, slot: int, row: Row) -> bool:
        """Whether it had left before this start."""
        if slot <= self._started.r:
            return True
        p = self._started.partitions.get(row.partition)
        return p is not None and p.c1 is not None and slot == p.r + 1 and row.offset < p.d

    def answers(self, partitions: dict[int, PartitionProgress], count: int) -> list[Answer]:
        """What may be said in a transaction with this progress: in order, at most `count`."""
        said: list[Answer] = []
        stopped: set[int] = set()
        live = sorted(self._live.values(), key=lambda t: (t.cancel.partition, t.cancel.offset))
        for known in live:
            partition, offset = known.cancel.partition, known.cancel.offset
            if not self._wants_answer(known.cancel, self._answered) or partition in stopped:
                continue
            early = offset >= partitions[partition].closed_c
            early = early and self._clauses.cancel_is_answered_with_its_c
            if known.word is None or early or len(said) == count:
                stopped.add(partition)
            else:
                said.append(Answer(partition, offset, known.word))
        return said

    def _wants_answer(self, cancel: Cancel, answered: Marks) -> bool:
        is_asked = self._kafka.replies and not cancel.again
        return is_asked and cancel.offset >= answered.get(cancel.partition, 0)

    def answered(self, partition: int, said: list[Answer]) -> int:
        """`a`, once these are committed."""
        ends = [answer.offset + 1 for answer in said if answer.partition == partition]
        return max([self._answered.get(partition, 0), *ends])

    def mark(self, partition: int, r: int, answered: int) -> int | None:
        """K of a progress that says R and `a`."""
        if not self._clauses.tombstones_are_in_the_progress:
            return None
        stays = self._clauses.forgotten_cancel_is_read_again_until_it_is_settled
        offsets = [
            known.cancel.offset
            for known in self._live.values()
            if known.cancel.partition == partition
            and not (
                self._is_over(known, r, {partition: answered})
                and (self._is_settled(known.cancel, known.log_end) or not stays)
            )
        ]
        if stays:
            self._forgotten = [each for each in self._forgotten if not self._is_settled(*each)]
            offsets += [c.offset for c, _ in self._forgotten if c.partition == partition]
        return min(offsets, default=None)

    def _is_over(self, known: Tombstone, r: int, answered: Marks) -> bool:
        waits = self._wants_answer(known.cancel, answered)
        if waits and self._clauses.unanswered_cancel_is_read_again:
            return False
        stays = self._clauses.tombstone_stays_until_its_rows_have_left
        return known.last is not None and (known.last <= r or not stays)

    def committed(self, progress: Progress, said: list[Answer], r: int) -> None:
        """Forget what has done its work; `r`: as far as is known here."""
        for answer in said:
            self._answered[answer.partition] = answer.offset + 1
        over = [n for n, known in self._live.items() if self._is_over(known, r, self._answered)]
        for number in over:
            known = self._past[number] = self._live.pop(number)
            self._forgotten.append((known.cancel, known.log_end))
            if not self._clauses.forgotten_cancel_stays_on_disk_until_it_is_settled:
                self._directory.files.cancels.pop(number, None)
        collect(self._directory, progress, self._kafka, self._clauses)


def _origin(row: Row, kafka: Kafka) -> int:
    record = kafka.topic[row.partition][row.offset]
    assert record is not None
    return row.offset if record.origin is None else record.origin


def meets(cancel: Cancel, row: Row, kafka: Kafka) -> bool:
    """Whether the timer is of that id, and was written before."""
    record = kafka.topic[row.partition][row.offset]
    assert record is not None
    same = (cancel.partition, cancel.id) == (row.partition, record.id)
    return same and _origin(row, kafka) < cancel.offset


def tombstones_from(p: PartitionProgress) -> int:
    """What lies below is over."""
    return p.closed_c if p.k is None else p.k


def collect(directory: Directory, progress: Progress, kafka: Kafka, clauses: Clauses) -> None:
    """Remove the cancels that are over, also from what the durable checkpoint names."""
    for files in (directory.files, *([directory.durable[0]] if directory.durable else [])):
        for number, cancel in list(files.cancels.items()):
            p = progress.partitions.get(cancel.partition)
            is_over = p is not None and cancel.offset < tombstones_from(p)
            stays = clauses.cancel_stays_with_what_it_has_left_out
            if is_over and not (stays and _has_left_out(cancel, files, kafka)):
                del files.cancels[number]


def _has_left_out(cancel: Cancel, files: Files, kafka: Kafka) -> bool:
    return any(meets(cancel, row, kafka) for rows in files.wheel.values() for row in rows)
