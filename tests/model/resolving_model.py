"""The model's cancels at ingest: a batch's cancels are resolved in the commit of the batch.

A cancel *matches* rows of its partition and id that lie before it in Kafka and whose first copy
lies before the user's cancel. It flags those of them that cannot have left. It is *undecided* if a
matching timer may still be about to leave, or on its way back as a copy: dequeue then writes the
cancel again, as a *chase*, behind all copies of what had left by then (slots up to `g`).
"""

from __future__ import annotations

from tests.model.clauses import Clauses
from tests.model.files_model import Cancel, Close, Directory, Outcome, Place
from tests.model.kafka_model import EVERY_OFFSET, Kafka, Record, Word


def cancel_at(partition: int, offset: int, record: Record, clauses: Clauses) -> Cancel:
    """The cancel in a record."""
    request = record.first_offset(offset)
    if not clauses.chase_is_for_what_its_cancel_was_for:
        request = offset
    found = record.found and clauses.chase_carries_what_was_found
    return Cancel(partition, offset, request, record.id, record.g, found)


def resolve(
    cancels: list[Cancel],
    read_with: Close,
    directory: Directory,
    kafka: Kafka,
    clauses: Clauses,
    known: set[Place] | None,
) -> tuple[list[Outcome], dict[Place, int]]:
    """Outcomes in the order of offsets, and what goes to the lists. Under the lock.

    Args:
        read_with: the close page of before the lock.
        known: broken on purpose: the only rows that cancels match.
    """
    resolver = _Resolver(read_with, directory, kafka, clauses, known)
    ordered = sorted(cancels, key=lambda x: (x.partition, x.offset))
    return [resolver.resolve(x) for x in ordered], resolver.cancelled


class _Resolver:
    """The cancels of one batch in order: a flag of an earlier one is there for a later one."""

    def __init__(
        self,
        read_with: Close,
        directory: Directory,
        kafka: Kafka,
        clauses: Clauses,
        known: set[Place] | None,
    ) -> None:
        self.cancelled: dict[Place, int] = {}
        self._read_with, self._directory = read_with, directory
        self._kafka, self._clauses, self._known = kafka, clauses, known

    def resolve(self, x: Cancel) -> Outcome:
        matching = self._matching(x)
        found = x.found
        bound = self._bound(x)
        for _, offset, slot in matching:
            row = x.partition, offset
            if slot <= bound:
                continue
            is_news = not self._is_flagged(row)
            found = found or is_news or not self._clauses.row_flagged_before_does_not_count
            if is_news and not self._is_silent(x):
                self.cancelled[row] = x.offset
        if self._is_undecided(x, matching, found=found):
            return Outcome(x, None, found)
        return Outcome(x, self._word(x, matching, found=found), found)

    def _word(self, x: Cancel, matching: list[tuple[int, int, int]], *, found: bool) -> Word:
        """All that it is for is flagged or out, as far as these files have it."""
        if found:
            return Word.CANCELLED
        in_doubt = self._clauses.request_below_blind_is_unknown
        if not matching or (in_doubt and x.request < self._blind(x.partition)):
            return Word.UNKNOWN
        first, offset, _ = matching[-1 if self._clauses.newest_timer_decides else 0]
        is_cancelled = self._is_flagged((x.partition, offset))
        # One that was written later may have been delivered, and be on disk no more.
        in_doubt = self._clauses.cancelled_timer_below_blind_may_not_be_the_newest
        if in_doubt and is_cancelled and first < self._blind(x.partition):
            return Word.UNKNOWN
        if is_cancelled and self._clauses.cancelled_timer_is_not_called_delivered:
            return Word.CANCELLED
        return Word.ALREADY_DELIVERED

    def _blind(self, partition: int) -> int:
        boundless = self._clauses.blind_is_boundless_until_it_is_known
        return self._directory.blind.get(partition, EVERY_OFFSET if boundless else 0)

    def _matching(self, x: Cancel) -> list[tuple[int, int, int]]:
        """First offset, offset and slot of each row, in this order."""
        matching = []
        for (partition, offset), slot in self._directory.files.log.items():
            if partition != x.partition or offset >= x.offset:
                continue
            if slot <= self._directory.since:
                continue
            if self._known is not None and (partition, offset) not in self._known:
                continue
            record = self._kafka.topic[partition][offset]
            assert record is not None
            first = record.first_offset(offset)
            earlier = first if self._clauses.first_offsets_are_compared else offset
            if record.id == x.id and earlier < x.request:
                matching.append((first, offset, slot))
        return sorted(matching)

    def _bound(self, x: Cancel) -> int:
        """The last slot that may have left, or may be read by dequeue at this moment.

        Cancels below C were there at the closing, and so were all rows that they match: they are
        read again, and of the closed slots only what lies above R is still there.
        """
        directory, clauses = self._directory, self._clauses
        close, mirror = directory.close, directory.mirror
        assert close is not None
        assert mirror is not None
        part = mirror.partitions.get(x.partition)
        r = part.r if part else close.lower
        if directory.standby:
            return r if clauses.standby_flags_all_above_r else close.floor
        if x.offset < close.c.get(x.partition, 0):
            return r if clauses.cancel_below_c_flags_all_above_r else close.floor
        if not clauses.cancel_flags_open_slots_only:
            return r
        return (close if clauses.floor_is_read_under_the_lock else self._read_with).floor

    def _is_silent(self, x: Cancel) -> bool:
        """Broken on purpose: what is answered flags nothing when it is read again."""
        mirror = self._directory.mirror
        assert mirror is not None
        part = mirror.partitions.get(x.partition)
        wanted = self._clauses.answered_cancel_flags_when_read_again
        return not wanted and part is not None and x.offset < part.a

    def _is_flagged(self, row: Place) -> bool:
        return row in self._directory.files.flags or row in self.cancelled

    def _is_undecided(
        self, x: Cancel, matching: list[tuple[int, int, int]], *, found: bool
    ) -> bool:
        clauses = self._clauses
        if x.offset < self._blind(x.partition) and clauses.blind_cancel_is_chased:
            return True
        if not clauses.undecided_cancel_is_chased:
            return False
        if found and not clauses.undecided_cancel_is_chased_whatever_it_has_found:
            return False
        if not clauses.last_copy_decides:
            matching.reverse()
        last = {first: (offset, slot) for first, offset, slot in matching}
        return any(
            slot > x.g and not self._is_flagged((x.partition, offset))
            for offset, slot in last.values()
        )
