"""The policy of rates: the excess of a target's rate waits in its queue; no other target waits.

A timer is charged when it comes: charged = max(charged, now) + 1/rate. If that is ahead of now by
`lead` at most, it leaves at once. Otherwise that instant is its *turn*: its copy returns then, and
leaves without another charge. So within any time t at most rate × (t + lead) + 1 leave; up to rate
× 3 leads more if slots or copies are late, or waits rounded up. Ingest takes a copy within a lead.

- Order of a key: while the turn of an earlier timer has not left, a timer takes a turn, too, after
  that one; it waits for the lead at least. `tails_ms` has the last turn by bucket of the key's
  hash. After a start it is unknown: the last turn of the queue counts for all buckets.
- A queue stands still if slots, or its next copies, are late by more than the lead: dequeue or
  ingest has stopped. The turns of one lead leave then. All others move, by the shift, which the
  queue's clock lags the host's by: the next is 2 leads from now, or later if copies were late.
- A copy that is late by 30 leads, or by one if later turns have left, is charged again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from duewheel.checkpoints.rate_queues import RateQueue
from duewheel.schemas.arrays import Bool, Int64
from duewheel.schemas.batches import ANY_TIME
from duewheel.wheel.policies.policy import DueRows, Later

_LOST, _BUCKETS = 30, np.uint64(1 << 14)  # leads; keys of one bucket wait for each other


@dataclass(frozen=True, slots=True)
class Rate:
    """The policy of rates."""

    per_second: Mapping[str, float]  # of this shard, by target
    lead_ms: int = 1_000
    name: ClassVar = "rate"
    refusal: ClassVar = ""

    def later(self, rows: DueRows) -> Later | None:
        """Computes the instants and turns of the rows that wait: see the module's head."""
        of, queues = rows.deliveries, dict(rows.queues)
        if self.per_second.keys().isdisjoint(of.targets):
            return None
        until_ms, turn_ms = np.full((2, len(rows.slot)), ANY_TIME)
        for number, target in enumerate(of.targets):
            mine = rows.pending & ~of.is_copy & ~of.dead_letter & (of.target == number)
            if target in self.per_second and mine.any():
                found = self._waits(rows, mine, target, queues.get(target, RateQueue()))
                until_ms[mine], turn_ms[mine], queues[target] = found
        return Later(until_ms, turn_ms, queues)

    def _waits(
        self, rows: DueRows, mine: Bool, target: str, queue: RateQueue
    ) -> tuple[Int64, Int64, RateQueue]:
        """Computes until when each of these rows waits, its turn, and the queue after them."""
        end_ms, own_ms = rows.slot[mine] * rows.precision_ms, rows.deliveries.turn_ms[mine]
        turn_ms = own_ms + queue.shift_ms  # by the host's clock; own_ms by the queue's
        late_ms, early = end_ms - rows.precision_ms - turn_ms, turn_ms > end_ms
        lost = (own_ms <= queue.left_ms) | (late_ms > _LOST * self.lead_ms)
        new = (late_ms > self.lead_ms) & lost  # also of rows without a turn
        queue = self._moved(queue, rows, end_ms, turn_ms, np.where(lost, 0, late_ms))
        turn_ms, soon_ms = own_ms + queue.shift_ms, rows.now_ms + self.lead_ms
        charges_us = np.rint(1e6 / self.per_second[target] * np.cumsum(new)).astype(np.int64)
        sums_us = max(queue.charged_us, rows.now_ms * 1_000) + charges_us
        turn_ms[new] = -(-sums_us[new] // 1_000)
        bucket = (rows.key_bits(np.flatnonzero(mine)) % _BUCKETS).astype(np.int64)
        index, tails_ms = np.arange(len(new)), queue.tails_ms
        tails_ms = np.full(_BUCKETS, queue.tail_ms) if tails_ms is None else tails_ms.copy()
        follows = tails_ms[bucket] > queue.left_ms
        waits = np.where(new, follows | (turn_ms > soon_ms), early | (turn_ms > queue.seen_ms))
        first = np.full(_BUCKETS, len(new))  # row that takes a turn, by bucket
        np.minimum.at(first, bucket[new & waits], index[new & waits])
        waits |= new & (first[bucket] < index)
        own_ms = turn_ms - queue.shift_ms
        np.maximum.at(tails_ms, bucket[new & waits], own_ms[new & waits])
        tail_ms = int(own_ms.max(where=new & waits, initial=queue.tail_ms))
        left_ms = int(own_ms.max(where=~new & ~waits, initial=queue.left_ms))
        after = replace(queue, charged_us=int(sums_us[-1]), tail_ms=tail_ms, left_ms=left_ms)
        found = np.where(waits, (np.maximum(turn_ms, soon_ms), own_ms), ANY_TIME)
        return found[0], found[1], replace(after, tails_ms=tails_ms)

    def _moved(
        self, queue: RateQueue, rows: DueRows, end_ms: Int64, turn_ms: Int64, late_ms: Int64
    ) -> RateQueue:
        """Returns the queue, moved if it has stood still. `end_ms`: of the rows' slots."""
        since_ms, late, lag_ms = max(int(end_ms[0]), queue.seen_ms), late_ms > self.lead_ms, 0
        if late.any():
            since_ms, lag_ms = int(turn_ms[late].min()), int(late_ms.max())
        # Below the turns of rows that are here too early: they were moved before.
        last_ms = int(turn_ms.min(where=turn_ms > end_ms, initial=since_ms + self.lead_ms + 1)) - 1
        if rows.now_ms - since_ms <= self.lead_ms or queue.tail_ms + queue.shift_ms <= last_ms:
            return replace(queue, seen_ms=max(queue.seen_ms, rows.now_ms))
        runs_ms = rows.now_ms + 2 * self.lead_ms + lag_ms
        shift_ms = queue.shift_ms + runs_ms - last_ms
        # Copies of new turns are written before those of older ones: no slot has both.
        charged_us = max(queue.charged_us, (queue.tail_ms + shift_ms + rows.precision_ms) * 1_000)
        return replace(queue, charged_us=charged_us, shift_ms=shift_ms, seen_ms=runs_ms)
