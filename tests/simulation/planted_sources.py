"""Faults of planted.py in recurring schedules and retries, whose timers the simulation has, too."""

from __future__ import annotations

from tests.simulation.planting import Planted

SOURCES = {
    "firing-again": Planted(
        "schedules",
        "the position does not say which firings are ahead",
        "recurring/scheduler.py",
        "            position = replace(position, ahead=position.ahead + firings)\n",
        "            pass\n",
        seed=787,
    ),
    "firing-before-change": Planted(
        "schedules",
        "a change cancels what was due before it and has not left yet",
        "recurring/steps.py",
        "[each for each in position.ahead if each[0] > since_ms]",
        "list(position.ahead)",
        test="unit/recurring/test_steps.py::test_an_instant_before_the_change_is_not_cancelled_while_its_shard_is_behind",
    ),
    "firing-replies-ignored": Planted(
        "schedules",
        "what was not cancelled in time does not count as fired",
        "recurring/steps.py",
        "    fired = [at for at, _ in position.ahead if at not in cancelled]\n",
        "    fired: list[int] = []\n",
        test="simulation/test_recurring.py::test_each_instant_leaves_once",
    ),
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
