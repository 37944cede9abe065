"""Judges cancels and reschedules: whom they keep from leaving, and what they are told.

Once a progress was committed whose C lies behind a cancel, nothing that it meets leaves any more:
it is *cancelled*. Each cancel is answered once, in the order of offsets, with such a progress, and
truly: `cancelled` if something that it meets has not been delivered, `already_delivered` if
something has been.

Nor is less said than can be known (witness.py). What was pending when the cancel became known is
`cancelled`. What was delivered is `already_delivered` while its record is on disk, if no cancel of
its id was known at the start of the process: else any of them may have kept it from leaving; nor
may so many cancels have left out something there, or later, that not all are remembered. If there
was no room for more cancels, only `cancelled` is owed, of what was in the log by then.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

from tests.simulation.timers import DEAD, TARGETS, TOPIC, Copy, Timer
from tests.simulation.witness import Witness

from duewheel.checkpoints.progress import Progress
from duewheel.schemas import header_names as names
from duewheel.schemas.record_tail import framed_bytes
from duewheel.schemas.timers import Deliveries
from duewheel.schemas.varint import read_varint

REPLIES = "replies"


class CancelJudge:
    """Of all partitions.

    Attributes:
        cancelled: timers that must not be delivered any more, by source.
        witness: tells what whoever answers has on disk.
    """

    def __init__(
        self,
        violated: Callable[[str, str], None],
        counts: Counter[str],
        newest: Callable[[Timer], Copy],
        *,
        replies: bool,
    ) -> None:
        """
        Args:
            violated: called with what is wrong.
            counts: of what has happened.
            newest: tells the newest copy of a timer.
            replies: whether there is a topic for answers.
        """
        self._replies = replies
        self.cancelled: set[bytes] = set()
        self.witness: Callable[[], Witness]
        self._violated = violated
        self._counts = counts
        self._copy_of = newest
        # By partition and id, in the order of their offsets.
        self._timers: dict[tuple[int, bytes], list[Timer]] = defaultdict(list)
        self._requests: dict[tuple[int, bytes], list[int]] = defaultdict(list)
        self._cancels: dict[bytes, Timer] = {}
        self._ended: set[bytes] = set()
        self._final: dict[int, int] = defaultdict(int)  # C told so far
        self._answered: set[bytes] = set()
        self._newest: dict[int, int] = defaultdict(lambda: -1)
        self._lost: set[bytes] = set()  # with a copy from behind a cut
        self._abandoned: set[bytes] = set()  # ids of cancels from behind a cut
        # Partition and id of timers from behind a cut that were delivered: their logs are there.
        self._gone: set[tuple[int, bytes]] = set()

    @property
    def asked(self) -> bool:
        """Whether there is any cancel."""
        return bool(self._cancels)

    @property
    def unanswered(self) -> set[bytes]:
        """Cancels that are still to be told something."""
        return self._cancels.keys() - self._answered if self._replies else set()

    def written(self, timer: Timer) -> None:
        """A user's record has come to be."""
        if timer.is_timer and not timer.rejected:
            self._timers[timer.partition, timer.timer_id].append(timer)
        if timer.request:
            self._requests[timer.partition, timer.timer_id].append(timer.origin)
            self._cancels[timer.source] = timer
            self._counts[timer.request] += 1

    def ended(self, timer: Timer) -> None:
        """A timer has been delivered, or has become a dead letter."""
        if timer.source in self.cancelled:
            self._violated("8 cancelled", f"{timer.source.decode()} is delivered all the same")
        self._ended.add(timer.source)

    def advanced(self, progress: Progress) -> None:
        """A progress was committed; what left before has ended."""
        for (_, partition), part in progress.partitions.items():
            first, end = self._final[partition], part.closed_c
            self._final[partition] = max(first, end)
            for cancel in self._cancels.values():
                if cancel.partition == partition and first <= cancel.origin < end:
                    met = {timer.source for timer in self._met(cancel)} - self._ended
                    self._counts["timers cancelled"] += len(met - self.cancelled)
                    self.cancelled |= met

    def _met(self, cancel: Timer) -> list[Timer]:
        timers = self._timers[cancel.partition, cancel.timer_id]
        return [timer for timer in timers if timer.origin < cancel.origin]

    def cut(self, number: int, end: int, lost: set[bytes]) -> None:
        """What lay behind this offset of a partition is lost.

        Args:
            number, end: as above.
            lost: timers of which a copy lay there.
        """
        for of_partition, timer_id in [*self._timers, *self._requests]:
            if of_partition == number:
                key = number, timer_id
                gone = {t.source for t in self._timers[key] if t.origin >= end}
                if gone & self._ended:
                    self._gone.add(key)
                self._timers[key] = [t for t in self._timers[key] if t.origin < end]
                self._requests[key] = [at for at in self._requests[key] if at < end]
        for source, cancel in list(self._cancels.items()):
            if cancel.partition == number and cancel.origin >= end:
                self._abandoned.add(cancel.timer_id)
                del self._cancels[source]
        for sources in (self.cancelled, self._ended, self._answered, lost):
            sources -= {each for each in sources if _behind(each, number, end)}
        self._lost |= lost
        self._final[number] = min(self._final[number], end)
        self._newest[number] = min(self._newest[number], end - 1)

    def answered(
        self,
        answers: Deliveries,
        progress: Progress,
        down: frozenset[tuple[str, int]],
        absent: frozenset[str],
    ) -> None:
        """Answers that were committed with this progress.

        Args:
            answers: as they were written.
            progress: that of their transaction.
            down: partitions that took no writes then.
            absent: topics that did not exist.
        """
        if not answers.answer.all():
            self._violated("9 answers", "answers and timers in one transaction")
            return
        if answers.rolled.any():
            self._violated("9 answers", "an answer goes to a timer topic")
        witness = self.witness()
        for row in range(len(answers)):
            source: Any = answers.source[row].as_py()
            cancel = self._cancels.get(source)
            if cancel is None or source in self._answered:
                self._violated("9 answers", f"{source!r} is answered twice, or was never asked")
                continue
            self._answered.add(source)
            error = ""
            if REPLIES in absent:
                error = "unknown_target_topic"
            elif {(REPLIES, number) for number in cancel.numbers} <= down:
                error = "target_unavailable"
            if error:
                self._counts["answer as a dead letter"] += 1
            word = self._judge(row, answers, cancel, progress, error)
            if word is not None:
                self._judge_word(word, cancel, witness)

    def _judge(
        self, row: int, answers: Deliveries, cancel: Timer, progress: Progress, error: str
    ) -> names.Answer | None:
        """All but the word; `error`: why it cannot go to the reply topic, "" if it can."""
        name = cancel.source.decode()
        part = progress.partitions[TOPIC, cancel.partition]
        if cancel.origin >= part.closed_c or cancel.origin < self._newest[cancel.partition]:
            self._violated("9 answers", f"{name} is answered too early")
        self._newest[cancel.partition] = cancel.origin
        word = _word(row, answers, cancel, error)
        if word is None:
            self._violated("bytes", f"the answer to {name}")
        return word

    def _judge_word(self, word: names.Answer, cancel: Timer, witness: Witness) -> None:
        self._counts[f"answer: {word}"] += 1
        met = self._met(cancel)
        ended = [timer for timer in met if timer.source in self._ended]
        # Of a copy that is lost behind a cut nobody knows that it was parked or spread.
        was_there = (cancel.partition, cancel.timer_id) in self._gone
        was_there |= any(timer.source in self._lost for timer in met)
        untrue = {
            names.Answer.CANCELLED: len(ended) == len(met),
            names.Answer.ALREADY_DELIVERED: not ended and not was_there,
            names.Answer.UNKNOWN: False,
        }
        owed = self._owed(cancel, met, witness)
        if untrue[word]:
            self._violated("9 answers", f"{cancel.source.decode()} is told {word}")
        elif owed is not None and word not in {owed, names.Answer.CANCELLED}:
            self._violated("9 answers", f"{cancel.source.decode()} is told {word}, not {owed}")
        elif word is names.Answer.UNKNOWN and ended:
            self._counts["answer: unknown, though delivered"] += 1

    def _owed(self, cancel: Timer, met: list[Timer], witness: Witness) -> names.Answer | None:
        """What can be known, and so is to be told; None if nothing."""
        if not witness.whole:
            return None
        requests = self._requests[cancel.partition, cancel.timer_id]
        word = None
        for timer in met:
            if timer.source in self._lost:
                continue
            copy = self._copy_of(timer)
            if timer.source not in self._ended:
                if witness.is_pending(copy, cancel.origin):
                    return names.Answer.CANCELLED
                continue
            given_up = witness.closings.may_be_given_up(cancel.partition, cancel.origin)
            if given_up or timer.timer_id in self._abandoned:
                continue
            slot = witness.delivered_in(copy, [at for at in requests if at > timer.origin])
            if slot is not None and not self._are_forgotten(slot, witness):
                word = names.Answer.ALREADY_DELIVERED
        return word

    def _are_forgotten(self, slot: int, witness: Witness) -> bool:
        """Whether nobody may know any more who has left out something in this slot."""
        remembered = 0
        for cancel in self._cancels.values():
            met = [self._copy_of(timer) for timer in self._met(cancel)]
            remembered += witness.may_have_left_out(cancel.partition, cancel.origin, met, slot)
        # Of too many a quarter is forgotten.
        return remembered > witness.cancels_max * 3 // 4

    def judge_end(self) -> None:
        """Everything that will ever happen has happened."""
        for source in sorted(self.unanswered)[:3]:
            self._violated("9 answers", f"{source.decode()} was never answered")


def _behind(source: bytes, number: int, end: int) -> bool:
    place, offset = source.rsplit(b"@", 1)
    return place.endswith(b"-%d" % number) and int(offset) >= end


def _word(row: int, answers: Deliveries, cancel: Timer, error: str) -> names.Answer | None:
    """What an answer says; None if it is not the one that was to be written."""
    data: Any = answers.key_value[row].as_py()
    headers: Any = answers.headers[row].as_py()
    size, at = read_varint(data, 0)
    key = data[at : at + size] if size >= 0 else None
    size, at = read_varint(data, at + max(size, 0))
    said = json.loads(data[at : at + size])
    word = names.Answer(said.pop(names.ANSWER_WORD))
    wanted = {
        names.ANSWER_ID: cancel.timer_id.decode(),
        names.ANSWER_SOURCE: cancel.source.decode(),
        names.ANSWER_REQUEST: cancel.request,
    }
    own = [*cancel.headers, (names.ANSWER.encode(), word.encode())]
    own.append((names.TIMER_ID.encode(), cancel.timer_id))
    if error:
        own.append((names.ERROR_CODE.encode(), error.encode()))
    encoded = b"".join(framed_bytes(name) + framed_bytes(value) for name, value in own)
    topic = answers.targets[int(answers.target[row])]
    more = len(headers) - len(encoded) if error else 0  # the error in words, and where it was to go
    right = (said, key, headers[: len(headers) - more], topic) == (
        wanted,
        cancel.key,
        encoded,
        TARGETS[DEAD] if error else REPLIES,
    )
    return word if right and (error or int(answers.header_count[row]) == len(own)) else None
