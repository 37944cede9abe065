"""Addresses each row by its fate: to its target, its timer topic or the dead-letter topic.

The fates are decided in fate.py. An error that a broker answers is decided elsewhere: a refused
record alone in its batch becomes a dead letter, any other error of one partition means that it
takes no writes for now (kafka/targets/unavailable_partitions.py).

Pure functions over columns: no client, any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from duewheel.checkpoints.pauses import NONE_PAUSED, PausedTimers
from duewheel.errors import PublishDoubt
from duewheel.schemas.arrays import Bool
from duewheel.schemas.batches import Deliveries
from duewheel.schemas.wire.copy_mac import signed
from duewheel.wheel.dequeue import dead_letter_rows, requeue
from duewheel.wheel.dequeue.fate import Fate, Fates, Fetch, decide, to_unresolved
from duewheel.wheel.dequeue.too_large import too_large
from duewheel.wheel.encoded import Aside
from duewheel.wheel.target_rules import Reason, Target

# The metadata of these topics; raises if it has none.
TopicLookup = Callable[[Sequence[str]], Mapping[str, Target]]


@dataclass(frozen=True, slots=True)
class Routed:
    """The destinations of the rows of a transaction.

    Attributes:
        deliveries: in the order in which they came.
        aside, used_targets: as in Encoded.
    """

    deliveries: Deliveries
    aside: Aside
    used_targets: Mapping[str, Target]


def _all_have_place(deliveries: Deliveries, _: Fetch) -> Bool:
    return np.zeros(len(deliveries), np.bool_)


def route(
    deliveries: Deliveries,
    lookup: TopicLookup,
    refused: frozenset[bytes],
    dead_letter_topic: str,
    now_ms: int,
    wait_ms: requeue.Waits = requeue.WAIT_MS,
    copy_key: bytes = b"",
    without_receipt: Callable[[Deliveries, Fetch], Bool] = _all_have_place,
    paused: PausedTimers = NONE_PAUSED,
) -> Routed:
    """Decides the fates of the rows, and addresses them.

    `copy_key` signs copies that become dead letters: their replay is a copy again.

    Raises:
        PublishDoubt: neither the dead-letter topic nor a row's timer topic exists.
        Exception: whatever `lookup` raises.
    """
    used_targets = dict[str, Target]()

    def fetch(topics: Iterable[str]) -> dict[str, Target]:
        """The targets of these topics, and of all fetched before."""
        new = [topic for topic in dict.fromkeys(topics) if topic not in used_targets]
        if new:
            used_targets.update(lookup(new))
        return used_targets

    fates = decide(
        deliveries, fetch, refused, dead_letter_topic, now_ms, wait_ms, without_receipt, paused
    )
    if not fates.fate.any():
        return Routed(deliveries, Aside(), used_targets)
    back, parked = fates.are(Fate.PARK, Fate.POSTPONE), fates.are(Fate.PARK)
    unresolved = parked & to_unresolved(deliveries, used_targets)
    if back.any():
        deliveries = requeue.waiting_copies(deliveries, back, fates.not_before_ms, parked)
    dead = fates.reason != Reason.NONE
    if dead.any():
        deliveries = signed(deliveries, copy_key, dead)
        deliveries = dead_letter_rows.dead_lettered(
            deliveries, fates.reason, used_targets, dead_letter_topic
        )
    if deliveries.dead_letter.any():
        deliveries = dead_letter_rows.to_dead_letters(deliveries, dead_letter_topic)
        keep = fates.are(Fate.KEEP)
        if keep.any():
            deliveries = _kept(deliveries, keep, used_targets, now_ms, wait_ms)
        deliveries = _fitted(deliveries, used_targets)
    return Routed(deliveries, _aside(fates, deliveries, unresolved), used_targets)


def _aside(fates: Fates, deliveries: Deliveries, unresolved: Bool) -> Aside:
    dead_lettered = fates.are(Fate.DEAD_LETTER) & (fates.reason != Reason.NONE)
    by_policy = len(Reason) + deliveries.policy
    code = np.where(fates.reason == Reason.FORBIDDEN, by_policy, fates.reason)
    return Aside(
        np.flatnonzero(fates.are(Fate.PARK) & ~unresolved),
        np.flatnonzero(fates.are(Fate.POSTPONE)),
        np.flatnonzero(fates.are(Fate.KEEP)),
        np.flatnonzero(dead_lettered),
        [*(reason.code for reason in Reason), *(policy.name for policy in deliveries.policies)],
        code[dead_lettered],
        np.flatnonzero(unresolved),
    )


def _kept(
    deliveries: Deliveries,
    rows: Bool,
    targets: Mapping[str, Target],
    now_ms: int,
    wait_ms: requeue.Waits,
) -> Deliveries:
    """The deliveries with these dead letters sent to their timer topics, to wait. A copy too large
    for its timer topic is reduced to a pointer to the original.
    """
    waiting = requeue.waiting_letters(deliveries, rows, now_ms, wait_ms)
    large = too_large(waiting, targets) & rows
    if large.any():
        deliveries = dead_letter_rows.stripped(deliveries, large)
        waiting = requeue.waiting_letters(deliveries, rows, now_ms, wait_ms)
    return waiting


def _fitted(deliveries: Deliveries, targets: Mapping[str, Target]) -> Deliveries:
    """The deliveries, each oversized dead letter reduced to a pointer to its original."""
    leaving = deliveries.dead_letter & ~deliveries.is_copy
    for index in np.unique(deliveries.target[leaving]).tolist():
        topic = deliveries.targets[index]
        if targets[topic].refusal:
            raise PublishDoubt(
                f"nothing was published: dead-letter topic {topic!r}: "
                f"{targets[topic].refusal.code}, and the timer topics of its messages "
                "do not exist either"
            )
    large = too_large(deliveries, targets) & leaving
    return dead_letter_rows.stripped(deliveries, large) if large.any() else deliveries
