"""The seam of all policies of delivery: their base class, and `postponed`, which asks them.

A policy computes for each row of a chunk the instant before which it does not leave:

    ANY_TIME    it leaves now
    an instant  it returns to its timer topic and waits in the wheel, a roll window at the most;
                then the policy is asked again. So an instant may be as far away as it likes, if
                the policy repeats it for such a copy
    NEVER       it becomes a dead letter: its code is the policy's name, its sentence `refusal`
    DROPPED     it is left out of its transaction (dequeue/pipeline.py), and counted

Everything else is done once for all policies, from the columns that `postponed` sets: fate.py
decides (a row that can never be published comes first; a copy that its timer topic refuses leaves
now), requeue.py makes the copies, and statistics.py counts the rows by policy.

Rules for a policy:

- The rows of a key that it postpones get instants that never fall, in their order: then they
  leave in that order (`_hops`), unless ingest takes a copy after the end of its hop. A row that it
  lets leave may overtake them, as one that is due in the slot of their instant or of a hop may.
- Rows with the same instant share a slot: a policy that ends at one instant for all spreads them
  (`spread_ms`), as those of a hot slot over a minute.
- A copy does not say which policy has postponed it: hot slots and rates let it leave
  (`DueRows.waited`). So a backlog that another policy has held back passes a rate at once, and that
  policy spreads it over a time that is long enough.
- Its instants follow from the rows, and from the queues, which it may change. They are hints: after
  a kill they are those of a start, and `now_ms` is later. A transaction that is aborted is tried
  again with the same instants.

Rolled copies and dead letters are on their way already: no policy is asked about them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from duewheel.schemas.arrays import Bool, Int64
from duewheel.schemas.batches import NEVER, NO_POLICY, Deliveries, PolicyLabel
from duewheel.schemas.columns import take
from duewheel.schemas.hashing import order_hashes
from duewheel.wheel.slots import slot_of

Uint64 = npt.NDArray[np.uint64]

# The finaliser of splitmix64. Without it the hashes of a timer partition would not be uniform: bits
# of a key's murmur2 also choose its partition, so they are equal in all keys of the partition.
_MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
HALF_BITS = np.uint64(32)
_HALF_MASK = np.uint64((1 << 32) - 1)


@dataclass(slots=True)
class RateQueue:
    """The queue of a target with a rate (rate.py)."""

    charged_us: int = 0
    turns_ms: Int64 | None = None  # the last turn by bucket of the key's hash; None: unknown

    @property
    def last_ms(self) -> int:
        """The last turn of all, or until when it is charged: a timer of any key may leave then."""
        waits_ms = 0 if self.turns_ms is None else int(self.turns_ms.max())
        return max(waits_ms, self.charged_us // 1_000)


@dataclass(frozen=True, slots=True)
class DueRows:
    """The rows of a chunk, in the order of their delivery."""

    deliveries: Deliveries  # with the instants of the policies that were asked before
    slot: Int64  # the closed slot that each row is in
    rank: Int64  # each row's place among the rows of its timer topic in its slot, from 0
    precision_ms: int
    window_ms: int  # the roll window: the longest wait of one copy
    # When their range was closed, by this host's clock while the brokers' agrees (clock_guard.py)
    now_ms: int
    pending: Bool  # neither cancelled, nor delivered, nor a seed, which fires nothing
    queues: dict[str, RateQueue]  # by target, of this loop

    @property
    def waited(self) -> Bool:
        """The rows that have been postponed before, by whichever policy, or parked."""
        waited: Bool = self.deliveries.retries > 0
        return waited

    def by_topic(self, values: Mapping[str, int], otherwise: int) -> Int64:
        """Returns for each row the value of its timer topic."""
        found = [values.get(topic, otherwise) for topic, _ in self.deliveries.source_partitions]
        return np.array(found, np.int64)[self.deliveries.source_partition]

    def key_bits(self, rows: Int64) -> Uint64:
        """Computes 64 uniform bits of the key of each of these rows, or of its id without a key."""
        hashes = order_hashes(self.deliveries.key_hash[rows], take(self.deliveries.timer_id, rows))
        mixed = hashes.astype(np.uint64)
        for shift, factor in _MIX:
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
        return mixed ^ (mixed >> np.uint64(31))


class PolicySettings(Protocol):
    """The settings of a shard: two methods of config/settings.py."""

    def of(self, key: str) -> Any: ...
    def by_topic(self, key: str) -> Mapping[str, Any]: ...


class Policy(ABC):
    """One rule. Only one thread asks it. `table.py` finds it.

    Attributes:
        name: in metrics, in the log, and as the code of its dead letters.
        refusal: the sentence of its dead letters; empty if it forbids no row.
        is_last: it follows all others, and counts the rows that they let leave now.
    """

    __slots__ = ()

    name: str
    refusal: str = ""
    is_last = False

    @classmethod
    @abstractmethod
    def configured(cls, settings: PolicySettings) -> Self | None:
        """Makes it of the settings; None: they have none."""

    @abstractmethod
    def not_before_ms(self, rows: DueRows) -> Int64 | None:
        """Computes the instant of each row, as the module's head says; None: all leave now."""


def spread_ms(key_bits: Uint64, window_ms: int) -> Int64:
    """Computes a part of the window, below 2**31 ms: rows of a key keep together, and in order."""
    return (((key_bits & _HALF_MASK) * np.uint64(window_ms)) >> HALF_BITS).astype(np.int64)


def postponed(rows: DueRows, policies: Sequence[Policy]) -> Deliveries:
    """Returns the deliveries, each with the latest instant of all policies, and the policy."""
    deliveries = rows.deliveries
    labels = [PolicyLabel(policy.name, policy.refusal) for policy in policies]
    for number, policy in enumerate(policies):
        instants = policy.not_before_ms(replace(rows, deliveries=deliveries))
        if instants is None:
            continue
        if not deliveries.policies:
            deliveries = replace(deliveries, policies=labels)
        later = (instants > deliveries.not_before_ms) & ~deliveries.is_copy
        # A row that returned to a slot that is closed already would be postponed without end.
        later &= ~deliveries.dead_letter & (slot_of(instants, rows.precision_ms) > rows.slot)
        deliveries = replace(
            deliveries,
            not_before_ms=np.where(later, instants, deliveries.not_before_ms),
            policy=np.where(later, number, deliveries.policy).astype(np.int32),
        )
    back = returning(deliveries)
    if back.any():
        instants = np.where(back, _hops(deliveries.not_before_ms, rows), deliveries.not_before_ms)
        deliveries = replace(deliveries, not_before_ms=instants)
    return deliveries


def _hops(instants: Int64, rows: DueRows) -> Int64:
    """Computes the ends of the next hops on the ways to these instants, which are whole windows
    before them. So all rows that wait for one instant share its hops: else a row that has hopped
    would reach the last slot with a higher offset, and so after rows that were postponed later.
    """
    beyond_ms = instants - rows.now_ms - rows.window_ms
    hops: Int64 = np.maximum(0, -(-beyond_ms // rows.window_ms))
    return instants - hops * rows.window_ms


def counts_by_policy(deliveries: Deliveries, rows: Int64 | Bool) -> dict[str, int]:
    """Counts these rows by the name of the policy that has decided about each."""
    names = [policy.name for policy in deliveries.policies]
    counts = np.bincount(deliveries.policy[rows], minlength=len(names)).tolist()
    return dict(zip(names, counts, strict=True))


def returning(deliveries: Deliveries) -> Bool:
    """Selects the rows that a policy sends back to their timer topic."""
    rows: Bool = (deliveries.policy != NO_POLICY) & (deliveries.not_before_ms < NEVER)
    return rows
