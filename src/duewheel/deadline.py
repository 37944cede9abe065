"""One deadline over a sequence of calls, kept even if a call never returns.

Some calls of kafka-python wait without any limit. `within` runs a call in a daemon thread and stops
waiting for it at the deadline. The thread cannot be stopped: the caller must close the client, or
the thread stays for ever.

A function that calls Kafka gets its Deadline from the caller. An object that is kept begins one for
each of its calls, of seconds or limits that it is made with, or by a function; a function that
makes a LogReader bounds it by the deadline that it got (`LogConnection.bounded_by`).

Once a process is stopping, a deadline with a `stopping` event shrinks to STOP_GRACE_S: enough for a
Kafka that answers, and a stop does not hang on one that is down.
"""

from __future__ import annotations

import concurrent.futures
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from duewheel.threads import beside

T = TypeVar("T")

STOP_GRACE_S = 2.0  # once the process is stopping
_CHECK_S = 0.1  # between checks of the stop event
_POLL_S = 0.05


class DeadlineExceeded(Exception):
    """A call did not return in time; its outcome is unknown."""


class Deadline:
    """A point in time that a whole sequence of calls must not pass. Thread-safe.

    Example:
        deadline = Deadline(10)
        within(deadline, "look up topics", lookup)      # may take all of the 10 s
        within(deadline, "commit", commit)              # gets the rest of them
    """

    def __init__(
        self,
        seconds: float,
        stopping: threading.Event | None = None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begins now; `math.inf` seconds: never over. Once `stopping` is set, no more than
        STOP_GRACE_S are left.
        """
        self.seconds = seconds
        self._now_s = now_s
        self._ends_at = now_s() + seconds
        self._stopping = stopping
        self._stop_seen = False
        self._whole: Deadline | None = None  # never after this one

    @property
    def is_over(self) -> bool:
        """Whether no time is left."""
        return not self.remaining_s()

    def remaining_s(self) -> float:
        """Seconds left, never below 0."""
        now = self._now_s()
        if not self._stop_seen and self._stopping is not None and self._stopping.is_set():
            self._ends_at = min(self._ends_at, now + STOP_GRACE_S)
            self._stop_seen = True
        left_s = max(0.0, self._ends_at - now)
        return left_s if self._whole is None else min(left_s, self._whole.remaining_s())

    def remaining_ms(self) -> int:
        """Milliseconds left, never below 1: kafka-python reads a 0 as its default."""
        return max(1, int(self.remaining_s() * 1000))

    def renew(self) -> None:
        """Restarts the time, after headway. No effect once the process is stopping."""
        if self.remaining_s() and not self._stop_seen:
            self._ends_at = self._now_s() + self.seconds

    def part(self, seconds: float) -> Deadline:
        """A deadline for some of the calls: in so many seconds, but never after this one."""
        part = Deadline(seconds, None, self._now_s)
        part._whole = self
        return part

    def check(self, what: str) -> None:
        """Raises DeadlineExceeded for this call once no time is left."""
        if self.is_over:
            raise self.exceeded(what, "not done")

    def exceeded(self, what: str, how: str) -> DeadlineExceeded:
        """The error for a call that has run out of time."""
        limit = "before the stop" if self._stop_seen else f"within {self.seconds:g} s"
        return DeadlineExceeded(f"{what}: {how} {limit}")


def within(
    deadline: Deadline,
    what: str,
    call: Callable[[], T],
    after: tuple[float, Callable[[], None]] | None = None,
) -> T:
    """The result of `call`, which runs in a daemon thread of its own.

    Args:
        after: seconds, and a function that runs beside the call if there is no result by then. Its
            errors are raised; the call, or the function, may then still be running.

    Raises:
        DeadlineExceeded: no result at the deadline; the call may still be running.
        Exception: any that the call raises.
    """
    begun_s = time.monotonic()
    future, other = beside(f"deadline: {what}", call), None
    # Waiting is apart from reading: the call's own TimeoutError would look like the deadline's.
    while left_s := deadline.remaining_s():
        concurrent.futures.wait([future], timeout=min(left_s, _CHECK_S))
        if future.done():
            return future.result()
        if after is not None and time.monotonic() - begun_s >= after[0]:
            other, after = beside(f"deadline: {what}: why", after[1]), None
        if other is not None and other.done():
            other.result()
    raise deadline.exceeded(what, "no answer")


def polled(is_so: Callable[[], bool], within_s: float) -> bool:
    """Whether it is so, or another process makes it so within that time."""
    deadline = Deadline(within_s)
    while not (found := is_so()) and not deadline.is_over:
        time.sleep(_POLL_S)
    return found
