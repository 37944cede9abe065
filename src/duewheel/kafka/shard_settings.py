"""What a shard's settings mean in Kafka: its partitions, its transactional id, how long its
transactions may take.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from duewheel.checkpoints.page_codec import Marks
from duewheel.checkpoints.progress import shard_of
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError
from duewheel.kafka.publisher_limits import PublisherLimits
from duewheel.schemas.batches import TopicPartition


def own(settings: Settings, offsets: Marks) -> dict[TopicPartition, int]:
    """Those of the timer partitions that are this shard's.

    Raises:
        ConfigError: there are partitions, and none is.
    """
    shard = settings.shard
    mine = {p: o for p, o in offsets.items() if shard_of(p, shard.count) == shard.index}
    if offsets and not mine:
        counts = Counter(topic for topic, _ in offsets)
        partitions = ", ".join(f"{topic} has {count}" for topic, count in sorted(counts.items()))
        raise ConfigError(
            f"shard {shard.index} of {shard.count} has no timer partition: {partitions}"
        )
    return mine


def own_counts(settings: Settings, counts: Mapping[str, int]) -> dict[str, int]:
    """How many partitions of each topic are this shard's, of so many."""
    index, shards = settings.shard.index, settings.shard.count
    return {t: sum(shard_of((t, n), shards) == index for n in range(c)) for t, c in counts.items()}


def publisher_limits(settings: Settings) -> PublisherLimits:
    """How long transactions may take."""
    timeout_ms = settings.dequeue.transaction_timeout_ms
    return PublisherLimits(
        publish_deadline_s=settings.dequeue.call_deadline.total_seconds(),
        transaction_timeout_ms=timeout_ms,
        # A dead transaction of `reshard` may hide the progress for as long as its time-out.
        start_deadline_s=2 * timeout_ms / 1000,
    )


def transactional_id(settings: Settings, shard: int | None = None) -> str:
    """The one under which the shard, or another one, delivers: who opens it last owns the shard."""
    return f"{settings.app.id}.dequeue.{settings.shard.index if shard is None else shard}"
