"""Encodes deliveries into ready record batches: the straight way from rows to a transaction.

    1. the headers with the lateness are added (receipt_rows.py): the rows' sizes decide about some
    2. the fate of each row is decided (fate.py), and each is addressed by it (routing.py)
    3. the rows are grouped by topic-partition (partitioner.py), copies are signed
    4. each group is encoded and cut into batches (schemas/wire/record_batch.py)
    5. receipts are added (receipt_rows.py)

An observer sees the rows between 3 and 4.

Rows are encoded ahead of their transaction by cached metadata. The result names the metadata that
it used; if that has changed, the rows are encoded again before they are published.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import structlog

from duewheel.checkpoints.pauses import NONE_PAUSED, PausedTimers
from duewheel.schemas.arrays import Int64
from duewheel.schemas.batches import Deliveries
from duewheel.schemas.columns import lengths
from duewheel.schemas.wire.copy_mac import signed
from duewheel.schemas.wire.record_batch import split
from duewheel.wheel.dequeue.partitioner import Group, grouped
from duewheel.wheel.dequeue.receipt_rows import (
    NO_RECEIPTS,
    Receipts,
    receipt_partitions,
    receipt_parts,
)
from duewheel.wheel.dequeue.routing import TopicLookup, route
from duewheel.wheel.dequeue.waiting_dead_letters import WaitingDeadLetters
from duewheel.wheel.encoded import Committed, Encoded, Part, Writes
from duewheel.wheel.publisher_protocol import Prepared
from duewheel.wheel.target_rules import Target

# A chunk has few rows that are larger (`chunk_bytes`).
_PARKED_BYTES_MAX = 64 * 1024

log = structlog.get_logger(__name__)


class Observer(Protocol):
    """Sees all rows on their way out, such as for traces; the shell injects it. Thread-safe."""

    def encoding(
        self, rows: Deliveries, groups: Sequence[Group]
    ) -> tuple[Deliveries, Committed | None]:
        """Gets the rows of a transaction, which may not come about, grouped by partition. Returns
        them, perhaps with other headers that are no larger, and a function to call once it is
        committed; None if none is needed.
        """
        ...


class Encoder:
    """The half of a publisher that comes before its transaction. Not thread-safe, but `prepare`
    may run in another thread.

    Attributes:
        copy_key: signs copies, by the progress that is published next; empty: they have no MAC.
    """

    def __init__(
        self,
        recall: TopicLookup,
        refused: Callable[[], frozenset[bytes]],
        dead_letter_topic: str,
        chance: random.Random,
        receipts: Receipts,
        paused: Callable[[], PausedTimers] = lambda: NONE_PAUSED,
        observer: Observer | None = None,
    ) -> None:
        """
        Args:
            recall: the known metadata of topics, however old; asks Kafka nothing. Any thread may
                call it.
            refused: the sources of the records that brokers have refused; likewise.
            chance: chooses partitions for rows without key and request.
            paused: the topics that are paused now.
        """
        self._recall, self._refused = recall, refused
        self._dead_letter_topic = dead_letter_topic
        self._chance = chance
        self._receipts = receipts
        self._paused = paused
        self._observer = observer
        self._letters = WaitingDeadLetters(dead_letter_topic)
        self.copy_key = b""

    @property
    def letters_wait(self) -> bool:
        """Whether the dead-letter topic took no writes when it was last needed."""
        return self._letters.wait

    def needed_topics(self, deliveries: Deliveries) -> set[str]:
        """The topics without whose metadata nothing can leave: rows for them cannot be parked, or
        parked rows go there.
        """
        bound = deliveries.dead_letter | deliveries.is_copy | deliveries.answer
        # A copy has more headers: the timer topic may refuse it, and the row become a dead letter.
        bound |= lengths(deliveries.key_value) + lengths(deliveries.headers) > _PARKED_BYTES_MAX
        own = [deliveries.targets[index] for index in {*deliveries.target[bound].tolist()}]
        sources = [topic for topic, _ in deliveries.source_partitions]
        receipts = [] if self._receipts.topic is None else [self._receipts.topic]
        return {self._dead_letter_topic, *own, *sources, *receipts}

    def prepare(self, deliveries: Deliveries, now_ms: int) -> Prepared:
        """Encodes the deliveries by known metadata, however old; not at all if some is missing.
        Parked rows wait from `now_ms`.
        """

        def recall(topics: Sequence[str]) -> Mapping[str, Target]:
            targets = self._recall(topics)
            if len(targets) < len(topics):
                raise LookupError("a topic without cached metadata")
            return targets

        try:
            return Prepared(deliveries, self._encode(deliveries, recall, now_ms))
        except Exception:  # noqa: BLE001 - `renew` encodes again, and raises it
            return Prepared(deliveries)

    def renew(self, prepared: Prepared, lookup: TopicLookup, now_ms: int) -> Prepared:
        """Encodes the deliveries unless they are encoded as `lookup`, which gives current metadata,
        demands now.

        Raises:
            Exception: whatever `lookup` raises, or `encode`.
        """
        deliveries, encoded = prepared.deliveries, prepared.encoded
        if encoded is None or not self._holds(encoded, lookup, now_ms):
            encoded = self._encode(deliveries, lookup, now_ms)
            prepared = replace(prepared, encoded=encoded)
        self._letters.note(encoded.used_targets.get(self._dead_letter_topic))
        return prepared

    def _holds(self, encoded: Encoded, lookup: TopicLookup, now_ms: int) -> bool:
        """Returns whether the rows would be encoded the same way now."""
        return (
            encoded.refused == self._refused()
            and encoded.copy_key == self.copy_key
            and encoded.paused == self._paused()
            and self._receipts.is_fresh(encoded.encoded_ms, now_ms)
            and lookup(list(encoded.used_targets)) == encoded.used_targets
        )

    def _encode(self, deliveries: Deliveries, lookup: TopicLookup, now_ms: int) -> Encoded:
        return encode(
            deliveries,
            lookup,
            self._refused(),
            self._dead_letter_topic,
            self._chance,
            now_ms,
            self.copy_key,
            self._receipts,
            self._paused(),
            self._observer,
        )


def encode(
    deliveries: Deliveries,
    lookup: TopicLookup,
    refused: frozenset[bytes],
    dead_letter_topic: str,
    chance: random.Random,
    now_ms: int,
    copy_key: bytes = b"",
    receipts: Receipts = NO_RECEIPTS,
    paused: PausedTimers = NONE_PAUSED,
    observer: Observer | None = None,
) -> Encoded:
    """Takes steps 1 to 5 of the module's head. No client, any thread.

    Raises:
        PublishDoubt, Exception: as `route`.
    """
    deliveries = receipts.with_lateness(deliveries, now_ms)
    routed = route(
        deliveries,
        lookup,
        refused,
        dead_letter_topic,
        now_ms,
        copy_key=copy_key,
        without_receipt=receipts.without_place,
        paused=paused,
    )
    used_targets = dict(routed.used_targets)
    rows, groups, order = grouped(routed.deliveries, used_targets, chance)
    on_commit = None
    if observer is not None:
        rows, on_commit = observer.encoding(rows, groups)
    rows = signed(rows, copy_key)
    limits = [used_targets[group.topic].batch_bytes for group in groups]
    parts, first = [], 0
    batches_of = split(rows, [group.end for group in groups], limits)
    for group, batches in zip(groups, batches_of, strict=True):
        codec = used_targets[group.topic].codec
        for batch in batches:
            source = rows.source[first].as_py() if batch.count == 1 else None
            parts.append(Part(group.topic, group.partition, batch, source, codec))
            first += batch.count
    destination: Int64 = np.repeat(np.arange(len(groups)), [g.end - g.first for g in groups])
    writes = Writes(order, destination)
    if receipts.topic is not None and len(delivered := receipts.rows(rows)):
        target = used_targets[receipts.topic]
        partition = receipt_partitions(rows, delivered, target)
        parts += receipt_parts(
            *(rows, groups, destination, delivered, partition), receipts.topic, target
        )
        writes = Writes(
            np.concatenate([order, order[delivered]]),
            np.concatenate([destination, len(groups) + partition]),
        )
    return Encoded(
        *(parts, writes, routed.aside, used_targets, refused, copy_key, now_ms, paused), on_commit
    )
