"""Judges a run of the model by the records in Kafka, and by no state of a process.

After each commit: a row has left its slot if and only if the progress calls it done; nothing leaves
twice, early, or before an earlier row of its partition and slot. A recurring timer ends with its
last firing; its seed fires nothing.

Of cancels: once a progress says C above one, or above its chase, nothing that it is for leaves any
more, unless its last copy lies behind. Each request has one answer; after it, whatever it says,
nothing that it is for leaves any more. Every `cancelled` has a timer of its own that was stopped,
or the newest timer was; `already_delivered` has one that was delivered.

At the end: nothing is lost, every request is answered, and what was stopped has a `cancelled`,
unless a file was lost in the run.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.kafka_model import (
    Answer,
    Fate,
    Kafka,
    Leave,
    Progress,
    Record,
    Windows,
    Word,
    is_done,
    slot_of,
    window_at,
)


class Violation(Exception):
    """An invariant does not hold."""


class Judge:
    """Knows the topic and what was committed, nothing of what any process believes.

    Attributes:
        is_exact: no file was lost, so every timer that was stopped has a `cancelled`.
        words: the answers by partition and offset of the request.
    """

    def __init__(self, kafka: Kafka) -> None:
        self.now = 0
        self.trace: list[str] = []
        self.windows: dict[int, Windows] = {}
        self.is_exact = True
        self.words: dict[tuple[int, int], Word] = {}
        self._kafka = kafka
        self._seen: dict[int, int] = {}
        self._waiting: dict[int, dict[int, int]] = {}  # partition -> offset -> own slot
        self._left: set[tuple[int, int]] = set()
        self._ended: set[int] = set()
        self._fired: set[tuple[int, int]] = set()  # message of a recurring timer, and firings left
        self._final: dict[int, int] = {}  # C told so far
        self._stopped: set[int] = set()  # messages that must not leave
        self._lost: set[int] = set()  # messages that were cut away, or cancelled from there
        self._answered: set[tuple[int, int]] = set()  # also what is never answered, for a cut
        self._newest: dict[tuple[str, int, int], int] = {}
        kafka.before_commit = self.before
        kafka.on_commit = self.committed

    def before(self, progress: Progress, leaves: list[Leave]) -> None:
        """Look at a transaction whose copies are not in the topic yet."""
        for partition, p in progress.partitions.items():
            self._stop(partition, p.closed_c)
        for leave in leaves:
            partition, offset = leave.row.partition, leave.row.offset
            if leave.fate not in {Fate.CANCELLED, Fate.SUCCEEDED}:
                stays = self._record(partition, offset).message in self._stopped
                what = f"left though cancelled ({leave.fate.name.lower()})"
                _require(not stays, what, partition, offset)

    def committed(self, progress: Progress, leaves: list[Leave], answers: list[Answer]) -> None:
        """Look at a transaction that has just been committed."""
        self._look()
        self.trace.append(
            f"{self.now}: committed by {progress.owner}: {progress.partitions} {leaves} {answers}"
        )
        for leave in leaves:
            if leave.fate is not Fate.SUCCEEDED:
                self._judge(leave, progress)
        for partition, p in progress.partitions.items():
            for offset, slot in self._waiting.get(partition, {}).items():
                _require(not is_done(p, offset, slot), "done and not delivered", partition, offset)
        for answer in answers:
            if answer.chase is None:
                self._judge_answer(answer)

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
                if record is None or not record.is_timer:
                    continue
                if (partition, offset) not in self._left:
                    waiting[offset] = slot_of(record, window_at(windows, offset))[0]
            self._seen[partition] = len(records)

    def _judge(self, leave: Leave, progress: Progress) -> None:
        partition, offset = leave.row.partition, leave.row.offset
        record = self._record(partition, offset)
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
        if record.every:
            self._judge_firing(leave, record)
        elif leave.fate in {Fate.DELIVERED, Fate.DEAD}:
            _require(record.message not in self._ended, "delivered twice", partition, offset)
            self._ended.add(record.message)

    def _judge_firing(self, leave: Leave, record: Record) -> None:
        if leave.fate not in {Fate.DELIVERED, Fate.DEAD, Fate.PARKED}:
            return
        partition, offset = leave.row.partition, leave.row.offset
        _require(not record.is_seed, "a seed fired", partition, offset)
        firing = record.message, record.firings
        _require(firing not in self._fired, "fired twice", partition, offset)
        self._fired.add(firing)
        if record.is_last_firing:
            self._ended.add(record.message)

    def _record(self, partition: int, offset: int) -> Record:
        record = self._kafka.topic[partition][offset]
        assert record is not None
        return record

    def _stop(self, partition: int, c: int) -> None:
        """Cancels and chases below C hold for what has no copy behind them."""
        records = self._kafka.topic[partition]
        held = {record.message for of in self._kafka.held.values() for _, record in of}
        first = self._final.get(partition, 0)
        self._final[partition] = max(first, c)
        for offset in range(first, min(c, len(records))):
            record = records[offset]
            if record is None or not record.cancels:
                continue
            for message in self._met(partition, record.first_offset(offset)) - self._ended:
                copies = (o for o, r in enumerate(records) if r and r.message == message)
                if max(copies) < offset and message not in held:
                    self._stopped.add(message)

    def _judge_answer(self, answer: Answer) -> None:
        partition, request = answer.partition, answer.request
        assert answer.word is not None
        _require((partition, request) not in self.words, "answered twice", partition, request)
        self.words[partition, request] = answer.word
        self._answered.add((partition, request))
        self._stopped |= self._met(partition, request) - self._ended
        met = self._met(partition, request)
        if answer.word is Word.ALREADY_DELIVERED:
            _require(bool(met & self._ended), "was not delivered", partition, request)
        if answer.word is Word.CANCELLED:
            _require(bool(met - self._ended), "cancelled nothing", partition, request)
            self._judge_cancelled(partition, self._record(partition, request).id)

    def _judge_cancelled(self, partition: int, id: int) -> None:
        """Of the answers `cancelled` for an id each has a timer of its own: what an earlier one has
        stopped, a reschedule for instance, was not pending any more for a later one. If the newest
        timer was stopped, the answer is true however often it is asked for.
        """
        said = sorted(
            offset
            for (number, offset), word in self.words.items()
            if number == partition
            and word is Word.CANCELLED
            and self._record(partition, offset).id == id
            and max(self._met(partition, offset)) in self._ended
        )
        for count, offset in enumerate(said, 1):
            stopped = len(self._met(partition, offset) - self._ended)
            _require(count <= stopped, "cancelled nothing", partition, offset)

    def _met(self, partition: int, request: int) -> set[int]:
        """The messages that a request is for; none if it is no request."""
        records = self._kafka.topic[partition]
        found = records[request]
        if found is None or not found.is_request:
            return set()
        return {
            record.message
            for record in records[:request]
            if record is not None and record.id == found.id and record.is_timer
        }

    def cut(self, partition: int, end: int) -> None:
        """Kafka is about to lose what lies at or behind `end`: others will have those offsets."""
        self._look()
        records = self._kafka.topic[partition]
        for offset, record in enumerate(records[end:], end):
            if record is not None and record.is_timer:
                self._lost.add(record.message)
            if record is not None and record.is_request:
                self._lost |= self._met(partition, offset)
            if record is not None and record.cancels and not record.is_request:
                # The chase was the request's only trace: there may be no answer.
                self._answered.add((partition, record.first_offset(offset)))
        gone = {at for at in self._left | self._answered if at[0] == partition and at[1] >= end}
        self._left -= gone
        self._answered -= gone
        for at in gone & self.words.keys():
            del self.words[at]
        waiting = self._waiting[partition]
        self._waiting[partition] = {o: slot for o, slot in waiting.items() if o < end}
        self._seen[partition] = min(self._seen[partition], end)
        self._final[partition] = min(self._final.get(partition, 0), end)
        self._newest = {k: o for k, o in self._newest.items() if k[1] != partition}
        self.is_exact = False

    def settled(self) -> bool:
        """Whether no row waits any more."""
        self._look()
        is_held = any(self._kafka.held.values())
        return not any(self._waiting.values()) and not is_held and not self._unanswered()

    def _requests(self) -> Iterator[tuple[int, int]]:
        for partition, records in enumerate(self._kafka.topic):
            for offset, record in enumerate(records):
                if record is not None and record.is_request:
                    yield partition, offset

    def _unanswered(self) -> set[tuple[int, int]]:
        return set(self._requests()) - self._answered

    def verdict(self) -> None:
        """At the end: every message has come to its end, or a request has stopped it."""
        told: dict[int, set[Word | None]] = {}
        for place in self._requests():
            for message in self._met(*place):
                told.setdefault(message, set()).add(self.words.get(place))
        for partition, records in enumerate(self._kafka.topic):
            for offset, record in enumerate(records):
                if record is None or not record.is_timer:
                    continue
                if record.message in self._ended | self._lost:
                    continue
                words = told.get(record.message, set())
                _require(bool(words), "lost", partition, offset)
                good = {Word.CANCELLED} if self.is_exact else {Word.CANCELLED, Word.UNKNOWN, None}
                _require(bool(words & good), "cancelled and not told so", partition, offset)


def _require(holds: bool, what: str, partition: int, offset: int) -> None:
    if not holds:
        raise Violation(f"{what}: {partition}@{offset}")
