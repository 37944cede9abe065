"""Faults of planted.py in retries, whose timers the simulation has, too."""

from __future__ import annotations

from tests.simulation.planting import Planted

RETRIES = {
    "retry-offset": Planted(
        "retries",
        "the offset of the message itself is committed",
        "client/retry_later.py",
        "OffsetAndMetadata(record.offset + 1,",
        "OffsetAndMetadata(record.offset,",
        seed=796,
    ),
    "retry-unread": Planted(
        "retries",
        "a transaction is committed although one of its records has expired",
        "client/transactions.py",
        "            future.get()\n",
        "            future.is_done  # noqa: B018\n",
        seed=2,
    ),
    "retry-uncounted": Planted(
        "retries",
        "a retry carries the number of the attempt that has failed",
        "client/retry_headers.py",
        "return Attempts(self.attempt + 1, self.first",
        "return Attempts(self.attempt, self.first",
        seed=796,
    ),
    "retry-one-more": Planted(
        "retries",
        "one attempt more than the policy has",
        "client/retry_later.py",
        "if attempts.attempt >= self._policy.attempts:",
        "if attempts.attempt > self._policy.attempts:",
        seed=789,
    ),
    "retry-doublings": Planted(
        "retries",
        "the waits double once too often",
        "client/retry_policy.py",
        "doublings = min(attempt - 1, _DOUBLINGS_MAX)",
        "doublings = min(attempt, _DOUBLINGS_MAX)",
        seed=2,
    ),
    "retry-past-deadline": Planted(
        "retries",
        "a message whose deadline has passed, or would, is tried again",
        "client/retry_later.py",
        "if deadline_ms is not None and now_ms + wait_ms > deadline_ms:",
        "if deadline_ms is not None and now_ms - wait_ms > deadline_ms:",
        seed=28,
    ),
    "retry-deadline-anew": Planted(
        "retries",
        "each failure fixes a deadline of its own",
        "client/retry_later.py",
        "deadline_ms = attempts.deadline_ms or self._policy.deadline_ms(now_ms)",
        "deadline_ms = self._policy.deadline_ms(now_ms)",
    ),
}
