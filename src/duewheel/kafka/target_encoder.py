"""Encodes deliveries by their targets' cached metadata; again if the metadata has changed."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import numpy as np
import structlog

from duewheel.kafka.batch_encoder import encode
from duewheel.kafka.compression import Compression
from duewheel.kafka.receipts import Receipts
from duewheel.kafka.target_metadata import TargetCatalog
from duewheel.schemas.batches import Deliveries
from duewheel.schemas.columns import lengths
from duewheel.wheel.dequeue.routing import TopicLookup
from duewheel.wheel.encoded import Encoded, EncodingTarget, Target
from duewheel.wheel.publisher_protocol import Prepared

# A chunk has few rows that are larger (`chunk_bytes`).
_PARKED_BYTES_MAX = 64 * 1024

log = structlog.get_logger(__name__)


class TargetEncoder:
    """The half of a publisher that comes before its transaction. Not thread-safe, but `prepare`
    may run in another thread.

    Attributes:
        letters_wait: whether the dead-letter topic took no writes when it was last needed.
        copy_key: of the MACs of copies, by the progress that was published last; empty: none.
    """

    def __init__(
        self,
        catalog: TargetCatalog,
        dead_letter_topic: str,
        chance: random.Random,
        compression: Compression,
        receipts: Receipts,
    ) -> None:
        """
        Args:
            catalog: of the targets.
            dead_letter_topic: where unpublishable rows go.
            chance: chooses partitions for rows without key and request.
            compression: of deliveries, and of receipts.
            receipts: which deliveries have one, or a header with their lateness.
        """
        self._catalog = catalog
        self._dead_letter_topic = dead_letter_topic
        self._chance = chance
        self._compression = compression
        self._receipts = receipts
        self.letters_wait = False
        self.copy_key = b""

    def encoding_targets(self, targets: Mapping[str, Target]) -> Mapping[str, EncodingTarget]:
        """The targets with their batch sizes and codecs."""
        return {
            topic: EncodingTarget(
                target, self._catalog.batch_bytes(topic, target), self._compression.of(topic)
            )
            for topic, target in targets.items()
        }

    def needed_topics(self, deliveries: Deliveries) -> set[str]:
        """The topics without whose metadata nothing can leave: rows for them cannot be parked, or
        parked rows go there.
        """
        bound = deliveries.dead_letter | deliveries.is_copy | deliveries.answer
        # A copy has more headers: the timer topic may refuse it, and the row become a dead letter.
        bound |= lengths(deliveries.key_value) + lengths(deliveries.headers) > _PARKED_BYTES_MAX
        own = [deliveries.targets[index] for index in np.unique(deliveries.target[bound]).tolist()]
        sources = [topic for topic, _ in deliveries.source_partitions]
        receipts = [] if self._receipts.topic is None else [self._receipts.topic]
        return {self._dead_letter_topic, *own, *sources, *receipts}

    def prepare(self, deliveries: Deliveries, now_ms: int) -> Prepared:
        """Encode the deliveries by cached metadata, however old; not at all if some is missing.

        Args:
            deliveries: the rows.
            now_ms: from which parked rows wait.
        """

        def recall(topics: Sequence[str]) -> Mapping[str, EncodingTarget]:
            targets = self._catalog.recall(topics)
            if len(targets) < len(topics):
                raise LookupError("a topic without cached metadata")
            return self.encoding_targets(targets)

        try:
            return Prepared(deliveries, self._encode(deliveries, recall, now_ms))
        except Exception:  # noqa: BLE001 - `publish` encodes again, and raises it
            return Prepared(deliveries)

    def encoded(self, prepared: Prepared, lookup: TopicLookup, now_ms: int) -> Encoded:
        """The deliveries as they must be encoded now.

        Args:
            prepared: perhaps encoded already, perhaps by old metadata.
            lookup: gives current metadata.
            now_ms: from which parked rows wait.

        Raises:
            Exception: whatever `lookup` or `encode` raises.
        """
        deliveries, encoded = prepared.deliveries, prepared.encoded
        if encoded is None or not self._holds(encoded, lookup, now_ms):
            encoded = self._encode(deliveries, lookup, now_ms)
        if encoded.aside.reasons:
            log.warning("rows became dead letters", **encoded.aside.reasons)
        self._note_dead_letters(encoded.used_targets.get(self._dead_letter_topic))
        return encoded

    def _note_dead_letters(self, letters: EncodingTarget | None) -> None:
        """Note whether the dead-letter topic takes dead letters; log a change once."""
        if letters is None or letters.target.takes_letters != self.letters_wait:
            return
        self.letters_wait = not letters.target.takes_letters
        topic, refusal = self._dead_letter_topic, letters.target.refusal
        reason = "it is compacted" if letters.target.key_required else "no partition takes writes"
        if self.letters_wait:
            log.error(
                "the dead-letter topic takes nothing: dead letters wait in their timer topics",
                topic=topic,
                reason=refusal.name.lower() if refusal else reason,
                remedy="`duewheel doctor` shows its required settings, `duewheel init` creates it",
            )
        else:
            log.info("the dead-letter topic takes dead letters again", topic=topic)

    def _holds(self, encoded: Encoded, lookup: TopicLookup, now_ms: int) -> bool:
        """Whether the rows would be encoded the same way now."""
        return (
            encoded.refused == self._catalog.refused
            and encoded.copy_key == self.copy_key
            and self._receipts.is_fresh(encoded.encoded_ms, now_ms)
            and lookup(list(encoded.used_targets)) == encoded.used_targets
        )

    def _encode(self, deliveries: Deliveries, lookup: TopicLookup, now_ms: int) -> Encoded:
        return encode(
            deliveries,
            lookup,
            self._catalog.refused,
            self._dead_letter_topic,
            self._chance,
            now_ms,
            self.copy_key,
            self._receipts,
        )
