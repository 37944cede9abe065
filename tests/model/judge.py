"""Judges a run of the model by what Kafka holds, and by nothing that a process believes.

After each commit: a row has left its slot if and only if the progress calls it done; nothing leaves
twice, early, or before an earlier row of its partition and slot; what a cancel below C met does not
leave any more; a cancel is answered once, below C, truly, and with no less than can be known from
the files of whoever answers. At the end: nothing is lost, and every cancel is answered, if there is
a topic for answers.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.model.files_model import Directory, Files, Marks
from tests.model.kafka_model import (
    Answer,
    Fate,
    Kafka,
    Kind,
    Leave,
    Progress,
    Windows,
    Word,
    is_done,
    slot_of,
    window_at,
)


class Violation(Exception):
    """An invariant does not hold."""


class Judge:
    """Knows the topic and what was committed, nothing of what any process believes."""

    def __init__(self, kafka: Kafka) -> None:
        self.now = 0
        self.trace: list[str] = []
        self.windows: dict[int, Windows] = {}
        self._kafka = kafka
        self._seen: dict[int, int] = {}
        self._waiting: dict[int, dict[int, int]] = {}  # partition -> offset -> own slot
        self._left: set[tuple[int, int]] = set()
        self._ended: set[int] = set()
        self._final: dict[int, int] = {}  # C told so far
        self._cancelled: set[int] = set()
        self._answered: set[tuple[int, int]] = set()
        self._newest: dict[tuple[str, int, int], int] = {}
        self._begun: dict[tuple[int, int], Marks] = {}  # owner and lineage -> C of its start
        self.directory_of: Callable[[int], Directory]
        kafka.on_commit = self.committed

    def committed(self, progress: Progress, leaves: list[Leave], answers: list[Answer]) -> None:
        """Look at a transaction that has just been committed."""
        self._look()
        self.trace.append(
            f"{self.now}: committed by {progress.owner}: {progress.partitions} {leaves} {answers}"
        )
        for leave in leaves:
            self._judge(leave, progress)
        for partition, p in progress.partitions.items():
            for offset, slot in self._waiting.get(partition, {}).items():
                _require(not is_done(p, offset, slot), "done and not delivered", partition, offset)
            self._end(partition, p.closed_c)
        directory = self.directory_of(progress.owner)
        begun = self._begun.get((progress.owner, progress.lineage))
        if begun is None and directory.close is not None:
            begun = self._begun[progress.owner, progress.lineage] = dict(directory.close.c)
        for answer in answers:
            self._judge_answer(answer, progress)
            assert begun is not None
            self._judge_silence(answer, directory.files, progress, begun)

    def reconfigured(self, windows: dict[int, Windows]) -> None:
        """Rows of the new epochs are seen anew."""
        self.windows |= windows
        self._seen.clear()

    def _look(self) -> None:
        """Find the own slot of every row not seen yet."""
        for partition, records in enumerate(self._kafka.topic):
            windows = self.windows[partition]
            waiting = self._waiting.setdefault(partition, {})
            for offset in range(self._seen.get(partition, 0), len(records)):
                record = records[offset]
                if record is None or record.kind is Kind.CANCEL:
                    continue
                if (partition, offset) not in self._left:
                    waiting[offset] = slot_of(record, window_at(windows, offset))[0]
            self._seen[partition] = len(records)

    def _judge(self, leave: Leave, progress: Progress) -> None:
        partition, offset = leave.row.partition, leave.row.offset
        record = self._kafka.topic[partition][offset]
        assert record is not None
        self._left.add((partition, offset))
        slot = self._waiting[partition].pop(offset, None)
        _require(slot is not None, "doubled", partition, offset)
        assert slot is not None
        done = is_done(progress.partitions.get(partition), offset, slot)
        _require(done, "delivered and not done", partition, offset)
        for key in (("left", partition, leave.slot), ("own", partition, slot)):
            _require(self._newest.get(key, -1) < offset, "out of order", partition, offset)
            self._newest[key] = offset
        if leave.fate is Fate.DELIVERED:
            early = max(record.due, record.not_before) > self.now
            _require(not early, "early", partition, offset)
            _require(record.message not in self._cancelled, "resurrected", partition, offset)
        if leave.fate in {Fate.DELIVERED, Fate.DEAD}:
            _require(record.message not in self._ended, "delivered twice", partition, offset)
            self._ended.add(record.message)

    def _end(self, partition: int, c: int) -> None:
        """Cancels below C hold: what they meet and has not left must not leave."""
        first = self._final.get(partition, 0)
        self._final[partition] = max(first, c)
        for cancel in range(first, c):
            self._cancelled |= self._met(partition, cancel) - self._ended

    def _judge_answer(self, answer: Answer, progress: Progress) -> None:
        place = answer.partition, answer.offset
        _require(place not in self._answered, "answered twice", *place)
        self._answered.add(place)
        closed_c = progress.partitions[answer.partition].closed_c
        _require(answer.offset < closed_c, "answered too early", *place)
        met = self._met(*place)
        if answer.word is Word.CANCELLED:
            _require(bool(met - self._ended), "cancelled nothing", *place)
        if answer.word is Word.ALREADY_DELIVERED:
            _require(bool(met & self._ended), "was not delivered", *place)

    def _judge_silence(
        self, answer: Answer, files: Files, progress: Progress, begun: Marks
    ) -> None:
        """What is pending is cancelled. What was delivered, and is in the wheel still, is known to
        be, unless a cancel of before the start may have left it out.
        """
        if answer.word is Word.CANCELLED:
            return
        partition, offset = answer.partition, answer.offset
        records, r = self._kafka.topic[partition], progress.partitions[partition].r
        slots = {(x.partition, x.offset): slot for slot, rows in files.wheel.items() for x in rows}
        for message in self._met(partition, offset):
            places = [at for at, x in enumerate(records) if x is not None and x.message == message]
            slot = slots.get((partition, places[-1]))
            if slot is None:
                continue
            if message not in self._ended:
                _require(slot <= r + 1, "not cancelled", partition, offset)
            elif answer.word is Word.UNKNOWN:
                before = range(places[0] + 1, begun.get(partition, 0))
                told = any(message in self._met(partition, cancel) for cancel in before)
                _require(told, "not told that it was delivered", partition, offset)

    def _met(self, partition: int, cancel: int) -> set[int]:
        records = self._kafka.topic[partition]
        found = records[cancel]
        if found is None or found.kind is Kind.TIMER or found.origin is not None:
            return set()
        return {
            record.message
            for record in records[:cancel]
            if record is not None and record.id == found.id and record.kind is not Kind.CANCEL
        }

    def settled(self) -> bool:
        """Whether no row waits any more."""
        self._look()
        return not any(self._waiting.values()) and not self._unanswered()

    def _unanswered(self) -> set[tuple[int, int]]:
        cancels = {
            (partition, offset)
            for partition, records in enumerate(self._kafka.topic)
            for offset, r in enumerate(records)
            if r is not None and r.kind is not Kind.TIMER and r.origin is None
        }
        return cancels - self._answered if self._kafka.replies else set()

    def verdict(self) -> None:
        """At the end: every message has come to its end, or a cancel met it."""
        for partition, records in enumerate(self._kafka.topic):
            met = set[int]().union(*(self._met(partition, o) for o in range(len(records))))
            for offset, record in enumerate(records):
                if record is not None and record.kind is not Kind.CANCEL:
                    known = record.message in self._ended or record.message in met
                    _require(known, "lost", partition, offset)


def _require(holds: bool, what: str, partition: int, offset: int) -> None:
    if not holds:
        raise Violation(f"{what}: {partition}@{offset}")
