"""Caches the metadata of target topics, fetched before a transaction begins.

Two requests cover all topics at once: partitions and rights; then the largest batch, whether a key
is required, how many replicas must be in sync, and whether a transaction survives the settings
(transaction_settings.py). A third one finds partitions of new topics that brokers have not made yet
(new_partitions.py). Entries expire, sooner for missing topics and those with partitions that take
no writes: so a topic that is created later is noticed, and one that never exists costs little.
Users choose the names. So the number of entries is bounded, and names that take no record have a
cache of their own: they displace no topic. A transaction waits for some names only, those of topics
that were known first, and for others a tenth of the time at most. The rest is looked up in a thread
(background_lookups.py); until then a name that was known keeps its old entry for a while, and rows
of any other one are parked.

Refused batches show limits that metadata does not. A refused batch of several records is encoded
again at half the size, until the bad record is alone in its batch; its source is then noted, and it
becomes a dead letter. Any other error for one partition, with none for the progress, means that the
partition takes no writes for now (unavailable_partitions.py): its rows are parked, or the chunk
would fail for ever.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial

from kafka import KafkaAdminClient

from duewheel.errors import ConfigError, KafkaUnavailable
from duewheel.kafka.connect.clients import KafkaClients
from duewheel.kafka.connect.deadline import Deadline
from duewheel.kafka.log.compression import Compression
from duewheel.kafka.targets.background_lookups import BackgroundLookups, for_now
from duewheel.kafka.targets.costly_targets import NAMES as COSTLY_SETTINGS
from duewheel.kafka.targets.costly_targets import CostlyLog, costly_by
from duewheel.kafka.targets.new_partitions import without_logs
from duewheel.kafka.targets.rest import Rest
from duewheel.kafka.targets.ttl_cache import TtlCache
from duewheel.kafka.targets.unavailable_partitions import UnavailablePartitions, takes_writes
from duewheel.kafka.topics.description import (
    TOPICS_PER_REQUEST,
    Topic,
    TopicSettings,
    describe,
    describe_settings,
)
from duewheel.kafka.topics.transaction_settings import NAMES as TIMESTAMP_SETTINGS
from duewheel.kafka.topics.transaction_settings import unsurvivable
from duewheel.kafka.transaction_errors import REFUSED, TOO_LARGE
from duewheel.kafka.transaction_limits import TransactionLimits
from duewheel.schemas.batches import Deliveries, TopicPartition
from duewheel.schemas.name_patterns import may_name_topic
from duewheel.schemas.wire.batch_header import HEADER_BYTES
from duewheel.wheel.encoded import Part
from duewheel.wheel.target_rules import Reason, Target, reason_text

# How many names of users a transaction waits for: some ten milliseconds.
LOOKUPS_MAX = 100
# The settings that are read of each target.
_BATCH_BOUNDS = ("max.message.bytes", "segment.bytes")
_SETTINGS = (
    *_BATCH_BOUNDS,
    "cleanup.policy",
    "min.insync.replicas",
    *TIMESTAMP_SETTINGS,
    *COSTLY_SETTINGS,
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
        clients: KafkaClients,
        limits: TransactionLimits,
        note: Callable[[Mapping[str, str]], None] = lambda _: None,
        compression: Compression | None = None,
    ) -> None:
        self._clients = clients
        self._limits = limits
        self._compression = compression or Compression()
        self._failures = UnavailablePartitions(limits.verdict_s, note=note)
        self._cache: TtlCache[str, Target] = TtlCache()  # topics that take records
        self._refusing: TtlCache[str, Target] = TtlCache()
        self._costly_log = CostlyLog()
        self._rest_of_new = Rest()  # from waits for names that were not known
        self._background = BackgroundLookups()
        self._complete: TtlCache[str, tuple[str, int]] = TtlCache()  # all partitions have logs
        self._smaller: TtlCache[str, int] = TtlCache()  # bytes of a batch
        self._record_limit: TtlCache[str, int] = TtlCache()
        self._closed: Mapping[str, str] = {}  # replaced as a whole
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
                at most, and of these for names that were not known only now and then.

        Raises:
            KafkaUnavailable: no answer, or a topic without a leader just now.
        """
        self._store(self._background.take())
        targets = {topic: self._cached(topic) for topic in topics}
        missing = [topic for topic, target in targets.items() if target is None]
        needed = set(missing if needed is None else needed)
        now, later = self._now_and_later(missing, needed)
        began_s = time.monotonic()
        has_new = any(not self._cache.get_stale(topic) for topic in now if topic not in needed)
        for first in range(0, len(now), TOPICS_PER_REQUEST):
            targets.update(self._fetch(admin, now[first : first + TOPICS_PER_REQUEST], deadline))
        if has_new:
            # A producer that invents names would otherwise hold up each transaction.
            self._rest_of_new.note_duration(time.monotonic() - began_s)
        grace_s = self._limits.target_age_s  # one that existed long ago may be deleted
        targets.update({topic: for_now(self._cache.get(topic, grace_s)) for topic in later})
        self._background.add(later, partial(self._describe, admin))
        found = self._present(targets)
        self._failures.on_metadata(found)
        return found

    def _now_and_later(
        self, missing: Iterable[str], needed: Collection[str]
    ) -> tuple[list[str], list[str]]:
        """Divides names into those that a transaction waits for, and the others."""
        first, known, new = list[str](), list[str](), list[str]()
        for topic in missing:
            rank = first if topic in needed else known if self._cache.get_stale(topic) else new
            rank.append(topic)
        if self._rest_of_new.goes_on:
            return [*first, *known[:LOOKUPS_MAX]], [*known[LOOKUPS_MAX:], *new]
        optional = [*known, *new]
        return [*first, *optional[:LOOKUPS_MAX]], optional[LOOKUPS_MAX:]

    def _fetch(
        self, admin: KafkaAdminClient, topics: list[str], deadline: Deadline
    ) -> dict[str, Target]:
        for cache in (self._smaller, self._record_limit):
            cache.drop_expired()
        describe_all = partial(self._describe, admin, topics)
        answers = self._clients.call(deadline, "look up topics", describe_all)
        self._store(answers)
        return answers

    def existing(
        self, admin: KafkaAdminClient, topics: Iterable[str], deadline: Deadline
    ) -> dict[str, Target]:
        """As `resolve`.

        Raises:
            ConfigError: one of them takes no records.
        """
        targets = self.resolve(admin, topics, deadline)
        for topic, target in targets.items():
            if target.refusal is not Reason.NONE:
                why = reason_text(target.refusal, topic, target)
                raise ConfigError(
                    f"Kafka at {self._clients.address}: {why}: `duewheel init` creates what is "
                    "missing"
                )
        return targets

    def recall(self, topics: Iterable[str]) -> dict[str, Target]:
        """The targets of cached topics, expired or not; fetches nothing."""
        return self._present(
            {
                t: (self._cache.get_stale(t) or self._refusing.get_stale(t))
                if may_name_topic(t)
                else _NONE_SUCH
                for t in topics
            }
        )

    def _cached(self, topic: str) -> Target | None:
        if not may_name_topic(topic):
            return _NONE_SUCH
        return self._cache.get(topic) or self._refusing.get(topic)

    def _present(self, targets: Mapping[str, Target | None]) -> dict[str, Target]:
        """The known targets, with the partitions that have failed, and as they are now."""
        return {
            t: self._failures.with_failures(t, self._as_now(t, target))
            for t, target in targets.items()
            if target
        }

    def close_topics(self, why: Mapping[str, str]) -> None:
        """All partitions of these topics take no writes from now on, and of no others."""
        self._closed = why

    def _as_now(self, topic: str, target: Target) -> Target:
        if topic in self._closed and not target.is_unknown:
            every = frozenset(range(target.partitions))
            target = replace(target, unavailable=every, closed_by=self._closed[topic])
        codec, size = self._compression.of(topic), self.batch_bytes(topic, target)
        if (target.batch_bytes, target.codec) == (size, codec):
            return target
        return replace(target, batch_bytes=size, codec=codec)

    def _store(self, targets: Mapping[str, Target]) -> None:
        self._costly_log.log_new(targets)
        for topic, target in targets.items():
            into, other = self._cache, self._refusing
            if target.refusal:
                into, other = other, into
            into.put(topic, target, self._ttl_s(target))
            other.pop(topic)
            if not (target.refusal or target.unavailable):
                self._complete.put(topic, target.identity, math.inf)

    def _ttl_s(self, target: Target) -> float:
        if target.refusal:
            return self._limits.missing_target_age_s
        limits = self._limits
        return limits.unavailable_target_age_s if target.unavailable else limits.target_age_s

    def forget(self) -> None:
        """Drops all metadata; limits that refusals have shown are kept."""
        self._cache.clear()
        self._refusing.clear()
        self._background.forget()
        self._rest_of_new.end()  # all names are new now: rows of each would be parked

    def batch_bytes(self, topic: str, target: Target) -> int:
        """How large to make this topic's batches, in bytes."""
        return min(self._smaller.get(topic) or self._limits.batch_bytes, target.batch_bytes_max)

    def has_failed(self, sent: Part) -> bool:
        """Whether its partition has failed before, and has taken no write since."""
        return self._failures.has_failed((sent.topic, sent.partition))

    def note_refusal(self, sent: Part, error: Exception, *, alone: bool = False) -> bool:
        """Adapts to a refused batch; False if the error does not concern the batch.

        Args:
            error: the broker's, or the client's after its last attempt.
            alone: whether only this partition failed; if the progress record failed by itself, too,
                the whole cluster may be down.
        """
        is_refusal = isinstance(error, REFUSED)
        if is_refusal and not sent.is_whole:
            self._note_limit(sent, error)
        elif is_refusal or alone:
            self.mark_unavailable((sent.topic, sent.partition), type(error).__name__)
        else:
            return False
        return True

    def _note_limit(self, sent: Part, error: Exception) -> None:
        """Has the batch encoded again in halves, or its single record become a dead letter."""
        size, age_s = HEADER_BYTES + sent.batch.plain_bytes, self._limits.target_age_s
        if sent.source is None:
            self._smaller.put(sent.topic, size // 2, age_s)
        elif isinstance(error, TOO_LARGE):
            self._record_limit.put(sent.topic, size - 1, age_s)
            self._cache.pop(sent.topic)
        else:
            self.refused |= {sent.source}

    def mark_unavailable(self, partition: TopicPartition, why: str) -> None:
        """A transaction failed because of this partition while others were acknowledged."""
        self._failures.note_failure(partition, why)

    def settle(self, deliveries: Deliveries | None, partitions: Iterable[TopicPartition]) -> None:
        """These rows are published: drop the refusals of their sources, and the failures of their
        partitions.
        """
        self._failures.note_success(partitions)
        if self.refused and deliveries is not None:
            self.refused = self.refused.difference(deliveries.source.to_pylist())

    def _describe(self, admin: KafkaAdminClient, topics: list[str]) -> dict[str, Target]:
        found = describe(admin, topics)
        targets = {topic: self._classified(found.get(topic)) for topic in topics}
        usable = [topic for topic, target in targets.items() if not target.refusal]
        config = describe_settings(admin, usable, _SETTINGS)
        targets |= {
            topic: self._limited(targets[topic], found[topic], config.get(topic, TopicSettings()))
            for topic in usable
        }
        new = {t: targets[t] for t in usable if self._complete.get(t) != targets[t].identity}
        return targets | without_logs(self._clients, new)

    def _classified(self, topic: Topic | None) -> Target:
        if topic is None or topic.is_absent or topic.is_internal:
            return _NONE_SUCH
        # An old broker lists no rights.
        if topic.is_forbidden or (topic.rights and topic.rights.isdisjoint({"WRITE", "ALL"})):
            return Target(0, 0, refusal=Reason.TARGET_NOT_AUTHORIZED)
        if not topic.exists or not topic.partitions:
            raise KafkaUnavailable(
                f"Kafka at {self._clients.address}: topic {topic.name!r}: "
                f"error {topic.error_code}, no partitions"
            )
        return Target(len(topic.partitions), self._limits.batch_bytes_max, topic_id=topic.id)

    def _limited(self, target: Target, topic: Topic, settings: TopicSettings) -> Target:
        """The target with the limits of its configuration; without the right to read that, with
        the limits that refusals have shown.
        """
        config = settings.values
        bounds = [int(config[name]) for name in _BATCH_BOUNDS if name in config]
        bounds.append(self._record_limit.get(topic.name) or self._limits.batch_bytes_max)
        found = unsurvivable(config)
        closed_by = f"{found.name}={found.value}" if found else ""
        in_sync_min = int(config.get("min.insync.replicas", 1))
        return replace(
            target,
            batch_bytes_max=min(*bounds, self._limits.batch_bytes_max),
            key_required="compact" in config.get("cleanup.policy", ""),
            unavailable=frozenset(
                each.number
                for each in topic.partitions
                if closed_by or not takes_writes(each, in_sync_min)
            ),
            closed_by=closed_by,
            costly_by=costly_by(settings),
        )
