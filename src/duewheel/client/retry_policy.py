"""When a failed message is tried again, and how often. Imports only the standard library."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import timedelta

from duewheel.api.due_time import span_ms, whole
from duewheel.errors import InvalidTimer

_DOUBLINGS_MAX = 60  # 2^60 ms are longer than any `longest`


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Attempts, and the waits between them.

    The longest wait doubles after each attempt, up to `longest`. Each wait is random between 1 ms
    and that ("full jitter"): messages that failed together do not return together.

    >>> policy = RetryPolicy(attempts=4, first="10s", longest="30s")
    >>> [policy.longest_wait_ms(attempt) for attempt in (1, 2, 3)]
    [10000, 20000, 30000]

    Attributes:
        attempts: how often a message is handled at most, the first time included.
        first: the longest wait after the first attempt.
        longest: the longest wait after any attempt; at most `timer.max_delay` of the service.
        deadline: no attempt begins later than this after the first failure; None: no such limit.
    """

    attempts: int = 5
    first: timedelta | str = "10s"
    longest: timedelta | str = "1h"
    deadline: timedelta | str | None = None

    def __post_init__(self) -> None:
        if not whole(self.attempts) or self.attempts < 1:
            raise InvalidTimer(f"attempts {self.attempts!r} is not a whole number from 1 up")
        first_ms, longest_ms = span_ms(self.first, "first"), span_ms(self.longest, "longest")
        if not 1 <= first_ms <= longest_ms:
            raise InvalidTimer(
                f"first is {first_ms} ms, and longest {longest_ms} ms: 1 ms <= first <= longest"
            )
        if self.deadline is not None and span_ms(self.deadline, "deadline") < 1:
            raise InvalidTimer(f"deadline {self.deadline!r} is not above 0")

    def longest_wait_ms(self, attempt: int) -> int:
        """The upper bound of the wait after this attempt, which is 1, 2, …"""
        doublings = min(attempt - 1, _DOUBLINGS_MAX)
        return min(span_ms(self.first, "first") << doublings, span_ms(self.longest, "longest"))

    def wait_ms(self, attempt: int, chance: random.Random) -> int:
        """The wait after this attempt; depends on nothing but the arguments.

        It is not 0: a timer topic with `past_due = "dead-letter"` would reject the retry.
        """
        return chance.randint(1, self.longest_wait_ms(attempt))

    def deadline_ms(self, now_ms: int) -> int | None:
        """The deadline, epoch ms, of a message that fails now for the first time."""
        return None if self.deadline is None else now_ms + span_ms(self.deadline, "deadline")
