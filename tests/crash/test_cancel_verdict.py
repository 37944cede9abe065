"""The verdict finds the violations that it checks for."""

from __future__ import annotations

import pytest
from tests.crash.cancel_verdict import FAULTS, Asked, Came, Fault, judge

CANCELLED, DELIVERED, UNKNOWN = "cancelled", "already_delivered", "unknown"
# Cancelled; too late; another partition's; replaced, and then cancelled; nobody's.
ASKED = [
    Asked((0, 0), b"a"),
    Asked((0, 1), b"b"),
    Asked((1, 0), b"a"),
    Asked((0, 2), b"a", is_timer=False, cancels=True),
    Asked((0, 3), b"b", is_timer=False, cancels=True),
    Asked((0, 4), b"c"),
    Asked((0, 5), b"c", cancels=True),
    Asked((0, 6), b"c", is_timer=False, cancels=True),
    Asked((0, 7), b"d", is_timer=False, cancels=True),
    Asked((0, 8), b"d"),
    Asked((0, 9), None),
]
CAME = [
    Came((0, 1), 10),
    Came((0, 2), 11, CANCELLED),
    Came((0, 3), 11, DELIVERED),
    Came((0, 5), 12, CANCELLED),
    Came((0, 6), 13, CANCELLED),
    Came((0, 7), 13, UNKNOWN),
    Came((1, 0), 14),
    Came((0, 8), 15),
    Came((0, 9), 15),
]


def without(*places: tuple[int, int]) -> list[Came]:
    return [each for each in CAME if each.place not in places]


FAULTY: list[tuple[list[Came], list[Fault]]] = [
    (without((0, 9)), [("lost", (0, 9))]),
    (without((0, 8)), [("lost", (0, 8))]),  # its cancel was written before it
    (without((1, 0)), [("lost", (1, 0))]),  # its cancel is another partition's
    (without((0, 1)), [("lost", (0, 1)), ("untrue", (0, 3))]),
    ([*CAME, Came((0, 9), 16)], [("doubled", (0, 9))]),
    ([*CAME, Came((0, 0), 12)], [("resurrected", (0, 0)), ("untrue", (0, 2))]),
    ([*CAME, Came((0, 4), 13)], [("resurrected", (0, 4)), ("untrue", (0, 5))]),
    ([*CAME, Came((0, 0), 11)], [("untrue", (0, 2))]),
    # The timer that was replaced is not one that the later cancel has stopped.
    ([*CAME, Came((0, 5), 12)], [("untrue", (0, 6))]),
    (
        [*without((0, 7)), Came((0, 7), 13, UNKNOWN), Came((0, 5), 14)],
        [("resurrected", (0, 5)), ("untrue", (0, 6))],
    ),
    (
        [*without((0, 3)), Came((0, 3), 9, DELIVERED)],
        [("resurrected", (0, 1)), ("untrue", (0, 3))],
    ),
    ([*without((0, 7)), Came((0, 7), 13, DELIVERED)], [("untrue", (0, 7))]),
    ([*without((0, 7)), Came((0, 7), 13, CANCELLED)], [("untrue", (0, 7))]),
    (without((0, 7)), [("unanswered", (0, 7))]),
    ([*CAME, Came((0, 2), 16, CANCELLED)], [("answered twice", (0, 2))]),
    ([*CAME, Came((2, 0), 16)], [("invented", (2, 0))]),
    ([*CAME, Came((0, 3), 16)], [("invented", (0, 3))]),
    ([*CAME, Came((0, 9), 16, UNKNOWN)], [("invented", (0, 9))]),
]


@pytest.mark.parametrize(("came", "faults"), FAULTY)
def test_it_sees_a_fault(came: list[Came], faults: list[Fault]) -> None:
    assert judge(ASKED, came) == faults


def test_each_fault_is_seen() -> None:
    assert {fault for _, faults in FAULTY for fault, _ in faults} == set(FAULTS)


def test_it_finds_none_where_there_is_none() -> None:
    assert judge(ASKED, CAME) == []
    # A cancel may come while what it meets leaves, and need not know any more.
    late = [*without((0, 5)), Came((0, 4), 12), Came((0, 5), 12, UNKNOWN)]
    assert judge(ASKED, late) == []
    # Asking again for what is cancelled is no fault.
    again = [*ASKED, Asked((0, 10), b"c", is_timer=False, cancels=True)]
    assert judge(again, [*CAME, Came((0, 10), 17, CANCELLED)]) == []
