"""The interface of a policy's judge: one class for each policy, in the file of the policy's name.

It knows which settings a seed may draw, which rows may leave and which wait, how long, and what the
copy of a row that waits looks like. FAULTS beside it are those of planted.py in the policy.
`table.py` finds the judges; history.py asks all of them about every row, in the order in which the
rows leave.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random
from typing import ClassVar, Generic, TypeVar

from tests.simulation.timers import Copy

from duewheel.checkpoints.pauses import PausedTimers
from duewheel.checkpoints.progress import Progress
from duewheel.schemas.batches import ANY_TIME, NEVER
from duewheel.wheel.policies.policy import Policy
from duewheel.wheel.slots import WheelConfig

Violated = Callable[[str, str], None]
P = TypeVar("P", bound=Policy | None)


@dataclass(frozen=True)
class Draw:
    """What a seed makes a policy of."""

    chance: Random
    wheel: WheelConfig


@dataclass(frozen=True)
class Taken:
    """A transaction of timers, which has taken a shard from one progress to the next.

    Attributes:
        rows: how many leave their slots in it.
        whole: nobody has cancelled anything, so every row shows that leaves its slot.
        in_order: the rows are in the order of their slots; not beside recurring timers.
        closable_ms: nothing in it was due later.
        parked_ms: from which its parked timers wait.
        down: target partitions that took no writes then.
        absent: topics that did not exist then.
        paused: what was paused then.
    """

    before: Progress | None
    after: Progress
    rows: int
    whole: bool
    in_order: bool
    closable_ms: int
    parked_ms: int
    down: frozenset[tuple[str, int]]
    absent: frozenset[str]
    paused: PausedTimers


@dataclass(frozen=True)
class Leaving:
    """A row that leaves the wheel.

    Attributes:
        number: of the row in its transaction.
        copy: of the timer topic, which leaves.
        natural: the slot that its record means.
        policy: the one that decided about it; "": none.
        until_ms: before which it does not leave, by that policy.
        window_ms: the roll window: a longer wait is cut into hops.
        rolls: whether it is to roll.
        sent_back: whether it goes to its timer topic again.
    """

    number: int
    copy: Copy
    natural: int
    policy: str
    until_ms: int
    window_ms: int
    rolls: bool
    sent_back: bool

    @property
    def postponed(self) -> bool:
        """Whether a policy lets it leave later."""
        return self.until_ms not in {ANY_TIME, NEVER}

    @property
    def is_delivered(self) -> bool:
        """Whether its target gets it."""
        return not self.sent_back and not self.is_letter

    @property
    def is_letter(self) -> bool:
        """Whether it is a dead letter, or becomes one by a policy."""
        return self.copy.timer.rejected or self.until_ms == NEVER


class PolicyJudge(Generic[P]):
    """Judges one policy of one run that has it.

    Attributes:
        likely: the share of seeds that draw it.
        meets: what the seeds of the suite must meet of it, as history counts it; by default that
            it has postponed a timer.
        name: of the policy.
    """

    likely: ClassVar[float] = 0.2
    meets: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self, policy: P, wheel: WheelConfig, violated: Violated, counts: Counter[str]
    ) -> None:
        self._policy = policy
        self.name = "" if policy is None else policy.name
        self._violated = violated
        self._counts = counts
        self._wheel = wheel
        # Of the transaction: its slots were closed after the first of the times, before the second.
        self._slots, self._closed_ms = range(0), (0, 0)
        self._set_up()

    def _set_up(self) -> None:
        """Makes the judge's own state."""

    @classmethod
    def drawn(cls, draw: Draw) -> P | None:
        """The policy as a seed has it; None if it has none after all."""
        raise NotImplementedError

    @classmethod
    def letters_wait(cls, policy: P) -> bool:
        """Whether the runs of this policy may have no topic of dead letters for a while."""
        return True

    def begins(self, taken: Taken) -> None:
        """The rows of this transaction leave next."""
        first = taken.before.delivered_slot if taken.before else 0
        self._slots = range(first + 1, taken.after.closed_slot + 1)
        self._closed_ms = taken.after.closed_slot * self._wheel.precision_ms, taken.closable_ms

    def _require_wait(self, row: Leaving, spans_ms: Iterable[range]) -> None:
        """The instant that a postponed row waits for is in one of these. The row's hop to it ends
        whole windows before it, and within a window from now.
        """
        first_ms, now_ms = self._closed_ms
        until_ms, window_ms = row.until_ms, row.window_ms
        for span_ms in spans_ms if until_ms <= now_ms + window_ms else ():
            hops = max(0, -((until_ms - span_ms.start) // window_ms)) if until_ms > first_ms else 0
            if until_ms + hops * window_ms in span_ms:
                return
        self._violated("6 held up", f"held back until {until_ms}, of slots {self._slots}")

    def leaves(self, row: Leaving) -> None:
        """A row leaves, whichever policy has decided about it: none about a dead letter, nor about
        a timer that rolls.
        """

    def copied(self, row: Leaving, copy: Copy) -> None:
        """A copy of a row that this policy has postponed is in the timer topic: unless the row was
        parked, too, it has failed no more often than before.
        """
        retries = row.copy.retries
        if copy.retries not in {max(retries, 1), retries + 1}:
            self._violated("bytes", f"copy {copy.offset} was parked {copy.retries} times")

    def forget(self, lost: set[bytes]) -> None:
        """The timers with these names are lost."""
