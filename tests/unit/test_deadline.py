"""Deadlines, and their end after a request to stop."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from duewheel.deadline import STOP_GRACE_S, Deadline, DeadlineExceeded, within

HOUR_S = 3600.0


def test_a_result_and_an_error_come_through() -> None:
    assert within(Deadline(HOUR_S), "call", lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        within(Deadline(HOUR_S), "call", lambda: 1 // 0)


def test_a_call_that_does_not_return_is_left_at_the_deadline() -> None:
    never = threading.Event()
    with pytest.raises(DeadlineExceeded, match=r"call: no answer within 0\.2 s"):
        within(Deadline(0.2), "call", never.wait)
    never.set()


def test_a_request_to_stop_leaves_a_call_no_more_than_a_moment() -> None:
    never, stopping = threading.Event(), threading.Event()
    threading.Timer(0.2, stopping.set).start()
    with pytest.raises(DeadlineExceeded, match="call: no answer before the stop"):
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
    with pytest.raises(DeadlineExceeded):
        deadline.check("step")


def test_headway_gives_the_whole_time_again_but_not_after_the_end_or_a_stop() -> None:
    clock, stopping = SimpleNamespace(now_s=0.0), threading.Event()
    deadline = Deadline(30, now_s=lambda: clock.now_s)
    stopped = Deadline(30, stopping, lambda: clock.now_s)
    clock.now_s = 20
    stopping.set()
    for each in (deadline, stopped):
        each.renew()
    assert (deadline.remaining_s(), stopped.remaining_s()) == (30, STOP_GRACE_S)
    clock.now_s = 49.5
    deadline.check("step")
    clock.now_s = 50
    with pytest.raises(DeadlineExceeded, match="step: not done within 30 s"):
        deadline.check("step")
    deadline.renew()
    assert deadline.remaining_s() == 0


def test_calls_within_a_deadline() -> None:
    assert within(Deadline(60), "add", lambda: 1 + 1) == 2

    def time_out() -> None:
        raise TimeoutError("the call's own")

    with pytest.raises(TimeoutError, match="the call's own"):
        within(Deadline(60), "fail", time_out)

    release = threading.Event()
    with pytest.raises(DeadlineExceeded, match=r"wait for ever.*0\.01 s"):
        within(Deadline(0.01), "wait for ever", release.wait)
    release.set()


def test_an_answer_while_the_reason_is_asked_for_is_taken_at_once() -> None:
    """Asking takes seconds."""
    asked, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def ask() -> None:
        asked.set()
        go_on.wait(20)
        ended.set()

    assert within(Deadline(60), "connect", asked.wait, (0.0, ask))
    assert not ended.is_set()
    go_on.set()


def test_the_reason_ends_the_wait() -> None:
    release = threading.Event()

    def ask() -> None:
        raise ValueError("a wrong password")

    with pytest.raises(ValueError, match="a wrong password"):
        within(Deadline(60), "connect", release.wait, (0.0, ask))
    release.set()


def test_a_part_ends_with_the_whole_and_at_its_stop() -> None:
    stopping = threading.Event()
    whole = Deadline(HOUR_S, stopping)
    part = whole.part(10.0)
    assert STOP_GRACE_S < part.remaining_s() <= 10.0
    assert Deadline(0.0).part(10.0).remaining_s() == 0
    stopping.set()
    assert part.remaining_s() <= STOP_GRACE_S
