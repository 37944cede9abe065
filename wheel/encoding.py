"""From deliveries to ready record batches, one topic-partition after another.

Depends on nothing but the rows and what is known of their targets, so that it can be done long
before the transaction; the result says what it took for true. No Kafka here.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from duewheel.errors import PublishDoubt
from duewheel.schemas.record_batch import Batch, split
from duewheel.schemas.timers import Deliveries
from duewheel.wheel import routing
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
        known: what was known of each topic that mattered.
        refused: sources of the records that the broker had refused.
    """

    parts: list[Part]
    condemned: Counter[str]
    known: Mapping[str, Known]
    refused: frozenset[bytes]


def encode(
    deliveries: Deliveries,
    look_up: LookUp,
    refused: frozenset[bytes],
    dead_letter_topic: str,
    chance: random.Random,
) -> Encoded:
    """Route the rows, those that can never be published to the dead-letter topic, and join them.

    Args:
        deliveries: the rows.
        look_up: asked for the topics that rows name and, only if there are dead letters, for
            `dead_letter_topic`.
        refused: sources of records that the broker has refused.
        dead_letter_topic: where unpublishable rows go.
        chance: chooses partitions for rows without key and request.

    Raises:
        PublishDoubt: the dead-letter topic takes nothing.
        Exception: whatever `look_up` raises.
    """
    known = dict(look_up(routing.used_topics(deliveries)))
    targets = {topic: one.target for topic, one in known.items()}
    reason = routing.why_not(deliveries, targets, list(refused))
    counts = enumerate(np.bincount(reason).tolist())
    condemned = Counter({Reason(n).name.lower(): c for n, c in counts if n and c})
    if condemned:
        deliveries = routing.condemned(deliveries, reason, targets, dead_letter_topic)
    if deliveries.dead_letter.any():
        used = routing.used_topics(deliveries)
        known.update(look_up([topic for topic in used if topic not in known]))
        targets = {topic: known[topic].target for topic in used}
        deliveries = _dead_letters_fitted(deliveries, targets)
    deliveries, groups = routing.grouped(deliveries, targets, chance)
    parts = []
    for group in groups:
        rows = deliveries.slice(group.first, group.end)
        first = 0
        for batch in split(rows, known[group.topic].batch_bytes):
            source = rows.source[first].as_py() if batch.count == 1 else None
            parts.append(Part(group.topic, group.partition, batch, source))
            first += batch.count
    return Encoded(parts, condemned, known, refused)


def _dead_letters_fitted(deliveries: Deliveries, targets: Mapping[str, Target]) -> Deliveries:
    """The deliveries with every dead letter cut down to what its topic takes."""
    for topic, target in targets.items():
        if target.refusal:
            raise PublishDoubt(
                f"nothing was published: dead-letter topic {topic!r}: {target.refusal.name.lower()}"
            )
    too_large = routing.too_large(deliveries, targets) & deliveries.dead_letter
    return routing.stripped(deliveries, too_large) if too_large.any() else deliveries
