"""What writes timers in a run beside its users: real clients, in a share of the seeds.

Each has a generator of its own, and acts between two steps of the shards.
"""

from __future__ import annotations

from random import Random

from tests.simulation.host import Host
from tests.simulation.retrying import Retries
from tests.simulation.seeds import Seeds

RETRIES, SEEDS = 0.2, 0.25  # of the seeds


class Sources:
    """Of one run."""

    def __init__(self, seed: int, host: Host) -> None:
        self._host = host
        self._all: dict[str, Retries | Seeds] = {}
        if Random(f"retries of {seed}").random() < RETRIES:
            self._all["retries"] = Retries(seed, host)
        if Random(f"recurrences of {seed}").random() < SEEDS:
            self._all["recurring"] = Seeds(seed, host)

    @property
    def any(self) -> bool:
        """Whether there is one."""
        return bool(self._all)

    def befall(self) -> None:
        """Between two steps of the shards, once these have begun."""
        if self._has_begun:
            for name, each in self._all.items():
                self._host.history.say(f"source: {name}")
                each.befall()

    def turn(self) -> None:
        """Each does what is left to do."""
        if self._has_begun:
            for each in self._all.values():
                each.turn()

    def quiet_down(self) -> None:
        """No more befalls them."""
        for each in self._all.values():
            each.quiet_down()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is left to do."""
        return all(each.is_idle for each in self._all.values())

    def judge(self) -> None:
        """Everything that will ever happen has happened."""
        for name, each in self._all.items():
            for text in each.judge()[:3]:
                self._host.history.violated(name, text)

    @property
    def _has_begun(self) -> bool:
        return bool(self._host.shards[0].shard.progress)
