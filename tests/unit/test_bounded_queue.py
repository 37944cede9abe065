"""The queue between two stages: its order, its bounds, its ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from duewheel.wheel.bounded_queue import BoundedQueue, QueueClosed

DEADLINE_S = 30.0


def in_thread(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def wait_until(condition: Callable[[], bool]) -> None:
    give_up = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < give_up, "it does not come to that"
        time.sleep(0.001)


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
        wait_until(lambda got=got: len(done) == min(got + held, 20))  # type: ignore[misc]
        time.sleep(0.002)  # what is not held back comes now
        assert len(done) == min(got + held, 20)
        assert queue.get() == got
    assert queue.get() is None
    thread.join(DEADLINE_S)


def test_an_error_comes_behind_the_items_and_again() -> None:
    queue: BoundedQueue[str] = BoundedQueue(10, 100)
    queue.put("whole", 1, 1)
    queue.end(ValueError("damaged"))
    assert queue.get() == "whole"
    for _ in range(2):
        with pytest.raises(ValueError, match="damaged"):
            queue.get()


@pytest.mark.parametrize("held", [0, 1])
def test_closing_wakes_both_sides(held: int) -> None:
    """Held up: who gets from an empty queue, or who puts into a full one."""
    queue: BoundedQueue[int] = BoundedQueue(1, 1)
    ended = []

    def work() -> None:
        try:
            if held:
                queue.put(2, 1, 1)
            else:
                queue.get()
        except QueueClosed:
            ended.append(True)

    for number in range(held):
        queue.put(number, 1, 1)
    thread = in_thread(work)
    queue.close()
    thread.join(DEADLINE_S)
    assert ended == [True]
    with pytest.raises(QueueClosed):
        queue.put(1, 1, 1)
    with pytest.raises(QueueClosed):
        queue.get()
