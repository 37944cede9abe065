"""The model's cancels: what dequeue knows of them, for how long, and what they are told.

A cancel becomes known at a closing, or at a start, with all others below C. From then on no row
that it meets leaves any more but by being left out. Copies that were made before may still be on
their way: they lie below the partition's end as of then. Once ingest is there, the cancel is
*settled*: all that it can ever meet is in the wheel. It lives until that has left.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.model.clauses import Clauses
from tests.model.files_model import Directory
from tests.model.kafka_model import Answer, Kafka, PartitionProgress, Progress, Row, Word

Place = tuple[int, int]  # partition, offset


@dataclass(slots=True)
class Tombstone:
    """A cancel that is known.

    Attributes:
        id: of timers with a lower origin that it meets.
        after: R when it became known: what lies in later slots it keeps from leaving.
        log_end: the partition's end then.
        last: once settled: the greatest slot of a row that it meets, -1 without any.
        word: once found out: its answer.
    """

    id: int
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
        self._live: dict[Place, Tombstone] = {}
        self._past: dict[Place, Tombstone] = {}

    def learn(self, r: int, c: dict[int, int]) -> None:
        """At a start or a closing: what lies below C is known from here on."""
        for place, name in sorted(self._directory.files.tombstones.items()):
            partition, offset = place
            if self._from.get(partition, 0) <= offset < c.get(partition, 0):
                if not self._clauses.tombstone_takes_the_place_of_no_other:
                    self._live = {
                        (p, o): known
                        for (p, o), known in self._live.items()
                        if (p, known.id) != (partition, name)
                    }
                self._live[place] = Tombstone(name, r, len(self._kafka.topic[partition]))
        self._from |= {p: max(end, self._from.get(p, 0)) for p, end in c.items()}

    def meet(self, row: Row) -> bool:
        """Whether the row is not to leave any more."""
        return any(self._meets(place, known, row) for place, known in self._live.items())

    def _meets(self, place: Place, known: Tombstone, row: Row) -> bool:
        record = self._kafka.topic[row.partition][row.offset]
        assert record is not None
        same = (place[0], known.id) == (row.partition, record.id)
        return same and self._origin(row) < place[1]

    def _origin(self, row: Row) -> int:
        record = self._kafka.topic[row.partition][row.offset]
        assert record is not None
        return row.offset if record.origin is None else record.origin

    def look(self) -> None:
        """Look up what each of them meets; see the module's head."""
        for place, known in self._live.items():
            if known.last is not None:
                continue
            rows = [
                (slot, row)
                for slot, rows in self._directory.files.wheel.items()
                for row in rows
                if self._meets(place, known, row)
            ]
            if any(slot > known.after and not self._was_out(slot, row) for slot, row in rows):
                known.word = Word.CANCELLED
            settled = self._directory.files.marks[place[0]] >= known.log_end
            if settled or not self._clauses.tombstone_stays_until_it_is_settled:
                known.last = max((slot for slot, _ in rows), default=-1)
            if known.word is None and (settled or not self._clauses.verdict_waits_until_settled):
                known.word = self._word(place, rows)

    def _word(self, place: Place, rows: list[tuple[int, Row]]) -> Word:
        """Of a cancel that has met nothing pending: whether what it meets is known to have left."""
        others = {**self._past, **self._live}
        del others[place]
        left_out = {
            self._origin(row)
            for slot, row in rows
            for other, known in others.items()
            if slot > known.after and self._meets(other, known, row)
        }
        if not self._clauses.left_out_is_not_delivered:
            left_out = set()
        left = any(
            slot > self._started.r
            and not row.rolls
            and not self._was_out(slot, row)
            and self._origin(row) not in left_out
            for slot, row in rows
        )
        return Word.ALREADY_DELIVERED if left else Word.UNKNOWN

    def _was_out(self, slot: int, row: Row) -> bool:
        """Whether it had left the half-delivered slot before this start."""
        p = self._started.partitions.get(row.partition)
        return p is not None and p.c1 is not None and slot == p.r + 1 and row.offset < p.d

    def answers(self, partitions: dict[int, PartitionProgress], count: int) -> list[Answer]:
        """What may be said in a transaction with this progress: in order, at most `count`."""
        said: list[Answer] = []
        stopped: set[int] = set()
        for (partition, offset), known in sorted(self._live.items()):
            if offset < self._answered.get(partition, 0) or partition in stopped:
                continue
            early = offset >= partitions[partition].closed_c
            early = early and self._clauses.cancel_is_answered_with_its_c
            if known.word is None or early or len(said) == count:
                stopped.add(partition)
            else:
                said.append(Answer(partition, offset, known.word))
        return said

    def answered(self, partition: int, said: list[Answer]) -> int:
        """`a`, once these are committed."""
        ends = [answer.offset + 1 for answer in said if answer.partition == partition]
        return max([self._answered.get(partition, 0), *ends])

    def mark(self, partition: int, r: int, answered: int) -> int | None:
        """K of a progress that says R and `a`."""
        if not self._clauses.tombstones_are_in_the_progress:
            return None
        offsets = [
            offset
            for (number, offset), known in self._live.items()
            if number == partition and not self._is_over(offset, known, r, answered)
        ]
        return min(offsets, default=None)

    def _is_over(self, offset: int, known: Tombstone, r: int, answered: int) -> bool:
        if offset >= answered and self._clauses.unanswered_cancel_is_read_again:
            return False
        stays = self._clauses.tombstone_stays_until_its_rows_have_left
        return known.last is not None and (known.last <= r or not stays)

    def committed(self, progress: Progress, said: list[Answer], r: int) -> None:
        """Forget what has done its work; `r`: as far as is known here."""
        for answer in said:
            self._answered[answer.partition] = answer.offset + 1
        self._past |= {place: self._live.pop(place) for place in self._over(r)}
        collect(self._directory, progress)

    def _over(self, r: int) -> list[Place]:
        return [
            place
            for place, known in self._live.items()
            if self._is_over(place[1], known, r, self._answered.get(place[0], 0))
        ]


def tombstones_from(p: PartitionProgress) -> int:
    """What lies below is over."""
    return p.closed_c if p.k is None else p.k


def collect(directory: Directory, progress: Progress) -> None:
    """Remove the cancels that are over."""
    tombstones = directory.files.tombstones
    for number, p in progress.partitions.items():
        for place in [each for each in tombstones if each[0] == number]:
            if place[1] < tombstones_from(p):
                del tombstones[place]
