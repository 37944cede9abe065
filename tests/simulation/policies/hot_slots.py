"""Whether what was in excess of its slot may have been, and has not been overtaken by its key.

The slot that a row leaves is not told with it. What is known:

    spread       the instant before which it does not leave again lies a slot and less than the
                 window behind the slot's end
    half a slot  a transaction between two progresses of the same half-delivered slot has rows of
                 that slot only, and the place of each of them follows from their counts
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.simulation.planting import Planted
from tests.simulation.policies.judge import Draw, Leaving, PolicyJudge, Taken
from tests.simulation.timers import TOPIC, Copy

from duewheel.checkpoints.progress import Progress, half_rows_by_slot
from duewheel.schemas.batches import NEVER
from duewheel.wheel.policies.hot_slots import Action, HotSlots

RULE = "wheel/policies/hot_slots.py"
FAULTS = {
    "hot-from-zero": Planted(
        "6",
        "the ranks of a half-delivered slot start at 0 after a loss",
        "wheel/dequeue/pipeline.py",
        "RankCounter(half_rows)",
        "RankCounter({})",
    ),
    "hot-rows-of-chunk": Planted(
        "bytes",
        "a topic without a row in a chunk has none out of the slot",
        "wheel/dequeue/position.py",
        "{**rows, **half_rows}",
        "half_rows",
        test="unit/wheel/dequeue/test_position.py::"
        "test_the_chunks_of_a_slot_raise_d_of_each_partition",
    ),
    "hot-by-id": Planted(
        "4",
        "the rows of a key are judged one by one",
        "wheel/policies/policy.py",
        "order_hashes(self.deliveries.key_hash[rows], ",
        "order_hashes(self.deliveries.key_hash[rows] * 0 - 1, ",
        test="unit/wheel/policies/test_hot_slots.py::"
        "test_once_a_row_of_a_key_is_in_excess_all_later_ones_are_and_wait_as_long",
    ),
    "hot-again": Planted(
        "6",
        "what was spread may be in excess of its next slot, too",
        RULE,
        "(rows.rank > self.limit) & ~rows.waited",
        "rows.rank > self.limit",
    ),
    "hot-same-slot": Planted(
        "6",
        "what is spread may leave again with the slot that follows",
        RULE,
        "(rows.slot[chosen] + 1) * rows.precision_ms",
        "rows.slot[chosen] * rows.precision_ms",
    ),
    "hot-upside-down": Planted(
        "6",
        "what is spread is chosen the other way round",
        RULE,
        "/ 2.0**32 < self.probability",
        "/ 2.0**32 > self.probability",
    ),
}


@dataclass(frozen=True)
class _Overtakable:
    """A timer that was spread and has not been delivered since.

    Attributes:
        natural: the slot that its record meant.
        below: rows of the partition below this offset were there when that slot was closed.
    """

    offset: int
    natural: int
    below: int


class Judge(PolicyJudge[HotSlots]):
    """Judges hot slots."""

    likely = 1
    meets = ("hot slot", "postponed: hot_slot")

    def _set_up(self) -> None:
        self._spread: dict[tuple[int, bytes], dict[bytes, _Overtakable]] = {}
        self._place: int | None = None
        self._after: Progress | None = None

    @classmethod
    def drawn(cls, draw: Draw) -> HotSlots | None:
        p, chance = draw.wheel.precision_ms, draw.chance
        actions: tuple[Action | None, ...] = (None, "spread", "dead-letter", "spread")
        action, limit = chance.choice(actions), chance.choice((1, 3, 5))
        spread_ms = chance.choice((0, p // 2, 2 * p, draw.wheel.window_ms - p))
        return None if action is None else HotSlots(action, limit, spread_ms)

    @classmethod
    def letters_wait(cls, policy: HotSlots) -> bool:
        return policy.action == "spread"

    def forget(self, lost: set[bytes]) -> None:
        for spread in self._spread.values():
            for source in lost & spread.keys():
                del spread[source]

    def begins(self, taken: Taken) -> None:
        super().begins(taken)
        before, after, rows = taken.before, taken.after, taken.rows
        self._after = after
        first = self._slots.start - 1
        place = half_rows_by_slot(before.partitions).get((TOPIC, first + 1)) if before else None
        self._place = None
        if place is not None and after.delivered_slot == first:
            out = half_rows_by_slot(after.partitions).get((TOPIC, first + 1), 0)
            if out < place + rows or (taken.whole and out > place + rows):
                self._violated("bytes", f"{rows} rows after {place}, and {out} are out")
            # Where cancelled rows lie between them, their places are not known.
            self._place = place if out == place + rows and taken.in_order else None

    def leaves(self, row: Leaving) -> None:
        copy, excess = row.copy, row.policy == self.name
        timer = copy.timer
        if not excess and row.policy:
            if row.until_ms == NEVER and timer.key is not None:  # no later one overtakes it
                self._spread.get((timer.partition, timer.key), {}).pop(timer.source, None)
            return
        is_free = row.rolls or timer.rejected or copy.retries > 0
        if excess and is_free:
            self._violated("6 held up", f"{timer.source!r} can never be in excess")
        if self._place is not None and not is_free:
            place, limit = self._place + row.number, self._policy.limit
            if excess and place <= limit:
                self._violated("6 held up", f"place {place} is in excess, the limit is {limit}")
            if not excess and place >= 2 * limit:
                self._violated("6 held up", f"place {place} leaves, the limit is {limit}")
        if row.until_ms == NEVER and self._policy.action != "dead-letter":
            self._violated("6 held up", f"{timer.source!r} has no dead letter for its hot slot")
        elif row.postponed:
            p, window_ms = self._wheel.precision_ms, max(self._policy.window_ms, 1)
            slots_ms = ((slot + 1) * p for slot in self._slots)
            self._require_wait(row, (range(ms, ms + window_ms) for ms in slots_ms))
        if not row.rolls:
            waits = (
                row.sent_back and row.until_ms != NEVER
            )  # a letter that waits is out of the order
            self._judge_key(copy, row.natural, excess=excess, sent_back=waits)

    def _judge_key(self, copy: Copy, natural: int, *, excess: bool, sent_back: bool) -> None:
        timer = copy.timer
        if timer.key is None:
            return
        spread = self._spread.setdefault((timer.partition, timer.key), {})
        if sent_back:
            if excess:
                spread[timer.source] = _Overtakable(
                    copy.offset, natural, self._below(timer.partition)
                )
            return
        spread.pop(timer.source, None)
        if excess or timer.rejected or copy.retries:
            return
        for source, other in spread.items():
            if other.natural == natural and other.offset < copy.offset < other.below:
                self._violated("4 order", f"{timer.source!r} overtakes {source!r}, of its key")

    def _below(self, number: int) -> int:
        assert self._after is not None
        part = self._after.partitions.get((TOPIC, number))
        return part.closed_mark if part is not None else 0
