"""Encodes deliveries into ready record batches, one topic-partition after another.

The result names the metadata that it used: so batches are encoded ahead of their transaction, and
encoded again if the metadata has changed. Pure functions: no client, any thread.
"""

from __future__ import annotations

import random

from duewheel.kafka.compression import compressed
from duewheel.kafka.receipts import NO_RECEIPTS, Receipts, receipt_parts
from duewheel.schemas.batches import Deliveries
from duewheel.schemas.wire.copy_mac import signed
from duewheel.schemas.wire.record_batch import split
from duewheel.wheel.dequeue.partitioner import grouped
from duewheel.wheel.dequeue.routing import TopicLookup, route, targets_of
from duewheel.wheel.encoded import Encoded, Part


def encode(
    deliveries: Deliveries,
    lookup: TopicLookup,
    refused: frozenset[bytes],
    dead_letter_topic: str,
    chance: random.Random,
    now_ms: int,
    copy_key: bytes = b"",
    receipts: Receipts = NO_RECEIPTS,
) -> Encoded:
    """Route the rows, group them by topic-partition, and join each group into batches.

    Args:
        deliveries, lookup, refused, dead_letter_topic, now_ms: as in `route`.
        chance: chooses partitions for rows without key and request.
        copy_key: of the MACs of copies; empty: they get none.
        receipts: which deliveries have one, or a header with their lateness.

    Raises:
        PublishDoubt, Exception: as `route`.
    """
    # Before the rows are routed: their sizes decide about some.
    deliveries = receipts.with_lateness(deliveries, now_ms)
    routed = route(
        deliveries,
        lookup,
        refused,
        dead_letter_topic,
        now_ms,
        copy_key=copy_key,
        without_receipt=receipts.without_place,
    )
    used_targets = dict(routed.used_targets)
    rows, groups = grouped(routed.deliveries, targets_of(used_targets), chance)
    rows = signed(rows, copy_key)
    limits = [used_targets[group.topic].batch_bytes for group in groups]
    parts, first = [], 0
    batches_of = split(rows, [group.end for group in groups], limits)
    for group, batches in zip(groups, batches_of, strict=True):
        is_delivery = not (rows.is_copy[first] or rows.dead_letter[first])
        codec = used_targets[group.topic].codec if is_delivery else "none"
        for batch in batches:
            source = rows.source[first].as_py() if batch.count == 1 else None
            parts.append(Part(group.topic, group.partition, compressed(batch, codec), source))
            first += batch.count
    if receipts.topic is not None and len(delivered := receipts.rows(rows)):
        topic = receipts.topic
        parts += receipt_parts(rows, groups, delivered, topic, used_targets[topic])
    return Encoded(parts, routed.aside, used_targets, refused, copy_key, now_ms)
