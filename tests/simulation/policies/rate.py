"""Whether no more leaves for a target than its rate permits, and no timer of a key overtakes one.

    rate      each timer that is not postponed first is charged: by the times at which slots are
              closed, and in the progress
    order     no timer of a key leaves before one that waits for its turn, and whose copy is in no
              earlier slot: there it was taken too late

A queue that is forgotten, with the progress or by a reassignment, begins anew.
"""

from __future__ import annotations

from collections import defaultdict

from tests.simulation.planting import Planted
from tests.simulation.policies.judge import Draw, Leaving, PolicyJudge, Taken
from tests.simulation.timers import DEAD, TARGETS, Copy

from duewheel.wheel.policies.rate import BURST_US, Rate
from duewheel.wheel.slots import slot_of

RULE = "wheel/policies/rate.py"
FAULTS = {
    "rate-uncounted": Planted(
        "rate", "of the timers one is not charged", RULE, "gap_us * (index + 1)", "gap_us * index"
    ),
    "rate-charged-twice": Planted(
        "6",
        "a timer with a turn takes another one when it comes",
        RULE,
        "rows.pending & ~rows.waited",
        "rows.pending",
    ),
    "rate-forgotten": Planted(
        "rate",
        "a start forgets the queues",
        "wheel/dequeue/loop.py",
        "started.committed.charged_ms",
        "{}",
    ),
    "rate-overtakes": Planted(
        "4",
        "a timer does not wait for an earlier one of its key",
        RULE,
        "waits |= slot_of(",
        "waits &= 0 <= slot_of(",
    ),
    "rate-knows-keys": Planted(
        "4",
        "after a start no key is known to wait",
        RULE,
        "np.full(BUCKETS, queue.charged_us // 1_000)",
        "np.full(BUCKETS, 0)",
        test="unit/wheel/policies/test_rate.py::"
        "test_after_a_start_new_timers_queue_behind_the_last_turn",
    ),
}


class Judge(PolicyJudge[Rate]):
    """Judges rates."""

    likely = 0.3
    meets = ("postponed: rate", "left at a rate")

    def _set_up(self) -> None:
        self._charged_us: dict[tuple[int, str], float] = {}  # by shard and target
        self._epochs: dict[int, int] = {}  # of the assignment, by shard
        # The slot of the copy of each timer that waits, by partition, target and key.
        self._waiting = defaultdict[tuple[int, str, bytes], dict[bytes, int]](dict)
        self._taken: Taken | None = None

    @classmethod
    def drawn(cls, draw: Draw) -> Rate:
        per_second = 1_000 * draw.chance.choice((0.5, 1, 3)) / draw.wheel.precision_ms
        targets = draw.chance.choice((TARGETS[:1], TARGETS[:DEAD]))
        return Rate(dict.fromkeys(targets, per_second), draw.wheel.precision_ms)

    def forget(self, lost: set[bytes]) -> None:
        for waiting in self._waiting.values():
            for source in lost & waiting.keys():
                del waiting[source]

    def begins(self, taken: Taken) -> None:
        super().begins(taken)
        self._taken, before, after = taken, taken.before, taken.after
        # Not by `before`: the transaction of a start has no rows, and is not judged here.
        is_new = self._epochs.get(after.shard) != after.assignment_epoch
        self._epochs[after.shard] = after.assignment_epoch
        if is_new:
            self._waiting.clear()
        for target in self._policy.per_second:
            known = 0 if is_new or before is None else before.charged_ms.get(target, 0)
            if after.charged_ms.get(target, 0) < known:
                self._violated("rate", f"the queue of {target} falls from {known}")
            if not known:
                self._charged_us[after.shard, target] = 0

    def leaves(self, row: Leaving) -> None:
        timer = row.copy.timer
        target = TARGETS[timer.target]
        if target not in self._policy.per_second or timer.rejected or row.rolls:
            if row.policy == self.name:
                self._violated("6 held up", f"{timer.source!r} has no rate")
            return
        waiting = self._waiting[timer.partition, target, timer.key or timer.source]
        waiting.pop(timer.source, None)
        is_new = row.copy.retries == 0
        if row.policy == self.name and not is_new:
            self._violated("6 held up", f"{timer.source!r} waits for a second turn")
        if not row.is_delivered or not is_new:
            return
        self._counts["left at a rate"] += 1
        self._judge_rate(target)
        first = row.natural if row.natural in self._slots else self._slots.stop
        for source, slot in waiting.items():
            if slot >= first:
                self._violated("4 order", f"{timer.source!r} overtakes {source!r}, of its key")

    def _judge_rate(self, target: str) -> None:
        """Of one more timer that leaves without having waited."""
        assert self._taken is not None
        after, now_us = self._taken.after, (self._closed_ms[1] + 1) * 1_000
        charged_us = max(self._charged_us.get((after.shard, target), 0), now_us - BURST_US)
        charged_us += 1e6 / self._policy.per_second[target]
        self._charged_us[after.shard, target] = charged_us
        known_us = (after.charged_ms.get(target, 0) + 1) * 1_000
        if charged_us > now_us + 1_000 * self._wheel.precision_ms:
            self._violated("rate", f"{target} is ahead by {charged_us - now_us} us")
        if known_us < self._closed_ms[0] * 1_000 - BURST_US:
            self._violated("rate", f"{target} is charged {known_us} us only")

    def copied(self, row: Leaving, copy: Copy) -> None:
        super().copied(row, copy)
        timer = copy.timer
        # A row that is parked, too, may wait beyond its turn: for that no timer of its key waits.
        slot = min(copy.slot(self._wheel), slot_of(row.until_ms, self._wheel.precision_ms))
        if slot >= self._slots.stop:  # else it is late already
            key = timer.partition, TARGETS[timer.target], timer.key or timer.source
            self._waiting[key][timer.source] = slot
