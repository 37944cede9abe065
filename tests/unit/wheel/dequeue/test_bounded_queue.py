"""The queue between two stages: its order, its bounds, its ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from tests.harness.launcher import wait_until

from duewheel.wheel.dequeue.bounded_queue import BoundedQueue, QueueClosed

DEADLINE_S = 30.0


def in_thread(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("records", "size", "held"),
    [(1, 0, 10), (3, 0, 3), (0, 30, 3), (2, 60, 1), (11, 0, 1), (0, 101, 1), (11, 101, 1)],
)
def test_no_more_than_the_bounds_is_held_and_one_item_always(
    records: int, size: int, held: int
) -> None:
    queue: BoundedQueue[int] = BoundedQueue(10, 100)
    done: list[int] = []

    def fill() -> None:
        for number in range(20):
            queue.put(number, records, size)
            done.append(number)
        queue.end()

    thread = in_thread(fill)
    for got in range(20):
        held_now = min(got + held, 20)
        wait_until(lambda wanted=held_now: len(done) == wanted, "not held", every_s=0.001)  # type: ignore[misc]
        time.sleep(0.002)  # what is not held back comes now
        assert len(done) == min(got + held, 20)
        assert queue.get() == got
    assert queue.get() is None
    thread.join(DEADLINE_S)


def test_room_can_be_waited_for_before_there_is_an_item() -> None:
    queue: BoundedQueue[int] = BoundedQueue(10, 100)
    queue.put(1, 6, 60)
    queue.wait_for_room(4, 40)
    there_is: list[bool] = []

    def wait() -> None:
        queue.wait_for_room(5, 5)
        there_is.append(True)

    thread = in_thread(wait)
    time.sleep(0.01)  # what is not held back comes now
    assert not there_is
    assert queue.get() == 1
    thread.join(DEADLINE_S)
    assert there_is


def test_an_error_comes_behind_the_items_and_again() -> None:
    queue: BoundedQueue[str] = BoundedQueue(10, 100)
    queue.put("whole", 1, 1)
    queue.end(ValueError("damaged"))
    assert queue.get() == "whole"
    for _ in range(2):
        with pytest.raises(ValueError, match="damaged"):
            queue.get()


WAITS: dict[str, Callable[[BoundedQueue[int]], object]] = {
    "get": lambda queue: queue.get(),
    "put": lambda queue: queue.put(2, 1, 1),
    "wait for room": lambda queue: queue.wait_for_room(1, 1),
}


@pytest.mark.parametrize("what", WAITS)
def test_closing_wakes_whoever_waits(what: str) -> None:
    queue: BoundedQueue[int] = BoundedQueue(1, 1)
    if what != "get":
        queue.put(1, 1, 1)
    ended: list[bool] = []

    def work() -> None:
        try:
            WAITS[what](queue)
        except QueueClosed:
            ended.append(True)

    thread = in_thread(work)
    queue.close()
    thread.join(DEADLINE_S)
    assert ended == [True]
    with pytest.raises(QueueClosed):
        WAITS[what](queue)
