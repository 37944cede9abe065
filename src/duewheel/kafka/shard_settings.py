"""Derives from a shard's settings: its partitions, its transactional id, its time limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from duewheel.checkpoints.commit_and_close_pages import Marks
from duewheel.checkpoints.progress import shard_of
from duewheel.config.keys_and_defaults import ShardSection
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError
from duewheel.kafka.transaction_limits import TransactionLimits
from duewheel.schemas.batches import TopicPartition


def owns(shard: ShardSection, partition: TopicPartition) -> bool:
    """Whether a timer partition is this shard's."""
    return shard_of(partition, shard.count) == shard.index


def own(settings: Settings, offsets: Marks) -> dict[TopicPartition, int]:
    """The offsets of this shard's timer partitions.

    Raises:
        ConfigError: no partition is this shard's.
    """
    shard = settings.shard
    mine = {p: o for p, o in offsets.items() if owns(shard, p)}
    if offsets and not mine:
        counts = Counter(topic for topic, _ in offsets)
        partitions = ", ".join(f"{topic} has {count}" for topic, count in sorted(counts.items()))
        raise ConfigError(
            f"shard {shard.index} of {shard.count} has no timer partition: {partitions}"
        )
    return mine


def own_counts(settings: Settings, counts: Mapping[str, int]) -> dict[str, int]:
    """How many of each topic's partitions are this shard's."""
    return {t: sum(owns(settings.shard, (t, n)) for n in range(c)) for t, c in counts.items()}


def publisher_limits(settings: Settings) -> TransactionLimits:
    """Time limits of transactions."""
    timeout_ms = settings.dequeue.transaction_timeout_ms
    return TransactionLimits(
        publish_deadline_s=settings.dequeue.call_deadline.total_seconds(),
        transaction_timeout_ms=timeout_ms,
        # A dead transaction of `reshard` may hide the progress for as long as its time-out.
        start_deadline_s=2 * timeout_ms / 1000,
    )


def transactional_id(settings: Settings, shard: int | None = None) -> str:
    """The id under which a shard delivers: the last instance to open it owns the shard."""
    return f"{settings.app.id}.dequeue.{settings.shard.index if shard is None else shard}"
