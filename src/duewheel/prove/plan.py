"""The plan of a proof: the load, and which processes are killed when, drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

# How often each kind comes, about: a start of Spark takes the longest.
_WEIGHTS = {"dequeue": 40, "ingest": 20, "all": 15, "both": 15, "data": 10}
_WINDOWS = 10  # of the roll window, in the length of the load
_WINDOW_MS = (2_000, 60_000)
_FIRST, _LAST = 0.2, 0.9  # shares of the length between which kills lie


@dataclass(frozen=True)
class ProofPlan:
    """A plan.

    Attributes:
        length_s: of the load, from the first delivery on; a recovery at its end makes it longer.
        timers: how many are written in that time.
        kills: how many.
        seed: of delays, contents and kills.
    """

    length_s: float
    timers: int
    kills: int
    seed: int

    @property
    def command(self) -> str:
        """The command line that repeats it."""
        flags = {"minutes": f"{self.length_s / 60:g}", "timers": self.timers, "kills": self.kills}
        return (
            f"duewheel prove {' '.join(f'--{k} {v}' for k, v in flags.items())} --seed {self.seed}"
        )

    @property
    def rate(self) -> float:
        """Timers a second."""
        return self.timers / self.length_s

    @property
    def window_ms(self) -> int:
        """The roll window: short, so that a share of the timers rolls."""
        shortest_ms, longest_ms = _WINDOW_MS
        return min(longest_ms, max(shortest_ms, round(self.length_s * 1_000 / _WINDOWS)))

    def planned_kills(self) -> list[tuple[float, str]]:
        """Seconds after the first delivery, and the kind of each kill."""
        chance = random.Random(self.seed)
        kinds = drawn(_WEIGHTS, self.kills, chance)
        times = (self.length_s * chance.uniform(_FIRST, _LAST) for _ in kinds)
        return list(zip(sorted(times), kinds, strict=True))


def drawn(weights: Mapping[str, int], count: int, chance: random.Random) -> list[str]:
    """So many kinds in random order, each at least once if there is room, then by weight."""
    kinds = list(weights)
    more = chance.choices(kinds, list(weights.values()), k=max(0, count - len(kinds)))
    picked = [*kinds, *more][:count]
    chance.shuffle(picked)
    return picked
