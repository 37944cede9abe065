"""All policies of delivery in a simulation. A new one has its line in JUDGES, and nothing else in
the files that are here already.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

from tests.simulation.policies.expiry import ExpiryJudge
from tests.simulation.policies.hot_slots import HotSlotJudge
from tests.simulation.policies.judge import Leaving, PolicyJudge, Taken, Violated
from tests.simulation.policies.parking import ParkingJudge
from tests.simulation.timers import Copy

from duewheel.schemas.batches import NEVER
from duewheel.wheel.policies.policy import Policy
from duewheel.wheel.slots import WheelConfig

JUDGES: Sequence[type[PolicyJudge]] = (HotSlotJudge, ExpiryJudge)


def drawn(seed: int, wheel: WheelConfig) -> tuple[Policy, ...]:
    """The policies of a seed."""
    found = (each.drawn(Random(f"{each.name} of {seed}"), wheel) for each in JUDGES)
    return tuple(policy for policy in found if policy is not None)


def letters_wait(policies: Sequence[Policy]) -> bool:
    """Whether there may be no topic of dead letters for a while."""
    of = {each.name: each for each in JUDGES}
    return all(of[policy.name].letters_wait(policy) for policy in policies)


class Judges:
    """The judges of one run: each hears of everything, and answers for the rows of its policy."""

    def __init__(
        self,
        policies: Sequence[Policy],
        wheel: WheelConfig,
        violated: Violated,
        counts: Counter[str],
    ) -> None:
        known = {policy.name: policy for policy in policies}
        self._violated = violated
        self._names = {ParkingJudge.name, *known}
        classes: Sequence[type[PolicyJudge]] = (ParkingJudge, *JUDGES)
        self._of = {
            each.name: each(known.get(each.name), wheel, violated, counts) for each in classes
        }
        assert self._names <= self._of.keys(), "a policy without a judge"

    def begins(self, taken: Taken) -> None:
        for judge in self._of.values():
            judge.begins(taken)

    def leaves(self, row: Leaving) -> None:
        if row.policy not in self._names:
            self._violated("6 held up", f"{row.copy.timer.source!r}, though nobody asked")
        for judge in self._of.values():
            judge.leaves(row)

    def copied(self, row: Leaving, copy: Copy) -> None:
        """A row was sent back; `copy` is in the timer topic."""
        waits = row.until_ms == NEVER  # a letter that a policy has made, for the topic of letters
        self._of["" if waits else row.policy].copied(row, copy)

    def forget(self, lost: set[bytes]) -> None:
        for judge in self._of.values():
            judge.forget(lost)
