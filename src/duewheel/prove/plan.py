"""The plan of a proof: the load, and which processes are killed when, drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

# A start of Spark takes the longest, so kills of dequeue are the most frequent.
_WEIGHTS = {"dequeue": 40, "ingest": 20, "all": 15, "both": 15, "data": 10}
_WINDOWS = 10  # roll windows in the length of the load
_WINDOW_MS = (2_000, 60_000)
_FIRST, _LAST = 0.2, 0.9  # kills happen between these shares of the length


_TIMERS_A_SECOND, _TIMERS_MAX = 100, 1_000_000
_KILL_EVERY_S = 30.0


@dataclass(frozen=True)
class ProofPlan:
    """A plan; the seed decides delays, contents and kills."""

    length_s: float  # from the first delivery on; a recovery at the end makes the load longer
    timers: int
    kills: int
    seed: int

    @classmethod
    def of(cls, length_s: float, timers: int | None, kills: int | None, seed: int) -> ProofPlan:
        """Makes a plan; without numbers 100 timers a second, and a kill in each half minute."""
        if timers is None:
            timers = min(round(_TIMERS_A_SECOND * length_s), _TIMERS_MAX)
        if kills is None:
            kills = max(1, round(length_s / _KILL_EVERY_S))
        return cls(length_s, timers, kills, seed)

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
        """The roll window, short enough that many timers roll."""
        shortest_ms, longest_ms = _WINDOW_MS
        return min(longest_ms, max(shortest_ms, round(self.length_s * 1_000 / _WINDOWS)))

    def planned_kills(self) -> list[tuple[float, str]]:
        """Seconds after the first delivery, and the kind of each kill."""
        chance = random.Random(self.seed)
        kinds = drawn(_WEIGHTS, self.kills, chance)
        times = (self.length_s * chance.uniform(_FIRST, _LAST) for _ in kinds)
        return list(zip(sorted(times), kinds, strict=True))


def drawn(weights: Mapping[str, int], count: int, chance: random.Random) -> list[str]:
    """`count` kinds in random order: each once if there is room, the others by weight."""
    kinds = list(weights)
    more = chance.choices(kinds, list(weights.values()), k=max(0, count - len(kinds)))
    picked = [*kinds, *more][:count]
    chance.shuffle(picked)
    return picked
