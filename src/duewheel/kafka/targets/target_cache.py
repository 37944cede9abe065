"""Caches targets as Kafka's metadata (target_describer.py) and refused batches (refusal_limits.py)
show them.

Entries expire, sooner for missing topics and those with partitions that take no writes: so a topic
that is created later is noticed, and one that never exists costs little. Users choose the names. So
the number of entries is bounded, and names that take no record have a cache of their own: they
displace no topic.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial

from kafka import KafkaAdminClient

from duewheel.deadline import Deadline
from duewheel.errors import Misconfigured
from duewheel.kafka.connect.clients import KafkaClients
from duewheel.kafka.log.compression import Compression
from duewheel.kafka.targets.refusal_limits import RefusalLimits
from duewheel.kafka.targets.target_describer import NONE_SUCH, TargetDescriber
from duewheel.kafka.targets.ttl_cache import TtlCache
from duewheel.kafka.topics.description import requests_of
from duewheel.kafka.transaction_limits import TransactionLimits
from duewheel.schemas.name_patterns import may_name_topic
from duewheel.wheel.target_rules import Reason, Target, reason_text

_AGE_S = 30.0  # for which metadata is cached
_MISSING_AGE_S = 10.0  # the same of a topic that does not exist
_MISSING_MAX = 100_000  # names, some 40 MB: answered before their rows come again


class TargetCache:
    """Targets by topic, cached.

    One thread owns it. Any may use `recall`, which reads one entry at a time, and `describer`.

    Example:
        targets = cache.resolve(admin, ["orders", "nowhere"], deadline)
        targets["nowhere"].refusal          # Reason.UNKNOWN_TARGET_TOPIC
    """

    def __init__(
        self,
        clients: KafkaClients,
        limits: TransactionLimits,
        refusals: RefusalLimits,
        compression: Compression | None = None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clients, self._limits, self._refusals = clients, limits, refusals
        self._usable: TtlCache[str, Target] = TtlCache(now_s=now_s)  # topics that take records
        self._unusable: TtlCache[str, Target] = TtlCache(_MISSING_MAX, now_s)
        self._complete: TtlCache[str, tuple[str, int]] = TtlCache()  # all partitions have logs
        self.describer = TargetDescriber(
            clients, limits, refusals, compression or Compression(), self._is_complete
        )

    def resolve(
        self, admin: KafkaAdminClient, topics: Iterable[str], deadline: Deadline
    ) -> dict[str, Target]:
        """The target of each topic; missing and expired ones are fetched.

        Raises:
            KafkaUnavailable: no answer, or a topic without a leader just now.
        """
        names = dict.fromkeys(topics)
        targets = self.unexpired(names)
        missing = [name for name in names if name not in targets]
        return targets | self.fetch(admin, missing, deadline)

    def recall(self, topics: Iterable[str]) -> dict[str, Target]:
        """The targets of cached topics, expired or not; fetches nothing."""
        return self._stored(topics, TtlCache.get_stale)

    def unexpired(self, topics: Iterable[str]) -> dict[str, Target]:
        """The targets of cached topics; one that is missing here is to be fetched."""
        return self._stored(topics, TtlCache.get)

    def just_expired(self, topics: Iterable[str]) -> dict[str, Target]:
        """The targets of topics that took records, up to a while after they have expired."""
        # One that existed long ago may be deleted.
        return self._with_batches({t: self._usable.get(t, _AGE_S) for t in topics})

    def was_usable(self, topic: str) -> bool:
        """Whether the topic took records when it was last looked up, even long ago."""
        return self._usable.get_stale(topic) is not None

    def fetch(
        self, admin: KafkaAdminClient, topics: list[str], deadline: Deadline
    ) -> dict[str, Target]:
        """Looks topics up, and stores the answers. Raises as `resolve`."""
        answers = dict[str, Target]()
        for part in requests_of(topics):
            describe = partial(self.describer.describe, admin, part)
            found = self._clients.call(deadline, "look up topics", describe)
            self.store(found)
            answers |= found
        return self._with_batches(answers)

    def store(self, targets: Mapping[str, Target]) -> None:
        """Keeps answers of the describer."""
        for topic, target in targets.items():
            into, other = self._usable, self._unusable
            if target.refusal:
                into, other = other, into
            into.put(topic, target, self._ttl_s(target))
            other.pop(topic)
            if not (target.refusal or target.unavailable):
                self._complete.put(topic, target.identity, math.inf)

    def forget(self) -> None:
        """Lets all metadata expire; limits that refusals have shown are kept."""
        self._usable.expire()  # known still: rows of a new name may be parked
        self._unusable.clear()

    def _stored(
        self,
        topics: Iterable[str],
        get: Callable[[TtlCache[str, Target], str], Target | None],
    ) -> dict[str, Target]:
        entries = {t: get(self._usable, t) or get(self._unusable, t) for t in topics}
        none_such = [t for t, entry in entries.items() if not (entry or may_name_topic(t))]
        return self._with_batches(entries | dict.fromkeys(none_such, NONE_SUCH))

    def _with_batches(self, targets: Mapping[str, Target | None]) -> dict[str, Target]:
        """Those that are there, with batches of the present size."""
        return {t: self._with_batch(t, target) for t, target in targets.items() if target}

    def _with_batch(self, topic: str, target: Target) -> Target:
        if target.refusal or target.is_unknown:  # no batch goes there, and there may be thousands
            return target
        intended = self._refusals.batch_bytes(topic) or self._limits.batch_bytes
        size = min(intended, target.batch_bytes_max)
        return target if target.batch_bytes == size else replace(target, batch_bytes=size)

    def _is_complete(self, topic: str, target: Target) -> bool:
        """Whether all partitions of the topic had logs when they were last looked up."""
        return self._complete.get(topic) == target.identity

    def _ttl_s(self, target: Target) -> float:
        if target.refusal:
            return _MISSING_AGE_S
        return self._limits.unavailable_target_age_s if target.unavailable else _AGE_S


def require_usable(targets: Mapping[str, Target], address: str) -> None:
    """Raises Misconfigured for a topic of the cluster at this address that takes no records."""
    for topic, target in targets.items():
        if target.refusal is not Reason.NONE:
            why = reason_text(target.refusal, topic, target)
            text = f"Kafka at {address}: {why}: `duewheel init` creates what is missing"
            raise Misconfigured(text)
