"""Judges cancels and reschedules: whom they keep from leaving, and what they are told.

Once a progress was committed whose C lies behind a cancel, nothing that it meets leaves any more:
it is *cancelled*. Each cancel is answered once, in the order of offsets, with such a progress, and
truly: `cancelled` if something that it meets has not been delivered, `already_delivered` if
something has been; `unknown` says nothing. How often it is said of what was delivered is counted.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

from tests.simulation.timers import TOPIC, Timer

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
    """

    def __init__(self, violated: Callable[[str, str], None], counts: Counter[str]) -> None:
        self.cancelled: set[bytes] = set()
        self._violated = violated
        self._counts = counts
        self._timers: dict[int, list[Timer]] = defaultdict(list)
        self._cancels: dict[bytes, Timer] = {}
        self._ended: set[bytes] = set()
        self._final: dict[int, int] = defaultdict(int)  # C told so far
        self._answered: set[bytes] = set()
        self._newest: dict[int, int] = defaultdict(lambda: -1)

    @property
    def asked(self) -> bool:
        """Whether there is any cancel."""
        return bool(self._cancels)

    @property
    def unanswered(self) -> set[bytes]:
        """Cancels that have been told nothing yet."""
        return self._cancels.keys() - self._answered

    def written(self, timer: Timer) -> None:
        """A user's record has come to be."""
        if timer.is_timer and not timer.rejected:
            self._timers[timer.partition].append(timer)
        if timer.request:
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
                    met = self._met(cancel) - self._ended
                    self._counts["timers cancelled"] += len(met - self.cancelled)
                    self.cancelled |= met

    def _met(self, cancel: Timer) -> set[bytes]:
        return {
            timer.source
            for timer in self._timers[cancel.partition]
            if timer.timer_id == cancel.timer_id and timer.origin < cancel.origin
        }

    def answered(self, answers: Deliveries, progress: Progress) -> None:
        """Answers that were committed with this progress."""
        if not answers.answer.all():
            self._violated("9 answers", "answers and timers in one transaction")
            return
        for row in range(len(answers)):
            source: Any = answers.source[row].as_py()
            cancel = self._cancels.get(source)
            if cancel is None or source in self._answered:
                self._violated("9 answers", f"{source!r} is answered twice, or was never asked")
                continue
            self._answered.add(source)
            self._judge(row, answers, cancel, progress)

    def _judge(self, row: int, answers: Deliveries, cancel: Timer, progress: Progress) -> None:
        name = cancel.source.decode()
        part = progress.partitions[TOPIC, cancel.partition]
        if cancel.origin >= part.closed_c or cancel.origin < self._newest[cancel.partition]:
            self._violated("9 answers", f"{name} is answered too early")
        self._newest[cancel.partition] = cancel.origin
        word = _word(row, answers, cancel)
        if word is None:
            self._violated("bytes", f"the answer to {name}")
            return
        self._counts[f"answer: {word}"] += 1
        met = self._met(cancel)
        if word is names.Answer.UNKNOWN and met & self._ended:
            self._counts["answer: unknown, though delivered"] += 1
        untrue = {
            names.Answer.CANCELLED: not met - self._ended,
            names.Answer.ALREADY_DELIVERED: not met & self._ended,
            names.Answer.UNKNOWN: False,
        }
        if untrue[word]:
            self._violated("9 answers", f"{name} is told {word}")

    def judge_end(self) -> None:
        """Everything that will ever happen has happened."""
        for source in sorted(self.unanswered)[:3]:
            self._violated("9 answers", f"{source.decode()} was never answered")


def _word(row: int, answers: Deliveries, cancel: Timer) -> names.Answer | None:
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
    encoded = b"".join(framed_bytes(name) + framed_bytes(value) for name, value in own)
    topic = answers.targets[int(answers.target[row])]
    right = (said, key, headers, topic) == (wanted, cancel.key, encoded, REPLIES)
    return word if right and int(answers.header_count[row]) == len(own) else None
