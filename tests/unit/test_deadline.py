"""Deadlines, and what a request to stop does to them."""

from __future__ import annotations

import threading

import pytest

from duewheel.wheel.deadline import STOP_GRACE_S, Deadline, DeadlinePassed, within

HOUR_S = 3600.0


def test_a_result_and_an_error_come_through() -> None:
    assert within(Deadline(HOUR_S), "call", lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        within(Deadline(HOUR_S), "call", lambda: 1 // 0)


def test_a_call_that_does_not_return_is_left_at_the_deadline() -> None:
    never = threading.Event()
    with pytest.raises(DeadlinePassed, match=r"call: no answer within 0\.2 s"):
        within(Deadline(0.2), "call", never.wait)
    never.set()


def test_a_request_to_stop_leaves_a_call_no_more_than_a_moment() -> None:
    never, stopping = threading.Event(), threading.Event()
    threading.Timer(0.2, stopping.set).start()
    with pytest.raises(DeadlinePassed, match="call: no answer before the stop"):
        within(Deadline(HOUR_S, stopping), "call", never.wait)
    never.set()


def test_an_answer_in_that_moment_is_taken() -> None:
    answer, stopping = threading.Event(), threading.Event()
    stopping.set()
    deadline = Deadline(HOUR_S, stopping)
    assert deadline.remaining_s() <= STOP_GRACE_S
    answer.set()
    assert within(deadline, "call", answer.wait)


def test_a_request_to_stop_gives_no_time() -> None:
    stopping = threading.Event()
    deadline = Deadline(0, stopping)
    stopping.set()
    assert deadline.remaining_s() == 0
    with pytest.raises(DeadlinePassed):
        deadline.check("step")
