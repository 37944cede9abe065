"""A publisher that writes to topics in memory, routed and encoded as for Kafka."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from duewheel import factory
from duewheel.checkpoints.progress import Progress
from duewheel.config.settings import Settings
from duewheel.schemas.batches import Deliveries, TopicPartition
from duewheel.testing.clock import ManualClock
from duewheel.testing.memory_cluster import PARTITIONS, MemoryCluster
from duewheel.wheel.dequeue.encoder import encode
from duewheel.wheel.publisher_protocol import Prepared, PublishAttempt
from duewheel.wheel.target_rules import Target

_BATCH_BYTES = 1 << 20  # the default of Kafka's topics


class MemoryPublisher:
    """Writes each transaction to the cluster; its targets always take writes. It has the newest
    progress only.
    """

    def __init__(self, cluster: MemoryCluster, clock: ManualClock, settings: Settings) -> None:
        self.letters_wait = False
        self._cluster, self._clock = cluster, clock
        self._progress: Progress | None = None
        self._dead_letter_topic = settings.dead_letter_topic
        self._receipts = factory.receipts(settings)
        self._chance = random.Random(0)

    def peek(self) -> Progress | None:
        return self._progress

    def age_ms(self) -> int:
        return 0

    def start(self) -> Progress | None:
        return self._progress

    def prepare(self, deliveries: Deliveries) -> Prepared:
        return Prepared(deliveries)

    def renew(self, prepared: Prepared, progress: Progress) -> Prepared:
        return prepared

    def close(self) -> None:
        pass

    def log_ends(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        return {partition: self._cluster.end(partition) for partition in partitions}

    def compose(self, prepared: Prepared | None, progress: Progress) -> PublishAttempt:
        if prepared is None or not len(prepared.deliveries):
            return PublishAttempt(progress, prepared)
        encoded = encode(
            prepared.deliveries,
            self._targets,
            frozenset(),
            self._dead_letter_topic,
            self._chance,
            self._clock.now_ms(),
            progress.epochs.newest.signing_key,
            self._receipts,
        )
        return PublishAttempt(progress, prepared, encoded.parts, aside=encoded.aside)

    def publish(self, attempt: PublishAttempt) -> int:
        for part in attempt.parts:
            place = (part.topic, part.partition)
            self._cluster.write(place, part.batch, self._clock.true_ms)
        # Encoded and decoded: a read must return the written value.
        self._progress = Progress.decode(attempt.progress.encode())
        return self._clock.true_ms

    def _targets(self, topics: Sequence[str]) -> Mapping[str, Target]:
        return dict.fromkeys(topics, Target(PARTITIONS, _BATCH_BYTES, batch_bytes=_BATCH_BYTES))
