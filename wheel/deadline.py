"""One deadline over a sequence of calls, and a way to keep it although a call may never return.

kafka-python has calls that wait without any limit. `within` runs such a call in a daemon thread
of its own and stops waiting for it at the deadline. The thread itself cannot be stopped: whoever
abandons a call must also take away what it waits for (close the client), so that it ends.
"""

from __future__ import annotations

import concurrent.futures
import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class DeadlinePassed(Exception):
    """A call did not return in time; what became of it is unknown."""


class Deadline:
    """A point in time that a whole sequence of calls must not pass. Thread-safe: it never changes.

    Example:
        deadline = Deadline(10)
        within(deadline, "look up topics", lookup)      # may take all of the 10 s
        within(deadline, "commit", commit)              # gets what is left of them
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._ends_at = time.monotonic() + seconds

    def remaining_s(self) -> float:
        """Seconds left, never below 0."""
        return max(0.0, self._ends_at - time.monotonic())

    def remaining_ms(self) -> int:
        """Milliseconds left, never below 1: kafka-python reads a 0 as its default."""
        return max(1, int(self.remaining_s() * 1000))

    def check(self, what: str) -> None:
        """Raise DeadlinePassed, naming `what`, when no time is left."""
        if self.remaining_s() == 0:
            raise DeadlinePassed(f"{what}: not done within {self.seconds:g} s")


def within(deadline: Deadline, what: str, call: Callable[[], T]) -> T:
    """The result of `call`, which runs in a daemon thread of its own.

    Raises:
        DeadlinePassed: no result at the deadline; the call may still be running.
        Exception: whatever the call raised.
    """
    future: concurrent.futures.Future[T] = concurrent.futures.Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - handed on to the caller
            future.set_exception(error)

    threading.Thread(target=run, name=f"deadline: {what}", daemon=True).start()
    # Waiting apart from reading the result: the call may itself raise a TimeoutError.
    done, _ = concurrent.futures.wait([future], timeout=deadline.remaining_s())
    if not done:
        raise DeadlinePassed(f"{what}: no answer within {deadline.seconds:g} s")
    return future.result()
