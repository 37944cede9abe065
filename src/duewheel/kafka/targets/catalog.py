"""The targets of deliveries: cached ones (target_cache.py), with the partitions that take no writes
for now (unavailable_partitions.py). Rows for these are parked.

Targets are fetched before a transaction begins. It waits for a bounded number of names: first for
those of topics that were known, then for new names, which get a tenth of the time at most. A thread
looks up the others (background_lookups.py). Until it has an answer, an entry that has just expired
is used; the rows of any other name are parked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from functools import partial

from kafka import KafkaAdminClient

from duewheel.deadline import Deadline
from duewheel.kafka.targets.background_lookups import UNRESOLVED, BackgroundLookups
from duewheel.kafka.targets.slow_targets import SlowTargetLog
from duewheel.kafka.targets.target_cache import TargetCache
from duewheel.kafka.targets.throttles import Throttle
from duewheel.kafka.targets.unavailable_partitions import UnavailablePartitions
from duewheel.wheel.target_rules import Target

# How many names of users a transaction waits for: some ten milliseconds.
LOOKUPS_MAX = 100


class TargetCatalog:
    """Targets of deliveries by topic. Its calls are those of TargetCache. One thread owns it; any
    thread may use `recall`.

    Example:
        targets = catalog.resolve(admin, ["orders", "nowhere"], deadline)
        targets["orders"].unavailable       # partitions that take no writes for now
    """

    def __init__(
        self,
        cache: TargetCache,
        unavailable: UnavailablePartitions,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cache, self._unavailable, self._now_s = cache, unavailable, now_s
        self._slow_log = SlowTargetLog()
        self._new_names = Throttle(now_s)  # of waits for names that were not known
        self._background = BackgroundLookups()

    def resolve(
        self,
        admin: KafkaAdminClient,
        topics: Iterable[str],
        deadline: Deadline,
        needed: Collection[str] | None = None,
    ) -> dict[str, Target]:
        """The target of each topic; missing and expired ones are fetched.

        Args:
            needed: those that must be known now; None: all. It waits for at most LOOKUPS_MAX of
                the others, and only now and then for names that were not known.

        Raises:
            KafkaUnavailable: no answer, or a topic without a leader just now.
        """
        names = dict.fromkeys(topics)
        taken = self._background.take()
        self._cache.store(taken)
        targets = self._cache.unexpired(names)
        missing = [name for name in names if name not in targets]
        needed = set(missing if needed is None else needed)
        now, later, has_new = self._now_and_later(missing, needed)
        began_s = self._now_s()
        fetched = self._cache.fetch(admin, now, deadline)
        if has_new:
            # A producer that invents names would otherwise hold up each transaction.
            self._new_names.note_duration(self._now_s() - began_s)
        self._slow_log.log_new(taken | fetched)
        waiting = dict.fromkeys(later, UNRESOLVED) | self._cache.just_expired(later)
        self._background.add(later, partial(self._cache.describer.describe, admin))
        found = self._with_failures(targets | fetched | waiting)
        self._unavailable.on_metadata(found)
        return found

    def _now_and_later(
        self, missing: list[str], needed: set[str]
    ) -> tuple[list[str], list[str], bool]:
        """Divides names into those that a transaction waits for, and the others. Also returns
        whether it waits for names that were not known, without need.
        """
        first, known, new = list[str](), list[str](), list[str]()
        for name in missing:
            if name in needed:
                first.append(name)
            else:
                (known if self._cache.was_usable(name) else new).append(name)
        other = [*known, *new]
        count = min(len(known if self._new_names.is_closed else other), LOOKUPS_MAX)
        return [*first, *other[:count]], other[count:], count > len(known)

    def recall(self, topics: Iterable[str]) -> dict[str, Target]:
        """The targets of cached topics, expired or not; fetches nothing."""
        return self._with_failures(self._cache.recall(topics))

    def _with_failures(self, targets: dict[str, Target]) -> dict[str, Target]:
        with_failures = self._unavailable.with_failures
        return {topic: with_failures(topic, target) for topic, target in targets.items()}

    def forget(self) -> None:
        """Lets all metadata expire; limits that refusals have shown are kept."""
        self._cache.forget()
        self._background.forget()
