"""The verdict finds the violations that it checks for."""

from __future__ import annotations

import pytest

from duewheel.prove.cancel_judge import (
    FAULTS,
    Fault,
    RequestOutcome,
    TimerRequest,
    cancel_faults,
)

CANCELLED, DELIVERED, UNKNOWN = "cancelled", "already_delivered", "unknown"
# Cancelled; too late; another partition's; replaced, and then cancelled; nobody's.
ASKED = [
    TimerRequest((0, 0), b"a"),
    TimerRequest((0, 1), b"b"),
    TimerRequest((1, 0), b"a"),
    TimerRequest((0, 2), b"a", is_timer=False, cancels=True),
    TimerRequest((0, 3), b"b", is_timer=False, cancels=True),
    TimerRequest((0, 4), b"c"),
    TimerRequest((0, 5), b"c", cancels=True),
    TimerRequest((0, 6), b"c", is_timer=False, cancels=True),
    TimerRequest((0, 7), b"d", is_timer=False, cancels=True),
    TimerRequest((0, 8), b"d"),
    TimerRequest((0, 9), None),
]
CAME = [
    RequestOutcome((0, 1), 10),
    RequestOutcome((0, 2), 11, CANCELLED),
    RequestOutcome((0, 3), 11, DELIVERED),
    RequestOutcome((0, 5), 12, CANCELLED),
    RequestOutcome((0, 6), 13, CANCELLED),
    RequestOutcome((0, 7), 13, UNKNOWN),
    RequestOutcome((1, 0), 14),
    RequestOutcome((0, 8), 15),
    RequestOutcome((0, 9), 15),
]


def without(*places: tuple[int, int]) -> list[RequestOutcome]:
    return [each for each in CAME if each.source not in places]


FAULTY: list[tuple[list[RequestOutcome], list[Fault]]] = [
    (without((0, 9)), [("lost", (0, 9))]),
    (without((0, 8)), [("lost", (0, 8))]),  # its cancel was written before it
    (without((1, 0)), [("lost", (1, 0))]),  # its cancel is another partition's
    (without((0, 1)), [("lost", (0, 1)), ("untrue", (0, 3))]),
    ([*CAME, RequestOutcome((0, 9), 16)], [("doubled", (0, 9))]),
    ([*CAME, RequestOutcome((0, 0), 12)], [("resurrected", (0, 0)), ("untrue", (0, 2))]),
    ([*CAME, RequestOutcome((0, 4), 13)], [("resurrected", (0, 4)), ("untrue", (0, 5))]),
    ([*CAME, RequestOutcome((0, 0), 11)], [("untrue", (0, 2))]),
    # The timer that was replaced is not one that the later cancel has stopped.
    ([*CAME, RequestOutcome((0, 5), 12)], [("untrue", (0, 6))]),
    (
        [*without((0, 7)), RequestOutcome((0, 7), 13, UNKNOWN), RequestOutcome((0, 5), 14)],
        [("resurrected", (0, 5)), ("untrue", (0, 6))],
    ),
    (
        [*without((0, 3)), RequestOutcome((0, 3), 9, DELIVERED)],
        [("resurrected", (0, 1)), ("untrue", (0, 3))],
    ),
    ([*without((0, 7)), RequestOutcome((0, 7), 13, DELIVERED)], [("untrue", (0, 7))]),
    ([*without((0, 7)), RequestOutcome((0, 7), 13, CANCELLED)], [("untrue", (0, 7))]),
    (without((0, 7)), [("unanswered", (0, 7))]),
    ([*CAME, RequestOutcome((0, 2), 16, CANCELLED)], [("answered twice", (0, 2))]),
    ([*CAME, RequestOutcome((2, 0), 16)], [("invented", (2, 0))]),
    ([*CAME, RequestOutcome((0, 3), 16)], [("invented", (0, 3))]),
    ([*CAME, RequestOutcome((0, 9), 16, UNKNOWN)], [("invented", (0, 9))]),
]


@pytest.mark.parametrize(("came", "faults"), FAULTY)
def test_it_sees_a_fault(came: list[RequestOutcome], faults: list[Fault]) -> None:
    assert cancel_faults(ASKED, came) == faults


def test_each_fault_is_seen() -> None:
    assert {fault for _, faults in FAULTY for fault, _ in faults} == set(FAULTS)


def test_times_of_two_clocks_may_differ() -> None:
    early = [*without((0, 2)), RequestOutcome((0, 2), 11, DELIVERED), RequestOutcome((0, 0), 12)]
    assert cancel_faults(ASKED, early) == [("resurrected", (0, 0)), ("untrue", (0, 2))]
    assert cancel_faults(ASKED, early, skew=1) == []


def test_it_finds_none_where_there_is_none() -> None:
    assert cancel_faults(ASKED, CAME) == []
    # A cancel may come while what it meets leaves, and need not know any more.
    late = [*without((0, 5)), RequestOutcome((0, 4), 12), RequestOutcome((0, 5), 12, UNKNOWN)]
    assert cancel_faults(ASKED, late) == []
    # Asking again for what is cancelled is no fault.
    again = [*ASKED, TimerRequest((0, 10), b"c", is_timer=False, cancels=True)]
    assert cancel_faults(again, [*CAME, RequestOutcome((0, 10), 17, CANCELLED)]) == []
