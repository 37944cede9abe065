"""Decides which rows go to their target, which are parked, and which become dead letters.

    never publishable                 dead letter (unpublishable_rows.py)
    refused by the broker when sent   smaller batches; alone in its batch: dead letter. Any other
                                      error of one partition: it takes no writes for now
                                      (note_refusal in target_metadata.py)
    its partition takes no writes     parked: a copy waits in its timer topic
                                      (wheel/dequeue/requeue.py). If that refuses the copy: dead
                                      letter, which can be replayed; waiting for the target would
                                      delay every other row
    its receipt has no place for now  parked (receipts.py)
    in excess of its slot             spread: parked until a later slot (wheel/slot_overflow.py)
    dead letter, while its topic      waits as a copy in its timer topic
    takes no writes

The result depends only on the rows, the time and their targets' metadata. Pure functions: no
client, any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from duewheel.errors import PublishDoubt
from duewheel.kafka import partitioner
from duewheel.kafka import unpublishable_rows as unpublishable
from duewheel.kafka.receipts import NO_RECEIPTS, Receipts
from duewheel.schemas.arrays import Bool, Int32
from duewheel.schemas.batches import ANY_TIME, Deliveries
from duewheel.schemas.wire.copy_mac import signed
from duewheel.wheel.dequeue import requeue
from duewheel.wheel.encoded import Aside, EncodingTarget, Reason, Target
from duewheel.wheel.slot_overflow import spread_rows

# The metadata of these topics; raises if it has none.
TopicLookup = Callable[[Sequence[str]], Mapping[str, EncodingTarget]]


@dataclass(frozen=True, slots=True)
class Routed:
    """The destinations of the rows of a transaction.

    Attributes:
        deliveries: in the order in which they came.
        aside, used_targets: as in Encoded.
    """

    deliveries: Deliveries
    aside: Aside
    used_targets: Mapping[str, EncodingTarget]


def route(
    deliveries: Deliveries,
    lookup: TopicLookup,
    refused: frozenset[bytes],
    dead_letter_topic: str,
    now_ms: int,
    wait_ms: tuple[int, int] = requeue.WAIT_MS,
    copy_key: bytes = b"",
    receipts: Receipts = NO_RECEIPTS,
) -> Routed:
    """Address rows that can never be published to the dead-letter topic, and rows that cannot be
    published for now to their timer topic.

    Args:
        deliveries: the rows.
        lookup: called for the topics that rows name and, only if they are needed, for timer
            topics and for `dead_letter_topic`.
        refused: sources of records that the broker has refused.
        dead_letter_topic: of unpublishable rows.
        now_ms: from which parked rows wait.
        wait_ms: the first wait, and the longest.
        copy_key: signs copies that become dead letters; their replay is a copy again.
        receipts: which rows have one.

    Raises:
        PublishDoubt: neither the dead-letter topic nor a row's timer topic exists.
        Exception: whatever `lookup` raises.
    """
    used_targets = dict(lookup(partitioner.used_topics(deliveries)))

    def fetch(topics: Iterable[str]) -> dict[str, Target]:
        """The targets of these topics, and of all fetched before."""
        used_targets.update(
            lookup([topic for topic in dict.fromkeys(topics) if topic not in used_targets])
        )
        return targets_of(used_targets)

    targets = targets_of(used_targets)
    reason = unpublishable.why_not(deliveries, targets, list(refused))
    waiting = partitioner.without_target(deliveries, targets) & (reason == Reason.NONE)
    reason[waiting & deliveries.answer] = Reason.TARGET_UNAVAILABLE
    waiting &= ~deliveries.answer
    waiting |= receipts.without_place(deliveries, fetch) & (reason == Reason.NONE)
    spread = (reason == Reason.NONE) & spread_rows(deliveries)
    if (waiting | spread).any():
        targets = fetch(topic for topic, _ in deliveries.source_partitions)
        deliveries, waiting = _parked(deliveries, waiting, spread, targets, reason, now_ms, wait_ms)
    if reason.any():
        deliveries = signed(deliveries, copy_key, reason != Reason.NONE)
        deliveries = unpublishable.dead_lettered(deliveries, reason, targets, dead_letter_topic)
    letters = np.zeros_like(waiting)
    if deliveries.dead_letter.any():
        targets = fetch([dead_letter_topic])
        deliveries = unpublishable.to_dead_letters(deliveries, dead_letter_topic)
        if not targets[dead_letter_topic].takes_letters:
            targets = fetch(topic for topic, _ in deliveries.source_partitions)
            deliveries, letters = _letters_kept(deliveries, targets, now_ms, wait_ms)
        deliveries = _dead_letters_fitted(deliveries, targets)
    reason[letters] = Reason.NONE
    return Routed(deliveries, _aside(waiting, letters, reason), used_targets)


def _aside(waiting: Bool, letters: Bool, reason: Int32) -> Aside:
    if not (waiting.any() or letters.any() or reason.any()):
        return Aside()
    counts = enumerate(np.bincount(reason).tolist())
    parked, kept, dead_lettered = (np.flatnonzero(rows) for rows in (waiting, letters, reason))
    reasons = {Reason(n).name.lower(): c for n, c in counts if n and c}
    return Aside(parked, kept, dead_lettered, reasons)


def targets_of(used_targets: Mapping[str, EncodingTarget]) -> dict[str, Target]:
    """Their targets, without what only encoding needs."""
    return {topic: one.target for topic, one in used_targets.items()}


def _parked(
    deliveries: Deliveries,
    waiting: Bool,
    spread: Bool,
    targets: Mapping[str, Target],
    reason: Int32,
    now_ms: int,
    wait_ms: tuple[int, int],
) -> tuple[Deliveries, Bool]:
    """The deliveries with rows parked, and which rows those are.

    If the timer topic refuses the copy, a row that waits for its target becomes a dead letter (its
    `reason` is set in place), and a row that would only be spread is delivered now.
    """
    back = waiting | spread
    # The later of the two: otherwise this row could overtake an earlier one of its key.
    retry_ms = np.where(waiting, now_ms + requeue.waits_ms(deliveries, wait_ms), ANY_TIME)
    not_before_ms = np.maximum(retry_ms, np.where(spread, deliveries.not_before_ms, ANY_TIME))
    parked = requeue.parked(deliveries, back, not_before_ms)
    refused = back & (unpublishable.why_not(parked, targets, []) != Reason.NONE)
    if refused.any():
        reason[refused & waiting] = Reason.TARGET_UNAVAILABLE
        back &= ~refused
        parked = requeue.parked(deliveries, back, not_before_ms)
    return parked, back


def _letters_kept(
    deliveries: Deliveries,
    targets: Mapping[str, Target],
    now_ms: int,
    wait_ms: tuple[int, int],
) -> tuple[Deliveries, Bool]:
    """The deliveries with dead letters sent to their timer topics to wait, and which rows those
    are. A copy too large for its timer topic is reduced to a pointer to the original.
    """
    missing = [topic for topic, _ in deliveries.source_partitions if targets[topic].refusal]
    existing = np.array(
        [topic not in missing for topic, _ in deliveries.source_partitions], np.bool_
    )
    rows = deliveries.dead_letter & existing[deliveries.source_partition]
    waiting = requeue.waiting_letters(deliveries, rows, now_ms, wait_ms)
    too_large = unpublishable.too_large(waiting, targets) & rows
    if too_large.any():
        deliveries = unpublishable.stripped(deliveries, too_large)
        waiting = requeue.waiting_letters(deliveries, rows, now_ms, wait_ms)
    return waiting, rows


def _dead_letters_fitted(deliveries: Deliveries, targets: Mapping[str, Target]) -> Deliveries:
    """The deliveries, each oversized dead letter reduced to a pointer to its original."""
    leaving = deliveries.dead_letter & ~deliveries.is_copy
    for index in np.unique(deliveries.target[leaving]).tolist():
        topic = deliveries.targets[index]
        if targets[topic].refusal:
            raise PublishDoubt(
                f"nothing was published: dead-letter topic {topic!r}: "
                f"{targets[topic].refusal.name.lower()}, and the timer topics of its messages "
                "do not exist either"
            )
    too_large = unpublishable.too_large(deliveries, targets) & leaving
    return unpublishable.stripped(deliveries, too_large) if too_large.any() else deliveries
