"""The policy of rates: no more timers per second leave for a target than its rate. The excess waits
in the target's queue, and delays no other target.

A timer that has to wait gets a *turn*: an instant, 1/rate after the one before it. Its copy returns
then, so the excess costs one copy each, however long the queue is. A copy leaves no earlier than in
the slot of its turn plus the *shift*, the slots by which the queue has stood still so far: while
dequeue was away, say. The copies of a key leave in the order of their turns: those after a timer
that has to wait once more find the shift raised when they return, and wait for as long.

    tail      the last turn that was given. A timer without a turn leaves at once only if those in
              the slot of that turn have left, or leave in its chunk and are of other keys: their
              copies may come late. A turn that has not come within _LOST_SLOTS was cancelled, say
    charged   each timer that leaves is charged, with or without a turn (GCRA: the instant at which
              all would have left, one after the other). It may be ahead of the present by one
              timer, and by the slack: so no turn is late because a slot was, and within any time t
              at most rate × (t + slack) + 2 timers leave, whatever the turns say
    shift     raised if a timer may not leave in its turn, so that its turn is in a later slot

- A queue that no progress has starts charged, but for one timer: it never exceeds the rate by more.
  New timers of a key may overtake those that waited in it.
- Turns may be denser than the rate permits: the rate was lowered, partitions came from another
  shard. Then the shift rises again and again, and each copy returns several times.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from duewheel.checkpoints.rate_queues import RateQueue
from duewheel.schemas.arrays import Int64
from duewheel.schemas.batches import ANY_TIME, NO_KEY
from duewheel.wheel.policies.policy import DueRows, Later
from duewheel.wheel.slots import closable_slot, slot_of

_LOST_SLOTS = 100


@dataclass(frozen=True, slots=True)
class Rate:
    """The policy of rates."""

    per_second: Mapping[str, float]  # of this shard, by target
    slack_slots: int = (
        4  # by which a slot may be delivered late before the queue stands still; >= 1
    )
    lead_ms: int = 1_000  # how far ahead the first turn is, until when ingest takes the copies
    name: ClassVar = "rate"
    refusal: ClassVar = ""

    def later(self, rows: DueRows) -> Later | None:
        """Computes the instants of the rows that wait: see the module's head."""
        of = rows.deliveries
        waiting = rows.pending & ~of.is_copy & ~of.dead_letter
        turn_ms = np.full(len(rows.slot), ANY_TIME)
        not_before_ms, queues = turn_ms.copy(), dict[str, RateQueue]()
        for number, target in enumerate(of.targets):
            if target not in self.per_second:
                continue
            mine = np.flatnonzero(waiting & (of.target == number))
            if not len(mine):
                continue
            gap_us, before = 1e6 / self.per_second[target], rows.queues.get(target)
            turn_ms[mine], queue = self._turns(rows, mine, gap_us, before)
            waits, queues[target] = mine[turn_ms[mine] != ANY_TIME], queue
            not_before_ms[waits] = turn_ms[waits] + queue.shift * rows.precision_ms
        if not queues:
            return None
        return Later(not_before_ms, turn_ms, {**rows.queues, **queues})

    def _turns(
        self, rows: DueRows, mine: Int64, gap_us: float, queue: RateQueue | None
    ) -> tuple[Int64, RateQueue]:
        """Computes the turn of each row of one target, ANY_TIME if it leaves now, and the queue
        after them.
        """
        slot, turn_ms = rows.slot[mine], rows.deliveries.turn_ms[mine]
        p, now_us, has_turn = rows.precision_ms, rows.now_ms * 1_000, turn_ms != ANY_TIME
        slack_us, open_slot = self.slack_slots * p * 1_000, closable_slot(rows.now_ms, p) + 1
        first_slot = slot_of(rows.now_ms + self.lead_ms, p) + 1  # of a turn that is given now
        queue = queue or RateQueue(0, 0, 0, now_us + slack_us)
        tail_us, in_tail, shift, charged_us = queue
        last_slot, turn_slot = slot_of(tail_us, p * 1_000), slot_of(turn_ms, p)
        if not in_tail or last_slot + shift + _LOST_SLOTS < slot[0]:
            shift = 0  # none waits
        charged_us = max(charged_us, now_us)
        most = 1 + (now_us + slack_us - charged_us) / gap_us
        leaves = has_turn & (turn_slot + shift <= slot)
        leaves &= np.cumsum(leaves) <= most
        late = has_turn & (turn_slot + shift < open_slot)  # if it waits: its slot is closed
        if (late & ~leaves).any():
            leaves[np.argmax(late & ~leaves) :] = False  # no later one overtakes it
            shift = first_slot - int(turn_slot[late & ~leaves].min())
            tail_us = last_slot * p * 1_000  # the next turn is in a slot of its own
        elif leaves[has_turn].all():
            is_over = in_tail <= (turn_slot[has_turn] == last_slot).sum()
            free = has_turn | is_over | (last_slot + shift + _LOST_SLOTS < slot)
            key = rows.deliveries.key_hash[mine]
            overtakes = np.isin(key, key[has_turn]) & (key != NO_KEY)
            free = np.logical_and.accumulate(free) & ~has_turn & ~overtakes
            leaves |= free & (np.cumsum(free) <= most - leaves.sum())
        in_tail = max(0, in_tail - int((leaves & has_turn & (turn_slot == last_slot)).sum()))
        charged_us += math.ceil(leaves.sum() * gap_us)
        new = np.flatnonzero(~leaves & ~has_turn)
        if len(new):
            first_us = max(charged_us - gap_us, (first_slot - 1) * p * 1_000) - shift * p * 1_000
            turns_us = np.ceil(max(tail_us, first_us) + gap_us * np.arange(1, len(new) + 1))
            turn_ms[new], tail_us = np.ceil(turns_us / 1_000), int(turns_us[-1])
            in_tail *= last_slot == slot_of(tail_us, p * 1_000)
            in_tail += int((turns_us > (slot_of(tail_us, p * 1_000) - 1) * p * 1_000).sum())
        turn_ms[leaves] = ANY_TIME
        return turn_ms, RateQueue(tail_us, in_tail, shift, charged_us)
