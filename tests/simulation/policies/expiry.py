"""Whether what has expired was late by so much, or later than its own instant."""

from __future__ import annotations

from random import Random

from tests.simulation.planting import Planted
from tests.simulation.policies.judge import Leaving, PolicyJudge
from tests.simulation.timers import TOPIC

from duewheel.schemas.batches import NEVER
from duewheel.wheel.policies.expiry import Expiry
from duewheel.wheel.policies.policy import Policy
from duewheel.wheel.slots import WheelConfig

_LIKELY = 0.2  # the share of seeds whose timers expire

FAULTS = {
    "expires-early": Planted(
        "1",
        "a timer expires half of its time early",
        "wheel/policies/expiry.py",
        "deliveries.due_ms > limits_ms",
        "deliveries.due_ms > limits_ms // 2",
    ),
    "header-expires-early": Planted(
        "1",
        "a timer expires by its header a moment early",
        "wheel/policies/expiry.py",
        "rows.now_ms > last_ms",
        "rows.now_ms >= last_ms - 2_000",
    ),
}


class Judge(PolicyJudge):
    """Judges expiry."""

    name = Expiry.name
    meets = ("expired", "expired by its header")

    def _set_up(self, policy: Policy | None, wheel: WheelConfig) -> None:
        self._limit_ms = policy.after_ms[TOPIC] if isinstance(policy, Expiry) else None

    @classmethod
    def drawn(cls, chance: Random, wheel: WheelConfig) -> Policy | None:
        """After a lateness of a few slots, or of many."""
        if chance.random() >= _LIKELY:
            return None
        return Expiry({TOPIC: chance.choice((2, 10, 40)) * wheel.precision_ms})

    def leaves(self, row: Leaving) -> None:
        if row.policy != self.name:
            return
        timer, limit_ms = row.copy.timer, self._limit_ms
        late_ms = self._closed_ms[1] - timer.due_ms
        if timer.expires_ms is not None:
            limit_ms = min(timer.expires_ms - timer.due_ms, limit_ms or NEVER)
            self._counts["expired by its header"] += 1
        if timer.rejected or limit_ms is None or late_ms <= limit_ms or row.postponed:
            self._violated("1 early", f"{timer.source!r} expired at {late_ms} of {limit_ms} ms")
