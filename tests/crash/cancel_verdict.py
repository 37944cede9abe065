"""Checks timers and cancels after kills, by the records in the topics alone.

A cancel *meets* the timers of its partition with its id that were written before it.

    lost            never delivered, and no cancel meets it, or only such as were told that it was
    doubled         delivered more often than once
    resurrected     delivered after a cancel that meets it was replied to
    unanswered      a cancel without a reply
    answered twice  a cancel with more than one
    untrue          `cancelled`, and neither has it stopped a timer of its own, nor is the last
                    timer that it meets undelivered; or `already_delivered`, and none of those was
                    delivered before
    invented        delivered or answered, and nobody has asked for it
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from duewheel.schemas.header_names import Answer

FAULTS = (
    "lost",
    "doubled",
    "resurrected",
    "unanswered",
    "answered twice",
    "untrue",
    "invented",
)

Place = tuple[int, int]  # partition and offset in the timer topic


@dataclass(frozen=True)
class Asked:
    """A record of the timer topic; of a timer its first copy.

    Attributes:
        place: where it lies.
        timer_id: of the timer, or of those that are to be met; None: nobody can meet it.
        is_timer: whether something is to be delivered.
        cancels: whether it is a cancel: a reschedule is both.
    """

    place: Place
    timer_id: bytes | None
    is_timer: bool = True
    cancels: bool = False


@dataclass(frozen=True)
class Came:
    """What has become of it.

    Attributes:
        place: of what was asked.
        at: when it was committed; of what came at one time nobody knows which was first.
        word: of an answer; "" of a delivery.
    """

    place: Place
    at: int
    word: str = ""


Fault = tuple[str, Place]


def judge(asked: Iterable[Asked], came: Iterable[Came]) -> list[Fault]:
    """All faults, once everything must have come.

    Args:
        asked: every record.
        came: every delivery, dead letters included, and every answer.
    """
    delivered: dict[Place, list[Came]] = defaultdict(list)
    answers: dict[Place, list[Came]] = defaultdict(list)
    for each in came:
        (answers if each.word else delivered)[each.place].append(each)
    groups: dict[object, list[Asked]] = defaultdict(list)
    for row in asked:
        own = row.place if row.timer_id is None else (row.place[0], row.timer_id)
        groups[own].append(row)
    rows = [row for group in groups.values() for row in group]
    found = [("invented", p) for p in delivered.keys() - {r.place for r in rows if r.is_timer}]
    found += [("invented", p) for p in answers.keys() - {r.place for r in rows if r.cancels}]
    for group in groups.values():
        claimed = _claimed(group, delivered, answers)
        for row in group:
            if row.is_timer:
                cancels = [a for a in group if a.cancels and a.place > row.place]
                told = [answer for a in cancels for answer in answers.get(a.place, [])[:1]]
                faults = _of_timer(delivered.get(row.place, []), len(cancels), told)
                found += [(fault, row.place) for fault in faults]
            if row.cancels:
                met = [a.place for a in group if a.is_timer and a.place < row.place]
                ends = [[d.at for d in delivered.get(place, [])] for place in sorted(met)]
                stopped = row.place in claimed or (bool(ends) and not ends[-1])
                faults = _of_cancel(answers.get(row.place, []), ends, stopped)
                found += [(fault, row.place) for fault in faults]
    return sorted(found)


def _claimed(
    group: list[Asked], delivered: dict[Place, list[Came]], answers: dict[Place, list[Came]]
) -> set[Place]:
    """Cancels that were replied `cancelled` and have a timer of their own that never left: of those
    that they meet the last one which no earlier cancel has.
    """
    left = {row.place for row in group if row.is_timer and not delivered.get(row.place)}
    claimed = set()
    for row in sorted(group, key=lambda row: row.place):
        words = [answer.word for answer in answers.get(row.place, [])]
        mine = [place for place in left if place < row.place]
        if row.cancels and Answer.CANCELLED in words and mine:
            left.remove(max(mine))
            claimed.add(row.place)
    return claimed


def _of_timer(delivered: list[Came], cancels: int, told: list[Came]) -> Iterator[str]:
    """Of one timer, the number of cancels that meet it, and what these were told."""
    too_late = sum(answer.word == Answer.ALREADY_DELIVERED for answer in told)
    if not delivered and too_late == cancels:
        yield "lost"
    if len(delivered) > 1:
        yield "doubled"
    if any(each.at > answer.at for each in delivered for answer in told):
        yield "resurrected"


def _of_cancel(answers: list[Came], ends: list[list[int]], stopped: bool) -> Iterator[str]:
    """Of one cancel, of each timer that it meets when it was delivered, and whether it may say that
    something was cancelled.
    """
    if not answers:
        yield "unanswered"
        return
    if len(answers) > 1:
        yield "answered twice"
    first = answers[0]
    true = {
        Answer.CANCELLED: stopped,
        Answer.ALREADY_DELIVERED: any(at <= first.at for end in ends for at in end),
        Answer.UNKNOWN: True,
    }
    if not true[Answer(first.word)]:
        yield "untrue"
