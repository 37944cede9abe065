"""Caches the metadata of target topics, fetched before a transaction begins (describe_targets.py).

Entries expire, sooner for missing topics and those with partitions that take no writes: so a topic
that is created later is noticed, and one that never exists costs little. Users choose the names. So
the number of entries is bounded, and names that take no record have a cache of their own: they
displace no topic. A transaction waits for some names only, those of topics that were known first,
and for others a tenth of the time at most. The rest is looked up in a thread
(background_lookups.py); until then a name that was known keeps its old entry for a while, and rows
of any other one are parked.

Failed batches show more than metadata does: limits of a topic (refusal_limits.py), and partitions
that take no writes for now (unavailable_partitions.py). The writers of batches note both there, and
the targets contain them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial

from kafka import KafkaAdminClient

from duewheel.errors import Misconfigured
from duewheel.kafka.connect.clients import KafkaClients
from duewheel.kafka.connect.deadline import Deadline
from duewheel.kafka.log.compression import Compression
from duewheel.kafka.targets.background_lookups import BackgroundLookups, for_now
from duewheel.kafka.targets.costly_targets import CostlyLog
from duewheel.kafka.targets.describe_targets import NONE_SUCH, TargetDescriber
from duewheel.kafka.targets.refusal_limits import RefusalLimits
from duewheel.kafka.targets.ttl_cache import TtlCache
from duewheel.kafka.targets.unavailable_partitions import UnavailablePartitions
from duewheel.kafka.targets.work_rests import WorkRest
from duewheel.kafka.topics.description import requests_of
from duewheel.kafka.transaction_limits import TransactionLimits
from duewheel.schemas.name_patterns import may_name_topic
from duewheel.wheel.target_rules import Reason, Target, reason_text

# How many names of users a transaction waits for: some ten milliseconds.
LOOKUPS_MAX = 100
_AGE_S = 30.0  # for which metadata is cached
_MISSING_AGE_S = 10.0  # the same of a topic that does not exist
_MISSING_MAX = 100_000  # names, some 40 MB: answered before their rows come again

_Entry = Callable[[TtlCache[str, Target], str], Target | None]


class TargetCatalog:
    """Targets by topic, cached.

    One thread owns it. Any thread may use `recall`: it reads one entry at a time.

    Example:
        targets = catalog.resolve(admin, ["orders", "nowhere"], deadline)
        targets["nowhere"].refusal          # Reason.UNKNOWN_TARGET_TOPIC
    """

    def __init__(
        self,
        clients: KafkaClients,
        limits: TransactionLimits,
        unavailable: UnavailablePartitions,
        refusals: RefusalLimits,
        compression: Compression | None = None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clients = clients
        self._limits = limits
        self._unavailable, self._refusals = unavailable, refusals
        self._compression = compression or Compression()
        self._now_s = now_s
        self._usable: TtlCache[str, Target] = TtlCache(now_s=now_s)  # topics that take records
        self._unusable: TtlCache[str, Target] = TtlCache(_MISSING_MAX, now_s)
        self._costly_log = CostlyLog()
        self._rest_of_new = WorkRest(now_s)  # from waits for names that were not known
        self._background = BackgroundLookups()
        self._complete: TtlCache[str, tuple[str, int]] = TtlCache()  # all partitions have logs
        self._describer = TargetDescriber(
            clients, limits, refusals.record_bytes, self._is_complete, self._is_compressed
        )

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
        began_s = self._now_s()
        has_new = any(not self._usable.get_stale(topic) for topic in now if topic not in needed)
        for part in requests_of(now):
            targets.update(self._fetch(admin, part, deadline))
        if has_new:
            # A producer that invents names would otherwise hold up each transaction.
            self._rest_of_new.note_duration(self._now_s() - began_s)
        # With a bound: one that existed long ago may be deleted.
        targets.update({topic: for_now(self._usable.get(topic, _AGE_S)) for topic in later})
        self._background.add(later, partial(self._describer.describe, admin))
        found = self._present(targets)
        self._unavailable.on_metadata(found)
        return found

    def _now_and_later(
        self, missing: Iterable[str], needed: Collection[str]
    ) -> tuple[list[str], list[str]]:
        """Divides names into those that a transaction waits for, and the others."""
        first, known, new = list[str](), list[str](), list[str]()
        for topic in missing:
            rank = first if topic in needed else known if self._usable.get_stale(topic) else new
            rank.append(topic)
        if self._rest_of_new.goes_on:
            return [*first, *known[:LOOKUPS_MAX]], [*known[LOOKUPS_MAX:], *new]
        optional = [*known, *new]
        return [*first, *optional[:LOOKUPS_MAX]], optional[LOOKUPS_MAX:]

    def _fetch(
        self, admin: KafkaAdminClient, topics: list[str], deadline: Deadline
    ) -> dict[str, Target]:
        describe_all = partial(self._describer.describe, admin, topics)
        answers = self._clients.call(deadline, "look up topics", describe_all)
        self._store(answers)
        return answers

    def existing(
        self, admin: KafkaAdminClient, topics: Iterable[str], deadline: Deadline
    ) -> dict[str, Target]:
        """As `resolve`.

        Raises:
            Misconfigured: one of them takes no records.
        """
        targets = self.resolve(admin, topics, deadline)
        for topic, target in targets.items():
            if target.refusal is not Reason.NONE:
                why = reason_text(target.refusal, topic, target)
                raise Misconfigured(
                    f"Kafka at {self._clients.address}: {why}: `duewheel init` creates what is "
                    "missing"
                )
        return targets

    def recall(self, topics: Iterable[str]) -> dict[str, Target]:
        """The targets of cached topics, expired or not; fetches nothing."""
        return self._present({topic: self._cached(topic, TtlCache.get_stale) for topic in topics})

    def _cached(self, topic: str, entry: _Entry = TtlCache.get) -> Target | None:
        found = entry(self._usable, topic) or entry(self._unusable, topic)
        return found or (None if may_name_topic(topic) else NONE_SUCH)

    def _present(self, targets: Mapping[str, Target | None]) -> dict[str, Target]:
        """The known targets, with the partitions that have failed, and as they are now."""
        return {
            t: self._unavailable.with_failures(t, self._as_now(t, target))
            for t, target in targets.items()
            if target
        }

    def _is_compressed(self, topic: str) -> bool:
        return self._compression.of(topic) != "none"

    def _as_now(self, topic: str, target: Target) -> Target:
        if target.refusal or target.is_unknown:  # no batch goes there, and there may be thousands
            return target
        codec = self._compression.of(topic)
        intended = self._refusals.batch_bytes(topic) or self._limits.batch_bytes
        size = min(intended, target.batch_bytes_max)
        if (target.batch_bytes, target.codec) == (size, codec):
            return target
        return replace(target, batch_bytes=size, codec=codec)

    def _store(self, targets: Mapping[str, Target]) -> None:
        self._costly_log.log_new(targets)
        for topic, target in targets.items():
            into, other = self._usable, self._unusable
            if target.refusal:
                into, other = other, into
            into.put(topic, target, self._ttl_s(target))
            other.pop(topic)
            if not (target.refusal or target.unavailable):
                self._complete.put(topic, target.identity, math.inf)

    def _is_complete(self, topic: str, target: Target) -> bool:
        """Whether all partitions of the topic had logs when they were last looked up."""
        return self._complete.get(topic) == target.identity

    def _ttl_s(self, target: Target) -> float:
        if target.refusal:
            return _MISSING_AGE_S
        return self._limits.unavailable_target_age_s if target.unavailable else _AGE_S

    def forget(self) -> None:
        """Lets all metadata expire; limits that refusals have shown are kept."""
        self._usable.expire()  # known still: rows of a new name may be parked
        self._unusable.clear()
        self._background.forget()
