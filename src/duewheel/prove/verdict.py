"""The verdict on a proof or a soak, from the records of its topics.

The timer topic has the requests. Times are the brokers' where a topic stamps its records, and this
host's elsewhere.

    early       received before it was due by this host's clock, or stamped before it was due
    altered     key, value, headers or target differ from those that were written; also in a reply
    misexpired  a dead letter `expired` before its last instant, or delivered although that was
                before its due time
    disordered  two timers of a partition came in reverse, and the later one's slot is not earlier
    strayed     a chase, which duewheel writes for a cancel, names no cancel, or another id
    taken back  acknowledged to the producer, and missing in the timer topic: Kafka's own loss

The other faults are those of cancel_judge.py.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from duewheel.prove import cancel_judge
from duewheel.prove.cancel_judge import RequestOutcome, Source, TimerRequest, cancel_faults
from duewheel.prove.records import (
    ArrivedReply,
    ArrivedTimer,
    Chase,
    WrittenRequest,
    WrittenTopic,
)

FAULTS = (
    *cancel_judge.FAULTS,
    "early",
    "altered",
    "misexpired",
    "disordered",
    "strayed",
    "taken back",
)


@dataclass(frozen=True)
class ProofRules:
    """Where a timer belongs, and when."""

    target: str
    dead_letters: str
    window_ms: int  # the roll window
    precision_ms: int  # the length of a slot
    skew_ms: int = 0  # the clocks of this host and of the brokers may differ by this


@dataclass(frozen=True)
class ProofVerdict:
    """How many of each outcome, and a line for each fault."""

    delivered: int
    rejected: int
    expired: int
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
    """The verdict, once everything must have arrived; `acknowledged` is by the record's number."""
    requests = written.requests
    timers = {source: timer for source, timer in requests.items() if timer.is_timer}
    by_source: dict[Source, list[ArrivedTimer]] = defaultdict(list)
    for record in arrived:
        by_source[record.source].append(record)
    found = [
        ("taken back", "", source)
        for number, source in acknowledged.items()
        if source not in requests or requests[source].number != number
    ]
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
    expired = sum(any(map(_is_expired, records)) for records in by_source.values())
    return ProofVerdict(
        delivered=len(by_source) - rejected - expired,
        rejected=rejected,
        expired=expired,
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
) -> list[cancel_judge.Fault]:
    rows = [TimerRequest(r.source, r.timer_id, r.is_timer, r.cancels) for r in requests]
    outcomes = [RequestOutcome(each.source, each.stamp_ms) for each in arrived]
    outcomes += [RequestOutcome(each.source, each.stamp_ms, each.reply) for each in replies]
    return cancel_faults(rows, outcomes, rules.skew_ms)


def _has_strayed(chase: Chase, requests: Mapping[Source, WrittenRequest]) -> bool:
    """Whether it belongs to no cancel before it."""
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
    """The faults in the arrivals of one timer, with details."""
    for record in records:
        if timer.due_ms is not None:
            early_ms = timer.due_ms - min(record.received_ms, record.stamp_ms + rules.skew_ms)
            if early_ms > 0:
                yield "early", f"by {early_ms} ms"
        if difference := _difference(record, timer, rules):
            yield "altered", difference
        if _is_misexpired(record, timer, rules):
            yield "misexpired", f"{record.error_code!r} at {record.stamp_ms}"


def _difference(record: ArrivedTimer, timer: WrittenRequest, rules: ProofRules) -> str:
    if record.content != timer.content:
        return "key, value or headers"
    if timer.due_ms is None:
        right = record.topic == rules.dead_letters and record.error_code == b"no_due_time"
        return "" if right else "not rejected"
    topic = rules.dead_letters if _is_expired(record) else rules.target
    right = record.topic == topic and record.due_ms == timer.due_ms
    return "" if right else "target or due time"


def _is_expired(record: ArrivedTimer) -> bool:
    return record.error_code == b"expired"


def _is_misexpired(record: ArrivedTimer, timer: WrittenRequest, rules: ProofRules) -> bool:
    if timer.expires_ms is None or timer.due_ms is None:
        return _is_expired(record)
    if _is_expired(record):
        return record.stamp_ms + rules.skew_ms <= timer.expires_ms
    return timer.expires_ms < timer.due_ms


def _disordered(
    timers: Mapping[Source, WrittenRequest], arrived: Sequence[ArrivedTimer], rules: ProofRules
) -> Iterator[Source]:
    """Timers that rolled are left out: a copy's slot depends on the time of its roll."""
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
    """Offsets that came after a higher one whose slot is not earlier. `lane` has offset and slot of
    one partition's timers, in the order of their arrival.
    """
    # The rows so far that no other exceeds in both. Slots rise and offsets fall, so one bisection
    # finds whether any earlier row has a higher offset and no earlier slot.
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
