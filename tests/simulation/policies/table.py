"""All policies of delivery in a simulation, by the modules of wheel/policies: the judge of a policy
is `Judge` in the module of the same name here.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections import Counter
from collections.abc import Sequence
from random import Random

from tests.simulation.policies.judge import Leaving, PolicyJudge, Taken, Violated
from tests.simulation.policies.parking import ParkingJudge
from tests.simulation.timers import Copy

from duewheel.schemas.batches import NEVER
from duewheel.wheel import policies as all_policies
from duewheel.wheel.policies.policy import Policy
from duewheel.wheel.slots import WheelConfig

MODULES = [
    importlib.import_module(f"tests.simulation.policies.{each.name}")
    for each in pkgutil.iter_modules(all_policies.__path__)
    if each.name != "policy"  # the seam
]
JUDGES: Sequence[type[PolicyJudge]] = [module.Judge for module in MODULES]


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
