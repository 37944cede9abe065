"""From deliveries to ready record batches, one topic-partition after another.

Depends on nothing but the rows, the time and what is known of their targets, so that it can be done
long before the transaction; the result says what it took for true. No Kafka here.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from duewheel.errors import PublishDoubt
from duewheel.schemas.record_batch import Batch, split
from duewheel.schemas.timers import ANY_TIME, Bool, Deliveries, Int32, Int64
from duewheel.wheel import returning, routing
from duewheel.wheel.hot_slots import to_be_spread
from duewheel.wheel.routing import Reason, Target


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a topic, as far as encoding goes.

    Attributes:
        target: its partitions and limits.
        batch_bytes: how large to make its batches.
    """

    target: Target
    batch_bytes: int


# What is known of each of these topics; may raise to say that it is not.
LookUp = Callable[[Sequence[str]], Mapping[str, Known]]


@dataclass(frozen=True, slots=True)
class Part:
    """One batch and where it goes.

    Attributes:
        topic, partition: where to.
        batch: the records.
        source: TIMER_SOURCE of its record if it holds one only, else None.
    """

    topic: str
    partition: int
    batch: Batch
    source: bytes | None


@dataclass(frozen=True, slots=True)
class Encoded:
    """Deliveries as batches, and what they were made from.

    Attributes:
        parts: the batches; those of a partition are neighbours, in their order.
        condemned: rows that became dead letters, by reason.
        parked: rows that go back to their timer topic to wait: their target takes no writes for
            now, or they are in excess of their slot.
        known: what was known of each topic that mattered.
        refused: sources of the records that the broker had refused.
    """

    parts: list[Part]
    condemned: Counter[str]
    parked: Int64
    known: Mapping[str, Known]
    refused: frozenset[bytes]


@dataclass(frozen=True, slots=True)
class Routed:
    """Where the rows of a transaction go.

    Attributes:
        deliveries: in the order in which they came.
        condemned, parked, known: as in Encoded.
    """

    deliveries: Deliveries
    condemned: Counter[str]
    parked: Int64
    known: Mapping[str, Known]


def route(
    deliveries: Deliveries,
    look_up: LookUp,
    refused: frozenset[bytes],
    dead_letter_topic: str,
    now_ms: int,
) -> Routed:
    """Address rows that can never be published to the dead-letter topic, and those that cannot be
    for now to their timer topic.

    Args:
        deliveries: the rows.
        look_up: asked for the topics that rows name and, only if they are needed, for timer
            topics and for `dead_letter_topic`.
        refused: sources of records that the broker has refused.
        dead_letter_topic: where unpublishable rows go.
        now_ms: from which parked rows wait.

    Raises:
        PublishDoubt: the dead-letter topic takes nothing.
        Exception: whatever `look_up` raises.
    """
    known = dict(look_up(routing.used_topics(deliveries)))
    targets = _targets(known)
    reason = routing.why_not(deliveries, targets, list(refused))
    waiting = routing.without_target(deliveries, targets) & (reason == Reason.NONE)
    reason[waiting & deliveries.answer] = Reason.TARGET_UNAVAILABLE
    waiting &= ~deliveries.answer
    spread = (reason == Reason.NONE) & to_be_spread(deliveries)
    if (waiting | spread).any():
        homes = dict.fromkeys(topic for topic, _ in deliveries.homes)
        known.update(look_up([topic for topic in homes if topic not in known]))
        targets = _targets(known)
        deliveries, waiting = _parked(deliveries, waiting, spread, targets, reason, now_ms)
    counts = enumerate(np.bincount(reason).tolist())
    condemned = Counter({Reason(n).name.lower(): c for n, c in counts if n and c})
    if condemned:
        deliveries = routing.condemned(deliveries, reason, targets, dead_letter_topic)
    if deliveries.dead_letter.any():
        used = routing.used_topics(deliveries)
        known.update(look_up([topic for topic in used if topic not in known]))
        targets = {topic: known[topic].target for topic in used}
        deliveries = _dead_letters_fitted(deliveries, targets)
    return Routed(deliveries, condemned, np.flatnonzero(waiting), known)


def encode(
    deliveries: Deliveries,
    look_up: LookUp,
    refused: frozenset[bytes],
    dead_letter_topic: str,
    chance: random.Random,
    now_ms: int,
) -> Encoded:
    """Route the rows, and join them.

    Args:
        deliveries, look_up, refused, dead_letter_topic, now_ms: as in `route`.
        chance: chooses partitions for rows without key and request.

    Raises:
        PublishDoubt, Exception: as `route`.
    """
    routed = route(deliveries, look_up, refused, dead_letter_topic, now_ms)
    known = routed.known
    rest, groups = routing.grouped(routed.deliveries, _targets(known), chance)
    parts = []
    for group in groups:
        rows = rest.slice(group.first, group.end)
        first = 0
        for batch in split(rows, known[group.topic].batch_bytes):
            source = rows.source[first].as_py() if batch.count == 1 else None
            parts.append(Part(group.topic, group.partition, batch, source))
            first += batch.count
    return Encoded(parts, routed.condemned, routed.parked, known, refused)


def _targets(known: Mapping[str, Known]) -> dict[str, Target]:
    return {topic: one.target for topic, one in known.items()}


def _parked(
    deliveries: Deliveries,
    waiting: Bool,
    spread: Bool,
    targets: Mapping[str, Target],
    reason: Int32,
    now_ms: int,
) -> tuple[Deliveries, Bool]:
    """The deliveries with rows parked, and which they are.

    What has no place to wait at stays as it is: then Kafka as a whole is away, and the transaction
    waits. Where the timer topic takes no such copy, what waits for its target is given a reason,
    and what would only be spread leaves now.
    """
    back = (waiting | spread) & routing.home_takes_writes(deliveries, targets)
    # The later of the two: a key's rows before this one may wait for either.
    retry_ms = np.where(waiting, now_ms + returning.waits_ms(deliveries), ANY_TIME)
    not_before_ms = np.maximum(retry_ms, np.where(spread, deliveries.not_before_ms, ANY_TIME))
    parked = returning.parked(deliveries, back, not_before_ms)
    refused = back & (routing.why_not(parked, targets, []) != Reason.NONE)
    if refused.any():
        reason[refused & waiting] = Reason.TARGET_UNAVAILABLE
        back &= ~refused
        parked = returning.parked(deliveries, back, not_before_ms)
    return parked, back


def _dead_letters_fitted(deliveries: Deliveries, targets: Mapping[str, Target]) -> Deliveries:
    """The deliveries with every dead letter cut down to what its topic takes."""
    for topic, target in targets.items():
        if target.refusal:
            raise PublishDoubt(
                f"nothing was published: dead-letter topic {topic!r}: {target.refusal.name.lower()}"
            )
    too_large = routing.too_large(deliveries, targets) & deliveries.dead_letter
    return routing.stripped(deliveries, too_large) if too_large.any() else deliveries
