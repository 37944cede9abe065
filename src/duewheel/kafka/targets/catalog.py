"""Caches the metadata of target topics, fetched before a transaction begins.

Two requests cover all topics at once: partitions and rights; then the largest batch, whether a key
is required, how many replicas must be in sync, and whether a transaction survives the settings
(transaction_settings.py). Entries expire, sooner for missing topics and
those with partitions that take no writes: so a topic that is created later is noticed, and one that
never exists costs little. Users choose the names, so the number of entries is bounded, and so is
the number of names that a transaction waits for: the others are looked up beside it, in a thread,
and until then a name that was known keeps its old entry for a while, and rows of any other one are
parked.

Refused batches show limits that metadata does not. A refused batch of several records is encoded
again at half the size, until the bad record is alone in its batch; its source is then noted, and it
becomes a dead letter. Any other error for one partition, with none for the progress, means that the
partition takes no writes for now (unavailable_partitions.py): its rows are parked, or the chunk
would fail for ever.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

from kafka import KafkaAdminClient
from kafka.admin import ConfigResource
from kafka.errors import (
    InvalidProducerEpochError,
    InvalidRecordError,
    InvalidTopicError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    PolicyViolationError,
    ProducerFencedError,
    RecordListTooLargeError,
    RequestTimedOutError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)

from duewheel.errors import KafkaUnavailable
from duewheel.kafka.connect.clients import ClientSettings
from duewheel.kafka.connect.deadline import Deadline
from duewheel.kafka.limits import PublisherLimits
from duewheel.kafka.log.compression import Compression
from duewheel.kafka.targets.ttl_cache import TtlCache
from duewheel.kafka.targets.unavailable_partitions import UnavailablePartitions
from duewheel.kafka.topics.transaction_settings import NAMES as TIMESTAMP_SETTINGS
from duewheel.kafka.topics.transaction_settings import unsurvivable
from duewheel.schemas.batches import Deliveries, TopicPartition
from duewheel.schemas.name_patterns import may_name_topic
from duewheel.threads import beside
from duewheel.wheel.encoded import Reason, Target

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
_NO_SUCH_TOPIC = (UnknownTopicOrPartitionError.errno, InvalidTopicError.errno)
_NOT_AUTHORIZED = TopicAuthorizationFailedError.errno
_TOPICS_PER_REQUEST = 1_000  # bounds the size of an answer
# How many names of users a transaction waits for: some ten milliseconds.
LOOKUPS_MAX = 100
_WANTED_MAX = 10_000  # names that wait for a lookup beside the transactions
# Rows for it wait. It has every partition, so that no row's partition is called missing.
_UNRESOLVED = Target(2**31 - 1, 2**31 - 1, is_unknown=True)
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


@dataclass(frozen=True, slots=True)
class SentBatch:
    """A batch as it was sent, to interpret a refusal.

    Attributes:
        topic, partition: where to.
        size: bytes, header included.
        source: TIMER_SOURCE of its record if it holds one only, else None.
        is_whole: it cannot be divided: a refusal means that its partition takes no writes for now.
    """

    topic: str
    partition: int
    size: int
    source: bytes | None
    is_whole: bool = False


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
        """An empty catalog.

        Args:
            settings: of the cluster.
            limits: sizes of batches, and how long each kind of entry lives.
            note: as of UnavailablePartitions.
            compression: of deliveries; none by default.
        """
        self._settings = settings
        self._limits = limits
        self._compression = compression or Compression()
        self._failures = UnavailablePartitions(limits.verdict_s, note=note)
        self._cache: TtlCache[str, Target] = TtlCache()
        self._wanted: dict[str, None] = {}
        self._beside: Future[dict[str, Target]] | None = None
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
            admin: of the cluster.
            topics: to look up.
            deadline: for the call.
            needed: those that must be known now; None: all. Of the others it waits for LOOKUPS_MAX
                at most.

        Raises:
            KafkaUnavailable: no answer, or a topic without a leader just now.
        """
        self._take_answers()
        targets = {topic: self._cache.get(topic) for topic in topics}
        missing = [topic for topic, target in targets.items() if target is None]
        now, later = missing, list[str]()
        if needed is not None:
            optional = [topic for topic in missing if topic not in needed]
            later = optional[LOOKUPS_MAX:]
            now = [*(topic for topic in missing if topic in needed), *optional[:LOOKUPS_MAX]]
        unknown = iter(now)
        while some := list(itertools.islice(unknown, _TOPICS_PER_REQUEST)):
            for cache in (self._smaller, self._record_limit):
                cache.drop_expired()
            targets.update(self._fetch(admin, some, deadline))
        targets.update({topic: self._for_now(topic) for topic in later})
        self._start_lookup(admin, later)
        found = self._present(targets)
        for topic, target in found.items():
            if not target.is_unknown:
                self._failures.on_metadata(topic, target)
        return found

    def recall(self, topics: Iterable[str]) -> dict[str, Target]:
        """The targets of cached topics, expired or not; fetches nothing."""
        return self._present(
            {t: self._cache.get_stale(t) if may_name_topic(t) else _NONE_SUCH for t in topics}
        )

    def _for_now(self, topic: str) -> Target:
        """The entry of a topic that is looked up beside the transaction: a missing one may exist by
        now, and one that existed long ago may be deleted.
        """
        known = self._cache.get(topic, self._limits.target_age_s)
        return _UNRESOLVED if known is None or known.refusal else known

    def _take_answers(self) -> None:
        """Store the answers of the lookups beside the transactions, if they have come."""
        if self._beside is None or not self._beside.done():
            return
        answers, self._beside = self._beside, None
        if answers.exception() is None:  # otherwise each name is looked up when it is used again
            self._store(answers.result())

    def _start_lookup(self, admin: KafkaAdminClient, topics: Iterable[str]) -> None:
        """Look these names up in a thread, one request at a time."""
        self._wanted.update(dict.fromkeys(topics))
        while len(self._wanted) > _WANTED_MAX:
            self._wanted.popitem()
        if self._beside is None and self._wanted:
            some = list(itertools.islice(self._wanted, _TOPICS_PER_REQUEST))
            for topic in some:
                del self._wanted[topic]
            self._beside = beside("look up targets", lambda: self._classified(admin, some))

    def _classified(self, admin: KafkaAdminClient, topics: list[str]) -> dict[str, Target]:
        named = [topic for topic in topics if may_name_topic(topic)]
        found = self._describe(admin, named) if named else {}
        return {topic: found.get(topic, _NONE_SUCH) for topic in topics}

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

    def _fetch(
        self, admin: KafkaAdminClient, topics: list[str], deadline: Deadline
    ) -> dict[str, Target]:
        named = [topic for topic in topics if may_name_topic(topic)]
        targets = dict.fromkeys(topics, _NONE_SUCH)
        if named:
            found = self._settings.call(
                deadline, "look up topics", lambda: self._describe(admin, named)
            )
            self._store(found)
            targets.update(found)
        return targets

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
        self._wanted.clear()
        self._beside = None  # its client is closed

    def batch_bytes(self, topic: str, target: Target) -> int:
        """How large to make this topic's batches, in bytes."""
        return min(self._smaller.get(topic) or self._limits.batch_bytes, target.batch_bytes_max)

    def note_refusal(self, batch: SentBatch, error: Exception, *, alone: bool = False) -> bool:
        """Adapt to a refused batch; False if the error does not concern the batch.

        Args:
            batch: as it was sent.
            error: the broker's, or the client's after its last attempt.
            alone: whether only this partition failed; if the progress record failed by itself, too,
                the whole cluster may be down.
        """
        is_refusal = isinstance(error, _REFUSALS)
        if batch.is_whole or not is_refusal:
            if not (alone or is_refusal):
                return False
            self.mark_unavailable((batch.topic, batch.partition), type(error).__name__)
        elif batch.source is None:
            self._smaller.put(batch.topic, batch.size // 2, self._limits.target_age_s)
        elif isinstance(error, _TOO_LARGE):
            self._record_limit.put(batch.topic, batch.size - 1, self._limits.target_age_s)
            self._cache.pop(batch.topic)
        else:
            self.refused |= {batch.source}
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
        found = {row["name"]: row for row in admin.describe_topics(topics)}
        targets = {topic: self._classify(topic, found.get(topic, {})) for topic in topics}
        usable = [topic for topic, target in targets.items() if not target.refusal]
        resources = [ConfigResource("TOPIC", topic, list(_SETTINGS)) for topic in usable]
        if usable:
            configs = admin.describe_configs(resources, config_filter="all").get("topic", {})
            for topic in usable:
                rows = configs.get(topic, {}).items()
                config = {name: row["value"] for name, row in rows if row["value"] is not None}
                targets[topic] = self._limited(topic, targets[topic], config, found[topic])
        return targets

    def _classify(self, topic: str, row: dict[str, object]) -> Target:
        error = row.get("error_code", UnknownTopicOrPartitionError.errno)
        partitions = row.get("partitions")
        if error in _NO_SUCH_TOPIC or row.get("is_internal"):
            return _NONE_SUCH
        if error == _NOT_AUTHORIZED or not _may_write(row.get("authorized_operations")):
            return Target(0, 0, refusal=Reason.TARGET_NOT_AUTHORIZED)
        if error or not isinstance(partitions, list) or not partitions:
            raise KafkaUnavailable(
                f"Kafka at {self._settings.address}: topic {topic!r}: error {error}, no partitions"
            )
        topic_id = str(uuid.UUID(str(row["topic_id"])))
        return Target(len(partitions), self._limits.batch_bytes_max, topic_id=topic_id)

    def _limited(
        self, topic: str, target: Target, config: Mapping[str, str], row: Mapping[str, Any]
    ) -> Target:
        """The target with the limits of its configuration; without the right to read that, with
        the limits that refusals have shown.
        """
        bounds = [int(config[name]) for name in _BATCH_BOUNDS if name in config]
        limit = min(bounds, default=self._limits.batch_bytes_max)
        closed_by = "=".join(unsurvivable(config) or ())
        in_sync_min = int(config.get("min.insync.replicas", 1))
        record_bytes_max = self._record_limit.get(topic) or self._limits.batch_bytes_max
        return replace(
            target,
            batch_bytes_max=min(limit, record_bytes_max, self._limits.batch_bytes_max),
            key_required="compact" in config.get("cleanup.policy", ""),
            unavailable=frozenset(
                partition["partition_index"]
                for partition in row["partitions"]
                if closed_by or not _takes_writes(partition, in_sync_min)
            ),
            closed_by=closed_by,
        )


def _takes_writes(partition: Mapping[str, Any], in_sync_min: int) -> bool:
    """Whether it has a leader and enough replicas in sync. The minimum is capped at the number of
    replicas; a broker that insists on more refuses the batch.
    """
    in_sync, replicas = len(partition["isr_nodes"]), len(partition["replica_nodes"])
    return partition["leader_id"] >= 0 and in_sync >= min(in_sync_min, replicas)


def _may_write(operations: object) -> bool:
    """Whether the broker's list of rights includes writing; an old broker sends none."""
    if not isinstance(operations, list) or not operations:
        return True
    return not {"WRITE", "ALL"}.isdisjoint(map(str, operations))
