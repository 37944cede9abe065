"""The verdict on a soak, which shares only the names of headers with duewheel.

What should arrive stands in the timer topic; what its producer was told is held against that, too.
The timestamps of target and reply topic are the broker's, on the same host: they say when a record
was written, which is before its transaction ended.

    early       written to its target before it was due
    changed     key, value, headers or target are not what was asked for; or those of an answer
    disordered  of two timers of a partition the later one came first, and its slot is not earlier
    strayed     a chase, which duewheel writes for a cancel, names no cancel, or another id
    taken back  acknowledged to the producer, and not in the timer topic: Kafka's own loss

What is lost, doubled, resurrected, invented, and what is wrong with answers: cancel_verdict.py.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tests.crash import cancel_verdict
from tests.crash.cancel_verdict import Came
from tests.soak.load import number_of

FAULTS = (*cancel_verdict.FAULTS, "early", "changed", "disordered", "strayed", "taken back")
CANCEL, RESCHEDULE = "TIMER_DEL_UNIQKEY", "TIMER_RESCHEDULE"
CHASE = "TIMER_CANCEL_SLOT"  # a header of cancels that duewheel has written again

Source = tuple[int, int]  # partition and offset in the timer topic


@dataclass(frozen=True)
class SoakRequest:
    """A timer or a cancel as the timer topic has it.

    Attributes:
        due_ms: None: it must be rejected, if it is a timer.
        last: offset of its newest copy.
    """

    record: Any
    due_ms: int | None
    last: int

    @property
    def headers(self) -> dict[str, bytes]:
        return dict(self.record.headers)

    @property
    def is_timer(self) -> bool:
        return CANCEL not in self.headers

    @property
    def timer_id(self) -> bytes | None:
        """Its own, or that of the timers that it is to meet."""
        return self.headers.get(CANCEL) or self.headers.get("UNIQ_KEY")

    def for_verdict(self) -> cancel_verdict.Asked:
        """See there."""
        cancels = bool(self.headers.keys() & {CANCEL, RESCHEDULE})
        place = (self.record.partition, self.record.offset)
        return cancel_verdict.Asked(place, self.timer_id, self.is_timer, cancels)


@dataclass(frozen=True)
class Rules:
    """What decides where a timer belongs, and when."""

    target: str
    dead_letters: str
    window_ms: int
    precision_ms: int


@dataclass(frozen=True)
class Verdict:
    """How many of each fault, as the module's head has them; and a line for each of the first.

    Attributes:
        cancelled: timers that were never delivered, and were not to be.
        answers: how many, by word.
        chases: records in the timer topic that are.
    """

    delivered: int
    rejected: int
    rolled: int
    cancelled: int
    answers: Counter[str]
    chases: int
    faults: Counter[str]
    told: list[str]


def judge(
    written: Iterable[Any],
    arrived: Sequence[Any],
    answers: Sequence[Any],
    acknowledged: Mapping[int, Source],
    rules: Rules,
) -> Verdict:
    """Once everything must have arrived.

    Args:
        written: the records of the timer topic.
        arrived: those of the target and the dead-letter topic.
        answers: those of the reply topic.
        acknowledged: what the producer was told, by the number with which the value begins.
        rules: see there.
    """
    written = list(written)
    chases = [record for record in written if CHASE in dict(record.headers)]
    asked = asked_for(record for record in written if CHASE not in dict(record.headers))
    timers = {source: timer for source, timer in asked.items() if timer.is_timer}
    came: dict[Source, list[Any]] = defaultdict(list)
    for record in arrived:
        came[source_of(record)].append(record)
    told = [Came(source_of(r), r.timestamp, word_of(r)) for r in answers]
    delivered = [Came(source_of(r), r.timestamp) for r in arrived]
    found = [("taken back", "", s) for s in _taken_back(asked, acknowledged)]
    rows = [row.for_verdict() for row in asked.values()]
    for fault, source in cancel_verdict.judge(rows, delivered + told):
        found.append((fault, _history(asked.get(source), came.get(source, [])), source))
    for source, timer in timers.items():
        found += [(*fault, source) for fault in _faults_of(timer, came.get(source, []), rules)]
    for record in answers:
        if source_of(record) in asked and (detail := _answer_of(record, asked[source_of(record)])):
            found.append(("changed", detail, source_of(record)))
    found += [("strayed", "", _place(chase)) for chase in chases if _has_strayed(chase, asked)]
    found += [("disordered", "", source) for source in _disordered(timers, arrived, rules)]
    rejected = sum(timer.due_ms is None for source, timer in timers.items() if source in came)
    return Verdict(
        delivered=len(came) - rejected,
        rejected=rejected,
        rolled=sum(timer.last != offset for (_, offset), timer in timers.items()),
        cancelled=len(timers.keys() - came.keys()),
        answers=Counter(each.word for each in told),
        chases=len(chases),
        faults=Counter(fault for fault, *_ in found),
        told=[f"{fault}: {source[0]}@{source[1]} {detail}" for fault, detail, source in found],
    )


def asked_for(written: Iterable[Any]) -> dict[Source, SoakRequest]:
    """What a timer topic without its chases asks for, by the place of each one's first copy."""
    asked: dict[Source, SoakRequest] = {}
    for record in written:
        headers = dict(record.headers)
        if "TIMER_ORIGIN" in headers:
            source = (record.partition, int(headers["TIMER_ORIGIN"]))
            asked[source] = replace(asked[source], last=record.offset)
        else:
            delay_ms = headers.get("TIMER_DELAY_MS")
            due_ms = None if delay_ms is None else record.timestamp + int(delay_ms)
            asked[record.partition, record.offset] = SoakRequest(record, due_ms, record.offset)
    return asked


def _place(record: Any) -> Source:
    return record.partition, record.offset


def _has_strayed(chase: Any, asked: Mapping[Source, SoakRequest]) -> bool:
    """Whether it is not that of a request which lies before it."""
    headers = dict(chase.headers)
    request = asked.get((chase.partition, int(headers["TIMER_ORIGIN"])))
    return (
        request is None
        or request.record.offset >= chase.offset
        or not request.headers.keys() & {CANCEL, RESCHEDULE}
        or request.timer_id != headers[CANCEL]
    )


def word_of(answer: Any) -> str:
    """What an answer says."""
    word: bytes = dict(answer.headers)["TIMER_ANSWER"]
    return word.decode()


def source_of(record: Any) -> Source:
    """Where the first copy of what was delivered lies."""
    place = dict(record.headers)["TIMER_SOURCE"].decode().rsplit("-", 1)[1]
    partition, offset = place.split("@")
    return int(partition), int(offset)


def _taken_back(
    asked: dict[Source, SoakRequest], acknowledged: Mapping[int, Source]
) -> list[Source]:
    return [
        source
        for number, source in acknowledged.items()
        if source not in asked or number_of(asked[source].record) != number
    ]


def _history(asked: SoakRequest | None, records: list[Any]) -> str:
    """When it was due, and when and where it came."""
    due_ms = asked.due_ms if asked else None
    return f"due {due_ms} {[(r.topic, r.partition, r.offset, r.timestamp) for r in records]}"


def _answer_of(answer: Any, asked: SoakRequest) -> str:
    """What is wrong with an answer, "" if nothing is."""
    partition, offset = source_of(answer)
    topic = asked.record.topic
    own = [(name, value) for name, value in asked.record.headers if name == "n"]
    name = asked.timer_id or b""
    added = {
        "TIMER_ANSWER": word_of(answer).encode(),
        "UNIQ_KEY": name,
        "TIMER_SOURCE": f"{topic}-{partition}@{offset}".encode(),
    }
    said = {
        "answer": word_of(answer),
        "id": name.decode(),
        "source": f"{topic}-{partition}@{offset}",
        "request": "reschedule" if asked.is_timer else "cancel",
    }
    got = (answer.key, json.loads(answer.value), list(answer.headers))
    return "" if got == (asked.record.key, said, [*own, *added.items()]) else "an answer"


def _faults_of(timer: SoakRequest, records: list[Any], rules: Rules) -> Iterator[tuple[str, str]]:
    """Of one timer: what is wrong with its arrivals, and in detail."""
    for record in records:
        if timer.due_ms is not None and record.timestamp < timer.due_ms:
            yield "early", f"by {timer.due_ms - record.timestamp} ms"
        if difference := _difference(record, timer, rules):
            yield "changed", difference


def _difference(record: Any, timer: SoakRequest, rules: Rules) -> str:
    own = [(name, value) for name, value in timer.record.headers if name == "n"]
    wanted = (timer.record.key, timer.record.value, own)
    if (record.key, record.value, list(record.headers)[: len(own)]) != wanted:
        return "key, value or headers"
    added = dict(record.headers)
    if timer.due_ms is None:
        right = record.topic == rules.dead_letters
        return "" if right and added["TIMER_ERROR_CODE"] == b"no_due_time" else "not rejected"
    right = record.topic == rules.target
    return "" if right and added["TIMER_DUE_MS"] == b"%d" % timer.due_ms else "target or due"


def _disordered(
    asked: dict[Source, SoakRequest], arrived: Sequence[Any], rules: Rules
) -> list[Source]:
    """Of those never rolled: a copy's slot would be a matter of when it was rolled."""
    lanes: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for record in sorted(arrived, key=lambda record: int(record.offset)):
        source = source_of(record)
        timer = asked.get(source)
        if timer is None or timer.due_ms is None:
            continue
        if timer.due_ms - timer.record.timestamp <= rules.window_ms:
            slot = -(-timer.due_ms // rules.precision_ms)
            lanes[record.partition, source[0]].append((source[1], slot))
    return [(lane[1], offset) for lane, came in lanes.items() for offset in out_of_order(came)]


def out_of_order(came: Sequence[tuple[int, int]]) -> list[int]:
    """Offsets that came behind a higher one whose slot is theirs or a later one.

    Args:
        came: offset and slot of each timer of one partition, in the order of their coming.
    """
    offsets, slots = np.array(came, np.int64).reshape(-1, 2).T
    return [
        int(offset)
        for at, (offset, slot) in enumerate(zip(offsets, slots, strict=True))
        if np.any((offsets[:at] > offset) & (slots[:at] >= slot))
    ]
