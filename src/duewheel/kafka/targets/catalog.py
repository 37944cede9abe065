"""Caches the metadata of target topics, fetched before a transaction begins.

Two requests cover all topics at once: partitions and rights; then the largest batch, whether a key
is required, how many replicas must be in sync, and whether a transaction survives the settings
(transaction_settings.py). Entries expire, sooner for missing topics and those with partitions that
take no writes: so a topic that is created later is noticed, and one that never exists costs little.
Users choose the names, so the number of entries is bounded, and so is the number of names that a
transaction waits for: the others are looked up in a thread (background_lookups.py), and until then
a name that was known keeps its old entry for a while, and rows of any other one are parked.

Refused batches show limits that metadata does not. A refused batch of several records is encoded
again at half the size, until the bad record is alone in its batch; its source is then noted, and it
becomes a dead letter. Any other error for one partition, with none for the progress, means that the
partition takes no writes for now (unavailable_partitions.py): its rows are parked, or the chunk
would fail for ever.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial

from kafka import KafkaAdminClient
from kafka.errors import (
    InvalidProducerEpochError,
    InvalidRecordError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    PolicyViolationError,
    ProducerFencedError,
    RecordListTooLargeError,
    RequestTimedOutError,
)

from duewheel.errors import KafkaUnavailable
from duewheel.kafka.connect.clients import ClientSettings
from duewheel.kafka.connect.deadline import Deadline
from duewheel.kafka.limits import PublisherLimits
from duewheel.kafka.log.compression import Compression
from duewheel.kafka.targets.background_lookups import BackgroundLookups, for_now
from duewheel.kafka.targets.ttl_cache import TtlCache
from duewheel.kafka.targets.unavailable_partitions import UnavailablePartitions
from duewheel.kafka.topics.description import (
    TOPICS_PER_REQUEST,
    Partition,
    Topic,
    describe,
    read_settings,
)
from duewheel.kafka.topics.transaction_settings import NAMES as TIMESTAMP_SETTINGS
from duewheel.kafka.topics.transaction_settings import unsurvivable
from duewheel.schemas.batches import Deliveries, TopicPartition
from duewheel.schemas.name_patterns import may_name_topic
from duewheel.schemas.wire.batch_header import HEADER_BYTES
from duewheel.wheel.encoded import Part, Reason, Target

_TOO_LARGE = (MessageSizeTooLargeError, RecordListTooLargeError)
# Refusals of a batch's content. A refused timestamp is not one: a clock is wrong, not the record.
_REFUSALS = (*_TOO_LARGE, InvalidRecordError, PolicyViolationError)
# No answer, or another producer has taken the id: nothing is wrong with this partition unless the
# progress record was acknowledged.
NO_VERDICT = (
    InvalidProducerEpochError,
    KafkaTimeoutError,
    ProducerFencedError,
    RequestTimedOutError,
)
# How many names of users a transaction waits for: some ten milliseconds.
LOOKUPS_MAX = 100
# The settings that are read of each target.
_BATCH_BOUNDS = ("max.message.bytes", "segment.bytes")
_SETTINGS = (
    *_BATCH_BOUNDS,
    "cleanup.policy",
    "min.insync.replicas",
    *TIMESTAMP_SETTINGS,
)
# Also for names that no topic can have, without a request: over a name of more than 32 KiB a broker
# drops the connection instead of refusing it.
_NONE_SUCH = Target(0, 0, refusal=Reason.UNKNOWN_TARGET_TOPIC)


class TargetCatalog:
    """Targets by topic, cached.

    The publisher's thread owns it. Any thread may use `recall`, `batch_bytes` and `refused`: each
    reads one entry at a time, or a set that is never changed.

    Example:
        targets = catalog.resolve(admin, ["orders", "nowhere"], deadline)
        targets["nowhere"].refusal          # Reason.UNKNOWN_TARGET_TOPIC
    """

    def __init__(
        self,
        settings: ClientSettings,
        limits: PublisherLimits,
        note: Callable[[Mapping[str, str]], None] = lambda _: None,
        compression: Compression | None = None,
    ) -> None:
        self._settings = settings
        self._limits = limits
        self._compression = compression or Compression()
        self._failures = UnavailablePartitions(limits.verdict_s, note=note)
        self._cache: TtlCache[str, Target] = TtlCache()
        self._background = BackgroundLookups()
        self._smaller: TtlCache[str, int] = TtlCache()  # bytes of a batch
        self._record_limit: TtlCache[str, int] = TtlCache()
        self.refused: frozenset[bytes] = frozenset()

    def resolve(
        self,
        admin: KafkaAdminClient,
        topics: Iterable[str],
        deadline: Deadline,
        needed: Collection[str] | None = None,
    ) -> dict[str, Target]:
        """The target of each topic; missing and expired ones are fetched.

        Args:
            needed: those that must be known now; None: all. Of the others it waits for LOOKUPS_MAX
                at most.

        Raises:
            KafkaUnavailable: no answer, or a topic without a leader just now.
        """
        self._store(self._background.take())
        targets = {
            topic: self._cache.get(topic) if may_name_topic(topic) else _NONE_SUCH
            for topic in topics
        }
        missing = [topic for topic, target in targets.items() if target is None]
        now, later = missing, list[str]()
        if needed is not None:
            optional = [topic for topic in missing if topic not in needed]
            later = optional[LOOKUPS_MAX:]
            now = [*(topic for topic in missing if topic in needed), *optional[:LOOKUPS_MAX]]
        unknown = iter(now)
        while some := list(itertools.islice(unknown, TOPICS_PER_REQUEST)):
            for cache in (self._smaller, self._record_limit):
                cache.drop_expired()
            answers = self._settings.call(
                deadline, "look up topics", partial(self._describe, admin, some)
            )
            self._store(answers)
            targets.update(answers)
        grace_s = self._limits.target_age_s  # one that existed long ago may be deleted
        targets.update({topic: for_now(self._cache.get(topic, grace_s)) for topic in later})
        self._background.add(later, partial(self._describe, admin))
        found = self._present(targets)
        self._failures.on_metadata(found)
        return found

    def recall(self, topics: Iterable[str]) -> dict[str, Target]:
        """The targets of cached topics, expired or not; fetches nothing."""
        return self._present(
            {t: self._cache.get_stale(t) if may_name_topic(t) else _NONE_SUCH for t in topics}
        )

    def _present(self, targets: Mapping[str, Target | None]) -> dict[str, Target]:
        """The known targets, with the partitions that have failed and the size of batches now."""
        return {
            t: self._failures.with_failures(t, self._sized(t, target))
            for t, target in targets.items()
            if target
        }

    def _sized(self, topic: str, target: Target) -> Target:
        codec, size = self._compression.of(topic), self.batch_bytes(topic, target)
        if (target.batch_bytes, target.codec) == (size, codec):
            return target
        return replace(target, batch_bytes=size, codec=codec)

    def _store(self, targets: Mapping[str, Target]) -> None:
        for topic, target in targets.items():
            self._cache.put(topic, self._sized(topic, target), self._ttl_s(target))

    def _ttl_s(self, target: Target) -> float:
        if target.refusal:
            return self._limits.missing_target_age_s
        return (
            self._limits.unavailable_target_age_s
            if target.unavailable
            else self._limits.target_age_s
        )

    def forget(self) -> None:
        """Drop all metadata; limits that refusals have shown are kept."""
        self._cache.clear()
        self._background.forget()

    def batch_bytes(self, topic: str, target: Target) -> int:
        """How large to make this topic's batches, in bytes."""
        return min(self._smaller.get(topic) or self._limits.batch_bytes, target.batch_bytes_max)

    def note_refusal(self, sent: Part, error: Exception, *, alone: bool = False) -> bool:
        """Adapt to a refused batch; False if the error does not concern the batch.

        Args:
            error: the broker's, or the client's after its last attempt.
            alone: whether only this partition failed; if the progress record failed by itself, too,
                the whole cluster may be down.
        """
        is_refusal, size = isinstance(error, _REFUSALS), HEADER_BYTES + sent.batch.plain_bytes
        if sent.is_whole or not is_refusal:
            if not (alone or is_refusal):
                return False
            self.mark_unavailable((sent.topic, sent.partition), type(error).__name__)
        elif sent.source is None:
            self._smaller.put(sent.topic, size // 2, self._limits.target_age_s)
        elif isinstance(error, _TOO_LARGE):
            self._record_limit.put(sent.topic, size - 1, self._limits.target_age_s)
            self._cache.pop(sent.topic)
        else:
            self.refused |= {sent.source}
        return True

    def mark_unavailable(self, partition: TopicPartition, why: str) -> None:
        """A transaction failed because of this partition while others were acknowledged."""
        self._failures.failed(partition, why)

    def settle(self, deliveries: Deliveries | None, partitions: Iterable[TopicPartition]) -> None:
        """These rows are published: drop the refusals of their sources, and the failures of their
        partitions.
        """
        self._failures.succeeded(partitions)
        if self.refused and deliveries is not None:
            self.refused = self.refused.difference(deliveries.source.to_pylist())

    def _describe(self, admin: KafkaAdminClient, topics: list[str]) -> dict[str, Target]:
        found = describe(admin, topics)
        targets = {topic: self._classified(found.get(topic)) for topic in topics}
        usable = [topic for topic, target in targets.items() if not target.refusal]
        config = read_settings(admin, usable, _SETTINGS)
        return targets | {
            topic: self._limited(targets[topic], found[topic], config.get(topic, {}))
            for topic in usable
        }

    def _classified(self, topic: Topic | None) -> Target:
        if topic is None or topic.is_absent or topic.is_internal:
            return _NONE_SUCH
        # An old broker lists no rights.
        if topic.is_forbidden or (topic.rights and topic.rights.isdisjoint({"WRITE", "ALL"})):
            return Target(0, 0, refusal=Reason.TARGET_NOT_AUTHORIZED)
        if not topic.exists or not topic.partitions:
            raise KafkaUnavailable(
                f"Kafka at {self._settings.address}: topic {topic.name!r}: "
                f"error {topic.error_code}, no partitions"
            )
        return Target(len(topic.partitions), self._limits.batch_bytes_max, topic_id=topic.id)

    def _limited(self, target: Target, topic: Topic, config: Mapping[str, str]) -> Target:
        """The target with the limits of its configuration; without the right to read that, with
        the limits that refusals have shown.
        """
        bounds = [int(config[name]) for name in _BATCH_BOUNDS if name in config]
        bounds.append(self._record_limit.get(topic.name) or self._limits.batch_bytes_max)
        closed_by = "=".join(unsurvivable(config) or ())
        in_sync_min = int(config.get("min.insync.replicas", 1))
        return replace(
            target,
            batch_bytes_max=min(*bounds, self._limits.batch_bytes_max),
            key_required="compact" in config.get("cleanup.policy", ""),
            unavailable=frozenset(
                each.number
                for each in topic.partitions
                if closed_by or not _takes_writes(each, in_sync_min)
            ),
            closed_by=closed_by,
        )


def _takes_writes(partition: Partition, in_sync_min: int) -> bool:
    """Whether it has a leader and enough replicas in sync. The minimum is capped at the number of
    replicas; a broker that insists on more refuses the batch.
    """
    return partition.leader >= 0 and partition.in_sync >= min(in_sync_min, partition.replicas)
