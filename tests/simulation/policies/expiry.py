"""Whether what has expired was late by so much, or later than its own instant."""

from __future__ import annotations

from tests.simulation.planting import Planted
from tests.simulation.policies.judge import Draw, Leaving, PolicyJudge
from tests.simulation.timers import TOPIC

from duewheel.schemas.batches import NEVER
from duewheel.wheel.policies.expiry import Expiry

RULE = "wheel/policies/expiry.py"
FAULTS = {
    "expires-early": Planted(
        "1", "a timer expires half of its time early", RULE, "> limits_ms", "> limits_ms // 2"
    ),
    "header-expires-early": Planted(
        "1",
        "a timer expires by its header a moment early",
        RULE,
        "rows.now_ms > last_ms",
        "rows.now_ms >= last_ms - 2_000",
    ),
}


class Judge(PolicyJudge[Expiry]):
    """Judges expiry."""

    meets = ("expired", "expired by its header")

    @classmethod
    def drawn(cls, draw: Draw) -> Expiry:
        """After a lateness of a few slots, or of many."""
        return Expiry({TOPIC: draw.chance.choice((2, 10, 40)) * draw.wheel.precision_ms})

    def leaves(self, row: Leaving) -> None:
        if row.policy != self.name:
            return
        timer, limit_ms = row.copy.timer, self._policy.after_ms[TOPIC]
        late_ms = self._closed_ms[1] - timer.due_ms
        if timer.expires_ms is not None:
            limit_ms = min(timer.expires_ms - timer.due_ms, limit_ms)
            self._counts["expired by its header"] += 1
        if row.until_ms != NEVER or late_ms <= limit_ms:
            self._violated("1 early", f"{timer.source!r} expired at {late_ms} of {limit_ms} ms")
