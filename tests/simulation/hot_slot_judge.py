"""Whether what was in excess of its slot may have been, and has not been overtaken by its key.

The slot that a row leaves is not told with it. What is known:

    spread       the instant before which it does not leave again lies a slot and less than the
                 window behind the slot's end
    half a slot  a transaction between two progresses of the same half-delivered slot has rows of
                 that slot only, and the place of each of them follows from their counts
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

from tests.simulation.timers import TOPIC, Copy

from duewheel.checkpoints.progress import Progress, half_rows_by_slot
from duewheel.schemas.batches import ANY_TIME, NEVER
from duewheel.wheel.policies.hot_slots import HotSlots
from duewheel.wheel.policies.policy import Policy


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


class HotSlotJudge:
    """Hears of each row that leaves, in order."""

    def __init__(
        self, policies: Sequence[Policy], precision_ms: int, violated: Callable[[str, str], None]
    ) -> None:
        found = [policy for policy in policies if isinstance(policy, HotSlots)]
        self._is_limited = bool(found)
        self._hot = found[0] if found else HotSlots()
        self._precision_ms = precision_ms
        self._violated = violated
        self._spread: dict[tuple[int, bytes], dict[bytes, _Overtakable]] = {}
        self._slots = range(0)
        self._place: int | None = None
        self._after: Progress | None = None

    def forget(self, lost: set[bytes]) -> None:
        """These timers are lost."""
        for spread in self._spread.values():
            for source in lost & spread.keys():
                del spread[source]

    def begin(
        self, before: Progress | None, after: Progress, excess: Sequence[bool], *, whole: bool
    ) -> None:
        """A transaction that has taken the shard from one progress to the next; `whole`: nobody has
        cancelled anything, so that every row shows that leaves its slot.
        """
        if not self._is_limited and any(excess):
            self._violated("6 held up", "a row is in excess, though nobody asked")
        self._after = after
        first = before.delivered_slot if before else 0
        self._slots = range(first + 1, after.closed_slot + 1)
        place = half_rows_by_slot(before.partitions).get((TOPIC, first + 1)) if before else None
        self._place = None
        if place is not None and after.delivered_slot == first:
            out = half_rows_by_slot(after.partitions).get((TOPIC, first + 1), 0)
            if out < place + len(excess) or (whole and out > place + len(excess)):
                self._violated("bytes", f"{len(excess)} rows after {place}, and {out} are out")
            # Where cancelled rows lie between them, their places are not known.
            self._place = place if out == place + len(excess) else None

    def forget_places(self) -> None:
        """A recurring timer is in the transaction: its rows are not in the slot's order."""
        self._place = None

    def leaves(
        self,
        row: int,
        copy: Copy,
        natural: int,
        until_ms: int,
        window_ms: int,
        *,
        rolls: bool,
        sent_back: bool,
    ) -> None:
        """A row of it.

        Args:
            row: its number in the transaction.
            copy: of the timer topic, which leaves.
            natural: the slot that its record means.
            until_ms: `not_before_ms` of the delivery.
            window_ms: the roll window: a longer wait is cut into hops.
            rolls, sent_back: whether it is to roll; whether it goes to its timer topic again.
        """
        timer, excess = copy.timer, until_ms != ANY_TIME
        is_free = rolls or timer.rejected or copy.retries > 0
        if excess and is_free:
            self._violated("6 held up", f"{timer.source!r} can never be in excess")
        if self._place is not None and not is_free:
            place, limit = self._place + row, self._hot.limit
            if excess and place <= limit:
                self._violated("6 held up", f"place {place} is in excess, the limit is {limit}")
            if not excess and place >= 2 * limit and self._is_limited:
                self._violated("6 held up", f"place {place} leaves, the limit is {limit}")
        if until_ms == NEVER and self._hot.action != "dead-letter":
            self._violated("6 held up", f"{timer.source!r} has no dead letter for its hot slot")
        elif excess and until_ms != NEVER:
            self._judge_instant(until_ms, window_ms)
        if not rolls:
            waits = sent_back and until_ms != NEVER  # a letter that waits is out of the order
            self._judge_key(copy, natural, excess=excess, sent_back=waits)

    def expires(self, copy: Copy) -> None:
        """A row that leaves as a dead letter because it is too late: no later one overtakes it."""
        timer = copy.timer
        if timer.key is not None:
            self._spread.get((timer.partition, timer.key), {}).pop(timer.source, None)

    def _judge_instant(self, until_ms: int, window_ms: int) -> None:
        """It must follow from one of the slots that this transaction can have been of; or end the
        first hop of an instant that does.
        """
        p, latest_ms = self._precision_ms, max(self._hot.window_ms - 1, 0)
        for slot, hops in product(self._slots, range(latest_ms // window_ms + 2)):
            instant_ms = until_ms + hops * window_ms
            may_be = 0 <= instant_ms - (slot + 1) * p <= latest_ms
            if may_be and hops == max(0, -((slot * p - instant_ms) // window_ms) - 1):
                return
        self._violated("6 held up", f"held back until {until_ms}, of slots {self._slots}")

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
