"""Whether no more leaves for a target than its rate permits, and no timer of a key overtakes one.

What the progress says of a queue has to cover what has left:

    charged   whatever leaves for the target is charged, since the chunk before; and the sum is
              never ahead of the present by more than one timer and the slack
    turns     of a timer that has one it stays the same; without another policy they have no gaps
    order     no timer of a key leaves before one with an earlier turn, which is not in an earlier
              slot: there it was taken too late

A queue that is forgotten, with the progress or by a reassignment, begins anew.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from random import Random
from typing import ClassVar

from tests.simulation.policies.judge import Leaving, PolicyJudge, Taken, Violated
from tests.simulation.timers import DEAD, TARGETS, Copy

from duewheel.checkpoints.rate_queues import RateQueue
from duewheel.schemas.batches import ANY_TIME
from duewheel.wheel.policies.policy import Policy
from duewheel.wheel.policies.rate import Rate
from duewheel.wheel.slots import WheelConfig

_LIKELY = 0.35  # the share of seeds with a rate


@dataclass(frozen=True)
class _Waiting:
    """A timer that waits: its turn, and the slot of its copy."""

    turn_ms: int
    slot: int


class RateJudge(PolicyJudge):
    """Judges rates."""

    name: ClassVar[str] = Rate.name

    def __init__(
        self, policy: Policy | None, wheel: WheelConfig, violated: Violated, counts: Counter[str]
    ) -> None:
        super().__init__(policy, wheel, violated, counts)
        self._rate = policy if isinstance(policy, Rate) else Rate({})
        self._wheel = wheel
        self._least_us = dict[tuple[int, str], float]()  # by shard and target: charged at least
        self._waiting = defaultdict[tuple[int, str, bytes], dict[bytes, _Waiting]](dict)
        self._taken: Taken | None = None

    @classmethod
    def drawn(cls, chance: Random, wheel: WheelConfig) -> Policy | None:
        if chance.random() >= _LIKELY:
            return None
        per_slot, slack = chance.choice((0.2, 1, 3)), chance.choice((1, 2, 4))
        per_second = 1_000 * per_slot / wheel.precision_ms
        targets = chance.choice((TARGETS[:1], TARGETS[:DEAD]))
        return Rate(dict.fromkeys(targets, per_second), slack)

    def forget(self, lost: set[bytes]) -> None:
        for waiting in self._waiting.values():
            for source in lost & waiting.keys():
                del waiting[source]

    def begins(self, taken: Taken) -> None:
        self._taken, before, after = taken, taken.before, taken.after
        is_new = before is None or before.assignment_epoch != after.assignment_epoch
        for target in self._rate.per_second:
            place, queue = (after.shard, target), after.queues.get(target)
            known = None if before is None or is_new else before.queues.get(target)
            is_older = known is not None and self._is_older(known, queue)
            if is_older and before is not None and before.incarnation == after.incarnation:
                self._violated("rate", f"the queue of {target} falls from {known} to {queue}")
            if known is None or is_older:
                self._least_us.pop(place, None)
                self._waiting.clear()
            elif known != queue:  # the first transaction of a chunk
                least_us = self._least_us.get(place, known.charged_us)
                self._least_us[place] = max(least_us, known.charged_us)

    def _is_older(self, known: RateQueue, queue: RateQueue | None) -> bool:
        return queue is None or queue.charged_us < known.charged_us

    def leaves(self, row: Leaving) -> None:
        target = TARGETS[row.copy.timer.target]
        if target not in self._rate.per_second or row.copy.timer.rejected or row.rolls:
            return
        timer = row.copy.timer
        waiting = self._waiting[timer.partition, target, timer.key or timer.source]
        waiting.pop(timer.source, None)
        if row.sent_back or row.is_letter:
            return
        self._counts["left at a rate"] += 1
        self._judge_charge(target)
        turn_ms = row.copy.turn_ms
        for source, other in waiting.items():
            is_earlier = turn_ms == ANY_TIME or other.turn_ms < turn_ms
            if is_earlier and other.slot >= row.natural:
                self._violated("4 order", f"{timer.source!r} overtakes {source!r}, of its key")

    def _judge_charge(self, target: str) -> None:
        """Of one more timer that leaves."""
        taken, gap_us = self._taken, 1e6 / self._rate.per_second[target]
        assert taken is not None
        place, queue = (taken.after.shard, target), taken.after.queues.get(target)
        if queue is None:
            self._violated("rate", f"a timer leaves for {target}, and is not charged")
            return
        if place in self._least_us:
            self._least_us[place] += gap_us
            if queue.charged_us < self._least_us[place] - 1:
                self._violated("rate", f"{target} is charged {queue.charged_us} us only")
        slack_ms = self._rate.slack_slots * self._wheel.precision_ms
        most_us = (taken.closable_ms + slack_ms) * 1_000 + gap_us
        if queue.charged_us > most_us + 2:
            self._violated("rate", f"{target} is ahead: {queue.charged_us - most_us} us")

    def copied(self, row: Leaving, copy: Copy) -> None:
        super().copied(row, copy)
        timer, queue = copy.timer, None
        target, source = TARGETS[timer.target], timer.source
        if self._taken is not None:
            queue = self._taken.after.queues.get(target)
        if copy.turn_ms == ANY_TIME or queue is None:
            self._violated("bytes", f"{source!r} waits without a turn")
            return
        if row.copy.turn_ms not in {ANY_TIME, copy.turn_ms}:
            self._violated("bytes", f"the turn of {source!r} is another one")
        if (row.until_ms - copy.turn_ms) % self._wheel.precision_ms:
            self._violated("bytes", f"{source!r} waits until {row.until_ms} for {copy.turn_ms}")
        waiting = self._waiting[timer.partition, target, timer.key or source]
        waiting[source] = _Waiting(copy.turn_ms, copy.slot(self._wheel))
