"""Whether no more leaves for a target than its rate permits, and no timer of a key overtakes one.

    rate      by the times at which slots are closed, within any time no more leaves than the head
              of wheel/policies/rate.py says; and the progress has charged each that had no turn
    order     no timer of a key leaves before one that was charged earlier, and whose copy is not
              in an earlier slot: there it was taken too late

A queue that is forgotten, with the progress or by a reassignment, begins anew; then the turns of
two queues are side by side, and only the charges are judged.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from random import Random

from tests.simulation.planting import Planted
from tests.simulation.policies.judge import Leaving, PolicyJudge, Taken
from tests.simulation.timers import DEAD, TARGETS, Copy

from duewheel.checkpoints.rate_queues import RateQueue
from duewheel.schemas.batches import ANY_TIME
from duewheel.wheel.policies.policy import Policy
from duewheel.wheel.policies.rate import Rate
from duewheel.wheel.slots import WheelConfig

_LIKELY = 0.35  # the share of seeds with a rate

FAULTS = {
    "rate-uncounted": Planted(
        "rate",
        "of the timers that come one is not charged",
        "wheel/policies/rate.py",
        "np.cumsum(new)",
        "np.maximum(np.cumsum(new) - 1, 0)",
    ),
    "rate-charged-twice": Planted(
        "rate",
        "a timer with a turn takes another one when it comes",
        "wheel/policies/rate.py",
        "(late_ms > self.lead_ms) & lost",
        "turn_ms <= end_ms",
        test="unit/wheel/policies/test_rate.py::"
        "test_the_excess_leaves_later_in_one_copy_each_at_the_rate",
    ),
    "rate-forgotten": Planted(
        "rate",
        "a start forgets the queues",
        "wheel/dequeue/loop.py",
        "queues = started.committed.queues",
        "queues = type(started.committed.queues)()",
    ),
    "rate-overtakes": Planted(
        "4",
        "a timer does not wait for an earlier one of its key",
        "wheel/policies/rate.py",
        "follows | (turn_ms > soon_ms)",
        "turn_ms > soon_ms",
    ),
    "rate-knows-keys": Planted(
        "4",
        "after a start no key is known to wait",
        "wheel/policies/rate.py",
        "np.full(_BUCKETS, queue.tail_ms)",
        "np.full(_BUCKETS, 0)",
    ),
    "rate-goes-on": Planted(
        "4",
        "a queue that stood still is not moved: the late ones leave at once",
        "wheel/policies/rate.py",
        "shift_ms = queue.shift_ms + runs_ms - last_ms",
        "shift_ms = queue.shift_ms",
    ),
}


@dataclass(frozen=True)
class _Waiting:
    """A timer that waits: its turn, and the slot of its copy."""

    turn_ms: int
    slot: int


@dataclass
class _Seen:
    """What has left for a target of a shard.

    Attributes:
        left_us: when all would have left, one after the other; None: no longer known.
        least_us: what the progress has to have charged; None: of a queue that is new.
    """

    left_us: float | None = 0.0
    least_us: float | None = None


class Judge(PolicyJudge):
    """Judges rates."""

    name = Rate.name
    meets = ("postponed: rate", "left at a rate")

    def _set_up(self, policy: Policy | None, wheel: WheelConfig) -> None:
        self._rate = policy if isinstance(policy, Rate) else Rate({})
        self._wheel = wheel
        self._seen = defaultdict[tuple[int, str], _Seen](_Seen)  # by shard and target
        self._waiting = defaultdict[tuple[int, str, bytes], dict[bytes, _Waiting]](dict)
        self._taken: Taken | None = None

    @classmethod
    def drawn(cls, chance: Random, wheel: WheelConfig) -> Policy | None:
        if chance.random() >= _LIKELY:
            return None
        per_slot, lead = chance.choice((0.5, 1, 3)), chance.choice((3, 6))
        per_second = 1_000 * per_slot / wheel.precision_ms
        targets = chance.choice((TARGETS[:1], TARGETS[:DEAD]))
        return Rate(dict.fromkeys(targets, per_second), lead * wheel.precision_ms)

    def forget(self, lost: set[bytes]) -> None:
        for waiting in self._waiting.values():
            for source in lost & waiting.keys():
                del waiting[source]

    def begins(self, taken: Taken) -> None:
        super().begins(taken)
        self._taken, before, after = taken, taken.before, taken.after
        is_new = before is None or before.assignment_epoch != after.assignment_epoch
        for target in self._rate.per_second:
            seen, queue = self._seen[after.shard, target], after.queues.get(target)
            known = None if before is None or is_new else before.queues.get(target)
            if is_new:
                seen.left_us = seen.least_us = None
                self._waiting.clear()
            elif known is not None and known != queue:  # the first transaction of a chunk
                if queue is None or self._is_older(known, queue):
                    self._violated("rate", f"the queue of {target} falls from {known} to {queue}")
                seen.least_us = max(seen.least_us or 0, known.charged_us)

    def _is_older(self, known: RateQueue, queue: RateQueue) -> bool:
        return (
            queue.charged_us < known.charged_us
            or queue.tail_ms < known.tail_ms
            or queue.shift_ms < known.shift_ms
        )

    def leaves(self, row: Leaving) -> None:
        timer = row.copy.timer
        target = TARGETS[timer.target]
        if target not in self._rate.per_second or timer.rejected or row.rolls:
            return
        waiting = self._waiting[timer.partition, target, timer.key or timer.source]
        waiting.pop(timer.source, None)
        if row.sent_back or row.is_letter:
            return
        self._counts["left at a rate"] += 1
        self._judge_rate(target, had_turn=row.copy.turn_ms != ANY_TIME)
        turn_ms = row.copy.turn_ms
        for source, other in waiting.items():
            is_earlier = turn_ms == ANY_TIME or other.turn_ms < turn_ms
            if is_earlier and other.slot >= row.natural:
                self._violated("4 order", f"{timer.source!r} overtakes {source!r}, of its key")

    def _judge_rate(self, target: str, *, had_turn: bool) -> None:
        """Of one more timer that leaves."""
        taken, gap_us, p = (
            self._taken,
            1e6 / self._rate.per_second[target],
            self._precision_ms,
        )
        assert taken is not None
        seen, queue = self._seen[taken.after.shard, target], taken.after.queues.get(target)
        if queue is None:
            self._violated("rate", f"a timer leaves for {target}, and is not charged")
            return
        if seen.least_us is not None and not had_turn:
            seen.least_us += gap_us
            if queue.charged_us < seen.least_us - 1:
                self._violated("rate", f"{target} is charged {queue.charged_us} us only")
        if seen.left_us is not None:
            now_us = taken.after.closed_slot * p * 1_000
            seen.left_us = max(seen.left_us, now_us) + gap_us
            most_us = gap_us + (5 * self._rate.lead_ms + 2 * p) * 1_000
            if seen.left_us > now_us + most_us:
                self._violated("rate", f"{target} is ahead: {seen.left_us - now_us} us")

    def copied(self, row: Leaving, copy: Copy) -> None:
        super().copied(row, copy)
        timer, target = copy.timer, TARGETS[copy.timer.target]
        if copy.turn_ms == ANY_TIME or target not in self._rate.per_second:
            self._violated("bytes", f"{timer.source!r} waits without a turn")
        if copy.turn_ms < row.copy.turn_ms:
            self._violated("bytes", f"{timer.source!r} waits for an earlier turn than before")
        slot = copy.slot(self._wheel)
        if (
            slot < self._slots.stop
        ):  # a hop from a late slot, which ends too early: it may be overtaken
            return
        waiting = self._waiting[timer.partition, target, timer.key or timer.source]
        waiting[timer.source] = _Waiting(copy.turn_ms, slot)
