"""Tracks the target partitions that take no writes for now.

Four sources:

    metadata    no leader, fewer replicas in sync than `min.insync.replicas`, or a setting that no
                transaction survives (transaction_settings.py), until metadata says otherwise
    failures    a transaction failed because of the partition while others were acknowledged. Its
                rows are parked until a transaction is committed, and some seconds more; then one
                tries it. Each further failure doubles that time, because a trial delays all other
                rows. It begins with the commit: a start of the publisher may take longer, and the
                rows that have waited would be delayed by the next trial, too
    markers     the topic refuses the marker of a blocked transactional id (transactional_ids.py)
    foreign     another client has written to a timer topic under the shard's producer id, and a
                copy for it has aborted a transaction. Each of its partitions could abort one after
                the other: it takes no copies for nine times as long as that has cost the others
                (throttles.py)

wheel/dequeue/fate.py decides the fate of their rows. Each change is logged once, however many rows
it affects.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import structlog

from duewheel.kafka.targets.throttles import RefusalThrottle
from duewheel.kafka.topics.description import Partition
from duewheel.kafka.transaction_limits import TransactionLimits
from duewheel.schemas.batches import TopicPartition
from duewheel.wheel.target_rules import Target

_FAILURES_MAX = 10_000  # the oldest make room for new ones
_LOGGED_MAX = 10_000
_LINES_MAX = 20  # of the log, for the changes of one answer: a team may close 1,000 targets at once
_NAMED_MAX = 20  # partitions that a reason names
NOTED_MAX = 100  # topics that `on_change` gets at once
_FOREIGN = "another client has written to it under duewheel's producer id"

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Failure:
    """The failures of a partition that has taken no write since."""

    times: int
    until_s: float  # it is not tried before


_NEVER = _Failure(0, 0.0)


class UnavailablePartitions:
    """Failed and closed partitions. One thread changes it; any may call `with_failures`."""

    def __init__(
        self,
        backoff_s: tuple[float, float] = TransactionLimits().backoff_s,
        now_s: Callable[[], float] = time.monotonic,
        on_change: Callable[[Mapping[str, str]], None] = lambda _: None,
    ) -> None:
        """
        Args:
            backoff_s: how long a partition is not tried: after the first failure, and at most; 0:
                a failure has no consequence.
            on_change: gets the newest topics that take no writes, each with the reason.
        """
        self._backoff_s, self._now_s = backoff_s, now_s
        self._failures: dict[TopicPartition, _Failure] = {}
        self._fresh: set[TopicPartition] = set()  # have failed since the last commit
        self._failed: dict[str, set[int]] = {}  # keys of `_failures`, by topic; replaced as a whole
        self._closed: Mapping[str, str] = {}  # topics, and why; replaced as a whole
        self._foreign = RefusalThrottle(now_s)
        self._logged: dict[str, tuple[frozenset[int], str]] = {}  # partitions, and why
        self._on_change = on_change
        # Topic, partitions, and why they take no writes, or None if they take them again; to log
        self._changes = list[tuple[str, list[int], str | None]]()

    def close_topics(self, why: Mapping[str, str]) -> None:
        """All partitions of these topics take no writes from now on, and of no others."""
        self._closed = why

    def throttle_copies(self, timer_topics: frozenset[str], seconds: float) -> None:
        """An attempt of so many seconds is aborted, because another client has written to these
        timer topics under the shard's producer id.
        """
        self._foreign.note_refusals(timer_topics, seconds)

    def with_failures(self, topic: str, target: Target) -> Target:
        """The target with the failed and closed partitions added to the unavailable ones of its
        metadata.
        """
        if target.is_unknown:
            return target
        why = self._closed.get(topic) or (_FOREIGN if self._foreign.is_resting(topic) else "")
        if why:
            every = frozenset(range(target.partitions))
            return replace(target, unavailable=every, closed_by=why)
        failures, now_s = self._failures, self._now_s()
        failed = self._failed.get(topic, ())
        down = {n for n in failed if now_s < failures.get((topic, n), _NEVER).until_s}
        return replace(target, unavailable=target.unavailable | down) if down else target

    def has_failed(self, partition: TopicPartition) -> bool:
        """Whether it has failed, and has taken no write since."""
        return partition in self._failures

    def note_failures(self, failures: Iterable[tuple[TopicPartition, str]]) -> None:
        """A transaction failed because of these partitions, with a reason each. One that is named
        twice has failed twice.
        """
        down: dict[tuple[str, str], set[int]] = {}  # by topic and reason
        for partition, why in failures:
            times = self._failures.pop(partition, _NEVER).times + 1
            # The next commit sets the end, unless a failure has no consequence.
            until_s = math.inf if self._backoff_of(times) else 0.0
            self._failures[partition] = _Failure(times, until_s)
            if len(self._failures) > _FAILURES_MAX:
                del self._failures[next(iter(self._failures))]
            self._fresh.add(partition)
            down.setdefault((partition[0], why), set()).add(partition[1])
        self._sort_failed()
        for (topic, why), numbers in down.items():
            self._change(topic, self._logged_down(topic) | numbers, why)
        self._report()

    def note_success(self, partitions: Iterable[TopicPartition]) -> None:
        """A transaction with rows for these partitions was committed; perhaps for none."""
        for partition in self._fresh & self._failures.keys():
            times = self._failures[partition].times
            self._failures[partition] = _Failure(times, self._now_s() + self._backoff_of(times))
        self._fresh.clear()
        self._foreign.note_commit()
        if not (self._failures or self._logged):  # the log may have dropped a topic
            return
        written = set(partitions)
        if recovered := [each for each in written if self.has_failed(each)]:
            for partition in recovered:
                del self._failures[partition]
            self._sort_failed()
        for topic, number in written:
            self._change(topic, self._logged_down(topic) - {number})
        self._report()

    def _backoff_of(self, times: int) -> float:
        first_s, longest_s = self._backoff_s
        return min(first_s * 2.0 ** min(times - 1, 10), longest_s)

    def on_metadata(self, targets: Mapping[str, Target]) -> None:
        """Logs changes by metadata. A partition on trial stays unavailable until a commit."""
        for topic, target in targets.items():
            if target.is_unknown or not (target.unavailable or topic in self._logged):
                continue
            on_trial = self._failed.get(topic, set())
            down = target.unavailable | (on_trial & self._logged_down(topic))
            self._change(topic, down, target.why_unavailable)
        self._report()

    def _sort_failed(self) -> None:
        """Indexes the failures by topic: every chunk reads them, and they seldom change."""
        failed: dict[str, set[int]] = {}
        for topic, number in self._failures:
            failed.setdefault(topic, set()).add(number)
        self._failed = failed

    def _logged_down(self, topic: str) -> frozenset[int]:
        """The partitions that the log has named as down."""
        return self._logged.get(topic, (frozenset[int](), ""))[0]

    def _change(self, topic: str, down: frozenset[int], why: str = "") -> None:
        before, known_why = self._logged.get(topic, (frozenset[int](), ""))
        if down == before:
            return
        self._logged.pop(topic, None)
        if down:
            if len(self._logged) >= _LOGGED_MAX:
                self._logged.clear()
            self._logged[topic] = down, why or known_why
        if down - before:
            self._changes.append((topic, sorted(down - before), why))
        if before - down:
            self._changes.append((topic, sorted(before - down), None))

    def _report(self) -> None:
        """Logs the changes, and reports the topics that take no writes now, once for all."""
        if not self._changes:
            return
        for topic, partitions, why in self._changes[:_LINES_MAX]:
            place = {"topic": topic, "partitions": partitions}
            if why is None:
                log.info("target takes writes again", **place)
            else:
                log.warning("target takes no writes: its timers are parked", reason=why, **place)
        if (more := len(self._changes) - _LINES_MAX) > 0:
            log.warning("more targets take no writes, or take them again", changes=more)
        self._changes.clear()
        shown = itertools.islice(reversed(self._logged.items()), NOTED_MAX)
        self._on_change({topic: _text(of, why) for topic, (of, why) in shown})


def takes_writes(partition: Partition, in_sync_min: int) -> bool:
    """Whether it has a leader and enough replicas in sync. The minimum is capped at the number of
    replicas; a broker that insists on more refuses the batch.
    """
    return partition.leader >= 0 and partition.in_sync >= min(in_sync_min, partition.replicas)


def _text(partitions: frozenset[int], why: str) -> str:
    named, more = sorted(partitions)[:_NAMED_MAX], len(partitions) - _NAMED_MAX
    return f"partitions {named}{f' and {more} more' if more > 0 else ''}: {why}"
