"""The verdict on a proof or a soak, from the records of its topics.

The timer topic has what was requested; what Kafka acknowledged to its producer is compared with it,
too. Times are those of the brokers where a topic stamps its records, and this host's where not.

    early       received before it was due by this host's clock, or stamped before it was due
    altered     key, value, headers or target are not those that were written; or those of a reply
    disordered  of two timers of a partition the later one came first, and its slot is not earlier
    strayed     a chase, which duewheel writes for a cancel, names no cancel, or another id
    taken back  acknowledged to the producer, and not in the timer topic: Kafka's own loss

What is lost, doubled, resurrected, invented, and what is wrong with replies: cancel_rules.py.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from duewheel.prove import cancel_rules
from duewheel.prove.cancel_rules import RequestOutcome, TimerRequest, cancel_faults
from duewheel.prove.records import (
    ArrivedReply,
    ArrivedTimer,
    Chase,
    Source,
    WrittenRequest,
    WrittenTopic,
)

FAULTS = (*cancel_rules.FAULTS, "early", "altered", "disordered", "strayed", "taken back")


@dataclass(frozen=True)
class ProofRules:
    """What decides where a timer belongs, and when.

    Attributes:
        target: of accepted timers.
        dead_letters: the topic of rejected ones.
        window_ms: the roll window.
        precision_ms: the length of a slot.
        skew_ms: by how much the clocks of this host and of the brokers may differ.
    """

    target: str
    dead_letters: str
    window_ms: int
    precision_ms: int
    skew_ms: int = 0


@dataclass(frozen=True)
class ProofVerdict:
    """How many of each fault, as the module's head has them; and a line for each.

    Attributes:
        cancelled: timers that were never delivered, and were not to be.
        replies: how many, by word.
        chases: cancels that duewheel has written again.
    """

    delivered: int
    rejected: int
    rolled: int
    cancelled: int
    replies: Counter[str]
    chases: int
    faults: Counter[str]
    details: list[str]


def verdict_of(
    written: WrittenTopic,
    arrived: Sequence[ArrivedTimer],
    replies: Sequence[ArrivedReply],
    acknowledged: Mapping[int, Source],
    rules: ProofRules,
) -> ProofVerdict:
    """The verdict, once everything must have arrived.

    Args:
        written: the timer topic.
        arrived: the records of the target and the dead-letter topic.
        replies: those of the reply topic.
        acknowledged: the sources that the producer was replied, by the number of the record.
        rules: see there.
    """
    requests = written.requests
    timers = {source: timer for source, timer in requests.items() if timer.is_timer}
    by_source: dict[Source, list[ArrivedTimer]] = defaultdict(list)
    for record in arrived:
        by_source[record.source].append(record)
    found = [("taken back", "", source) for source in _lost_by_kafka(requests, acknowledged)]
    for fault, source in _cancel_faults(requests.values(), arrived, replies, rules):
        detail = _history(requests.get(source), by_source.get(source, []))
        found.append((fault, detail, source))
    for source, timer in timers.items():
        found += [(*fault, source) for fault in _faults_of(timer, by_source.get(source, []), rules)]
    for reply in replies:
        request = requests.get(reply.source)
        if request is not None and not _is_reply_to(reply, request):
            found.append(("altered", "a reply", reply.source))
    found += [("strayed", "", c.source) for c in written.chases if _has_strayed(c, requests)]
    found += [("disordered", "", source) for source in _disordered(timers, arrived, rules)]
    rejected = sum(timer.due_ms is None for source, timer in timers.items() if source in by_source)
    return ProofVerdict(
        delivered=len(by_source) - rejected,
        rejected=rejected,
        rolled=sum(timer.is_rolled for timer in timers.values()),
        cancelled=len(timers.keys() - by_source.keys()),
        replies=Counter(each.reply for each in replies),
        chases=len(written.chases),
        faults=Counter(fault for fault, *_ in found),
        details=[f"{fault}: {source[0]}@{source[1]} {detail}" for fault, detail, source in found],
    )


def _cancel_faults(
    requests: Iterable[WrittenRequest],
    arrived: Sequence[ArrivedTimer],
    replies: Sequence[ArrivedReply],
    rules: ProofRules,
) -> list[cancel_rules.Fault]:
    rows = [TimerRequest(r.source, r.timer_id, r.is_timer, r.cancels) for r in requests]
    outcomes = [RequestOutcome(each.source, each.stamp_ms) for each in arrived]
    outcomes += [RequestOutcome(each.source, each.stamp_ms, each.reply) for each in replies]
    return cancel_faults(rows, outcomes, rules.skew_ms)


def _lost_by_kafka(
    requests: Mapping[Source, WrittenRequest], acknowledged: Mapping[int, Source]
) -> list[Source]:
    return [
        source
        for number, source in acknowledged.items()
        if source not in requests or requests[source].number != number
    ]


def _has_strayed(chase: Chase, requests: Mapping[Source, WrittenRequest]) -> bool:
    """Whether it is not that of a request which lies before it."""
    request = requests.get(chase.request)
    return (
        request is None
        or request.source >= chase.source
        or not request.cancels
        or request.timer_id != chase.timer_id
    )


def _history(request: WrittenRequest | None, records: list[ArrivedTimer]) -> str:
    """The due time, and times and places of arrivals."""
    due_ms = request.due_ms if request else None
    return f"due {due_ms} {[(r.topic, r.partition, r.offset, r.stamp_ms) for r in records]}"


def _is_reply_to(reply: ArrivedReply, request: WrittenRequest) -> bool:
    """Whether a reply has the key and headers of its request, and the right value."""
    partition, offset = request.source
    source, timer_id = f"{request.topic}-{partition}@{offset}", request.timer_id or b""
    added = {
        "TIMER_ANSWER": reply.reply.encode(),
        "UNIQ_KEY": timer_id,
        "TIMER_SOURCE": source.encode(),
    }
    value = {
        "answer": reply.reply,
        "id": timer_id.decode(),
        "source": source,
        "request": "reschedule" if request.is_timer else "cancel",
    }
    content = (reply.key, json.loads(reply.value), reply.headers)
    return content == (request.content.key, value, (*request.content.own, *added.items()))


def _faults_of(
    timer: WrittenRequest, records: list[ArrivedTimer], rules: ProofRules
) -> Iterator[tuple[str, str]]:
    """What is wrong with the arrivals of one timer, and in detail."""
    for record in records:
        if timer.due_ms is not None:
            early_ms = timer.due_ms - min(record.received_ms, record.stamp_ms + rules.skew_ms)
            if early_ms > 0:
                yield "early", f"by {early_ms} ms"
        if difference := _difference(record, timer, rules):
            yield "altered", difference


def _difference(record: ArrivedTimer, timer: WrittenRequest, rules: ProofRules) -> str:
    if record.content != timer.content:
        return "key, value or headers"
    if timer.due_ms is None:
        right = record.topic == rules.dead_letters and record.error_code == b"no_due_time"
        return "" if right else "not rejected"
    right = record.topic == rules.target and record.due_ms == timer.due_ms
    return "" if right else "target or due time"


def _disordered(
    timers: Mapping[Source, WrittenRequest], arrived: Sequence[ArrivedTimer], rules: ProofRules
) -> Iterator[Source]:
    """Of those never rolled: the slot of a copy depends on when it was rolled."""
    lanes: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for record in sorted(arrived, key=lambda record: record.offset):
        timer = timers.get(record.source)
        if timer is None or timer.due_ms is None or record.topic != rules.target:
            continue
        if timer.due_ms - timer.stamp_ms <= rules.window_ms:
            slot = -(-timer.due_ms // rules.precision_ms)
            lanes[record.partition, record.source[0]].append((record.source[1], slot))
    for (_, partition), lane in lanes.items():
        yield from ((partition, offset) for offset in out_of_order(lane))


def out_of_order(lane: Iterable[tuple[int, int]]) -> Iterator[int]:
    """Offsets that came behind a higher one whose slot is theirs or a later one.

    Args:
        lane: offset and slot of each timer of one partition, in the order of their arrival.
    """
    # Of those that came so far, the ones that no other exceeds in both: slots rise, offsets fall.
    slots: list[int] = []
    offsets: list[int] = []
    for offset, slot in lane:
        at = bisect_left(slots, slot)
        if at < len(slots) and offsets[at] > offset:
            yield offset
            continue
        end = bisect_right(slots, slot)
        start = end
        while start and offsets[start - 1] <= offset:
            start -= 1
        slots[start:end], offsets[start:end] = [slot], [offset]
