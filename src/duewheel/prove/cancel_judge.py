"""Checks timers and cancels after faults, by the records in the topics alone.

A cancel *matches* the timers of its partition with its id that were written before it.

    lost            never delivered, and each cancel that matches it, if any, was replied
                    `already_delivered`
    doubled         delivered more often than once
    resurrected     delivered after the reply to a cancel that matches it
    unanswered      a cancel without a reply
    answered twice  a cancel with several
    untrue          the reply `cancelled`, although the cancel has stopped no timer of its own and
                    the last timer that it matches was delivered; or `already_delivered`, although
                    no timer that it matches was delivered before
    invented        delivered or replied to, and never requested
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from duewheel.schemas.header_names import Answer

FAULTS = ("lost", "doubled", "resurrected", "unanswered", "answered twice", "untrue", "invented")

Source = tuple[int, int]  # partition and offset in the timer topic


@dataclass(frozen=True)
class TimerRequest:
    """A record of the timer topic; a reschedule is a timer and cancels. Copies are left out."""

    source: Source
    timer_id: bytes | None  # None: no cancel can match it
    is_timer: bool = True
    cancels: bool = False


@dataclass(frozen=True)
class RequestOutcome:
    """A delivery or a reply."""

    source: Source  # the request's
    at: int  # when it was committed; the order of two at one time is not known
    reply: str = ""  # "": a delivery


Fault = tuple[str, Source]


def cancel_faults(
    requests: Iterable[TimerRequest], outcomes: Iterable[RequestOutcome], skew: int = 0
) -> list[Fault]:
    """All faults, once everything must have arrived. Dead letters are deliveries here; the times
    of two topics may differ by `skew`, because different clocks may give them.
    """
    delivered: dict[Source, list[RequestOutcome]] = defaultdict(list)
    answers: dict[Source, list[RequestOutcome]] = defaultdict(list)
    for each in outcomes:
        (answers if each.reply else delivered)[each.source].append(each)
    groups: dict[object, list[TimerRequest]] = defaultdict(list)
    for row in requests:
        own = row.source if row.timer_id is None else (row.source[0], row.timer_id)
        groups[own].append(row)
    rows = [row for group in groups.values() for row in group]
    found = [("invented", p) for p in delivered.keys() - {r.source for r in rows if r.is_timer}]
    found += [("invented", p) for p in answers.keys() - {r.source for r in rows if r.cancels}]
    for group in groups.values():
        claimed = _claimed(group, delivered, answers)
        for row in group:
            if row.is_timer:
                cancels = [a for a in group if a.cancels and a.source > row.source]
                replies = [answer for a in cancels for answer in answers.get(a.source, [])[:1]]
                faults = _of_timer(delivered.get(row.source, []), len(cancels), replies, skew)
                found += [(fault, row.source) for fault in faults]
            if row.cancels:
                matched = [a.source for a in group if a.is_timer and a.source < row.source]
                ends = [[d.at for d in delivered.get(source, [])] for source in sorted(matched)]
                stopped = row.source in claimed or (bool(ends) and not ends[-1])
                faults = _of_cancel(answers.get(row.source, []), ends, stopped, skew)
                found += [(fault, row.source) for fault in faults]
    return sorted(found)


def _claimed(
    group: list[TimerRequest],
    delivered: dict[Source, list[RequestOutcome]],
    answers: dict[Source, list[RequestOutcome]],
) -> set[Source]:
    """The cancels with the reply `cancelled` that have stopped a timer of their own: each claims
    the last undelivered timer before it that no earlier cancel claims.
    """
    pending = {row.source for row in group if row.is_timer and not delivered.get(row.source)}
    claimed = set()
    for row in sorted(group, key=lambda row: row.source):
        replies = [answer.reply for answer in answers.get(row.source, [])]
        mine = [source for source in pending if source < row.source]
        if row.cancels and Answer.CANCELLED in replies and mine:
            pending.remove(max(mine))
            claimed.add(row.source)
    return claimed


def _of_timer(
    delivered: list[RequestOutcome], cancels: int, replies: list[RequestOutcome], skew: int
) -> Iterator[str]:
    """The faults of one timer, from the number of cancels that match it, and their replies."""
    too_late = sum(answer.reply == Answer.ALREADY_DELIVERED for answer in replies)
    if not delivered and too_late == cancels:
        yield "lost"
    if len(delivered) > 1:
        yield "doubled"
    if any(each.at > answer.at + skew for each in delivered for answer in replies):
        yield "resurrected"


def _of_cancel(
    answers: list[RequestOutcome], ends: list[list[int]], stopped: bool, skew: int
) -> Iterator[str]:
    """The faults of one cancel. `ends` has the times of delivery of each timer that it matches;
    `stopped`: it may reply `cancelled`.
    """
    if not answers:
        yield "unanswered"
        return
    if len(answers) > 1:
        yield "answered twice"
    first = answers[0]
    true = {
        Answer.CANCELLED: stopped,
        Answer.ALREADY_DELIVERED: any(at <= first.at + skew for end in ends for at in end),
        Answer.UNKNOWN: True,
    }
    if not true[Answer(first.reply)]:
        yield "untrue"
