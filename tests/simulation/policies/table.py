"""All policies of delivery in a simulation, in the product's order: the judge of one is `Judge` in
the module of the same name here.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

from tests.simulation.policies.judge import Draw, Leaving, PolicyJudge, Taken, Violated
from tests.simulation.policies.parking import ParkingJudge
from tests.simulation.timers import Copy

from duewheel.schemas.batches import NEVER
from duewheel.wheel.policies.policy import Policy
from duewheel.wheel.policies.table import POLICIES
from duewheel.wheel.slots import WheelConfig

_HERE = __name__.rpartition(".")[0]
MODULES = {
    kind.name: importlib.import_module(f"{_HERE}.{kind.__module__.rpartition('.')[2]}")
    for kind in POLICIES
}
JUDGES: dict[str, type[PolicyJudge[Any]]] = {name: each.Judge for name, each in MODULES.items()}


def drawn(seed: int, wheel: WheelConfig) -> tuple[Policy, ...]:
    """The policies of a seed."""
    found = []
    for name, judge in JUDGES.items():
        chance = Random(f"{name} of {seed}")
        if judge.likely == 1 or chance.random() < judge.likely:
            found.append(judge.drawn(Draw(chance, wheel)))
    return tuple(policy for policy in found if policy is not None)


def letters_wait(policies: Sequence[Policy]) -> bool:
    """Whether there may be no topic of dead letters for a while."""
    return all(JUDGES[policy.name].letters_wait(policy) for policy in policies)


class Judges:
    """The judges of one run: each hears of everything, and answers for the rows of its policy."""

    def __init__(
        self,
        policies: Sequence[Policy],
        wheel: WheelConfig,
        violated: Violated,
        counts: Counter[str],
    ) -> None:
        self._violated = violated
        self._of: dict[str, PolicyJudge[Any]] = {
            policy.name: JUDGES[policy.name](policy, wheel, violated, counts) for policy in policies
        }
        self._of[""] = ParkingJudge(None, wheel, violated, counts)

    def begins(self, taken: Taken) -> None:
        for judge in self._of.values():
            judge.begins(taken)

    def leaves(self, row: Leaving) -> None:
        if row.policy not in self._of:
            self._violated("6 held up", f"{row.copy.timer.source!r}, though nobody asked")
        if row.policy and (row.rolls or row.copy.timer.rejected):
            self._violated("6 held up", f"{row.copy.timer.source!r} is on its way")
        for judge in self._of.values():
            judge.leaves(row)

    def copied(self, row: Leaving, copy: Copy) -> None:
        """A row was sent back; `copy` is in the timer topic."""
        waits = row.until_ms == NEVER  # a letter that a policy has made, for the topic of letters
        self._of["" if waits else row.policy].copied(row, copy)

    def forget(self, lost: set[bytes]) -> None:
        for judge in self._of.values():
            judge.forget(lost)
