"""The verdict on a soak; nothing of duewheel decides it but the names of headers.

What should arrive stands in the timer topic; what its producer was told is held against that, too.
The target's timestamps are the broker's, on the same host: they say when a message was written,
which is before its transaction ended.

    lost        in the timer topic, never delivered
    doubled     delivered more often than once
    early       written to its target before it was due
    changed     key, value, headers or target are not what was asked for
    disordered  of two timers of a partition the later one came first, and its slot is not earlier
    taken back  acknowledged to the producer, and not in the timer topic: Kafka's own loss
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

FAULTS = ("lost", "doubled", "early", "changed", "disordered", "taken back")

Source = tuple[int, int]  # partition and offset in the timer topic


@dataclass(frozen=True)
class Asked:
    """A timer as the timer topic has it.

    Attributes:
        due_ms: None: it must be rejected.
        last: offset of its newest copy.
    """

    record: Any
    due_ms: int | None
    last: int


@dataclass(frozen=True)
class Rules:
    """What decides where a timer belongs, and when."""

    target: str
    dead_letters: str
    window_ms: int
    precision_ms: int


@dataclass(frozen=True)
class Verdict:
    """How many of each fault, as the module's head has them; and a line for each of the first."""

    delivered: int
    rejected: int
    rolled: int
    faults: Counter[str]
    told: list[str]


def judge(
    written: Iterable[Any],
    arrived: Sequence[Any],
    acknowledged: Mapping[int, Source],
    rules: Rules,
) -> Verdict:
    """Once everything must have arrived.

    Args:
        written: the records of the timer topic.
        arrived: those of the target and the dead-letter topic.
        acknowledged: what the producer was told, by the number with which the value begins.
        rules: see there.
    """
    asked = asked_for(written)
    came: dict[Source, list[Any]] = defaultdict(list)
    for record in arrived:
        came[source_of(record)].append(record)
    found = [("taken back", "", s) for s in _taken_back(asked, acknowledged)]
    for source, timer in asked.items():
        found += [(*fault, source) for fault in _faults_of(timer, came.get(source, []), rules)]
    found += [("changed", "nobody has asked for it", s) for s in came.keys() - asked.keys()]
    found += [("disordered", "", source) for source in _disordered(asked, arrived, rules)]
    rejected = sum(timer.due_ms is None for source, timer in asked.items() if source in came)
    return Verdict(
        delivered=len(came) - rejected,
        rejected=rejected,
        rolled=sum(timer.last != offset for (_, offset), timer in asked.items()),
        faults=Counter(fault for fault, *_ in found),
        told=[f"{fault}: {source[0]}@{source[1]} {detail}" for fault, detail, source in found],
    )


def asked_for(written: Iterable[Any]) -> dict[Source, Asked]:
    """The timers of a timer topic, by the place of each one's first copy."""
    asked: dict[Source, Asked] = {}
    for record in written:
        headers = dict(record.headers)
        if "TIMER_ORIGIN" in headers:
            source = (record.partition, int(headers["TIMER_ORIGIN"]))
            first = asked[source]
            asked[source] = Asked(first.record, first.due_ms, record.offset)
        else:
            delay_ms = headers.get("TIMER_DELAY_MS")
            due_ms = None if delay_ms is None else record.timestamp + int(delay_ms)
            asked[record.partition, record.offset] = Asked(record, due_ms, record.offset)
    return asked


def number_of(record: Any) -> int:
    """The number of a timer, as its producer counts."""
    return int(record.value.split(b" ", 1)[0])


def source_of(record: Any) -> Source:
    """Where the first copy of what was delivered lies."""
    place = dict(record.headers)["TIMER_SOURCE"].decode().rsplit("-", 1)[1]
    partition, offset = place.split("@")
    return int(partition), int(offset)


def _taken_back(asked: dict[Source, Asked], acknowledged: Mapping[int, Source]) -> list[Source]:
    return [
        source
        for number, source in acknowledged.items()
        if source not in asked or number_of(asked[source].record) != number
    ]


def _faults_of(timer: Asked, records: list[Any], rules: Rules) -> Iterator[tuple[str, str]]:
    """Of one timer: what is wrong with its arrivals, and in detail."""
    if not records:
        yield "lost", f"due {timer.due_ms}"
    if len(records) > 1:
        yield "doubled", str([(r.topic, r.partition, r.offset) for r in records])
    for record in records:
        if timer.due_ms is not None and record.timestamp < timer.due_ms:
            yield "early", f"by {timer.due_ms - record.timestamp} ms"
        if difference := _difference(record, timer, rules):
            yield "changed", difference


def _difference(record: Any, timer: Asked, rules: Rules) -> str:
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


def _disordered(asked: dict[Source, Asked], arrived: Sequence[Any], rules: Rules) -> list[Source]:
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
