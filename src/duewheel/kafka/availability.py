"""Which target partitions take no writes for now.

Two sources:

    metadata    no leader, or fewer replicas in sync than `min.insync.replicas`: as long as it is so
    verdicts    a transaction failed because of the partition while others were acknowledged: for
                some seconds, then the next transaction with rows for it tries; each time that this
                fails the verdict lasts twice as long, for a trial holds up the others

Each change is logged once, however many rows it concerns.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import structlog

from duewheel.kafka.ttl_cache import Believed
from duewheel.schemas.batches import TopicPartition
from duewheel.wheel.encoded import Target

VERDICT_S = (5.0, 60.0)  # the first one, and the longest
_TOLD_MAX = 10_000

log = structlog.get_logger(__name__)


class Outages:
    """What has been noticed. Its publisher's thread changes it; `judged` may be asked by any."""

    def __init__(self) -> None:
        self._failures: Believed[TopicPartition, int] = Believed()  # in a row
        self._failed: dict[str, set[int]] = {}  # whose are remembered, by topic; never changed
        self._told: dict[str, frozenset[int]] = {}

    def judged(self, topic: str, target: Target) -> Target:
        """What metadata says of the topic, and the verdicts that are in force."""
        failed = self._failed.get(topic, ())
        down = {number for number in failed if self._failures.get((topic, number)) is not None}
        return replace(target, unavailable=target.unavailable | down) if down else target

    def failed(self, partition: TopicPartition, why: str) -> None:
        """A transaction failed because of this partition."""
        times = (self._failures.latest(partition) or 0) + 1
        first_s, longest_s = VERDICT_S
        verdict_s = min(first_s * 2.0 ** min(times - 1, 10), longest_s)
        self._failures.put(partition, times, verdict_s)
        self._sort_failed()
        self._tell(partition[0], self._told.get(partition[0], frozenset()) | {partition[1]}, why)

    def succeeded(self, partitions: Iterable[TopicPartition]) -> None:
        """A transaction with rows for these partitions was committed."""
        if not self._told:
            return
        for topic, number in set(partitions):
            if number in self._failed.get(topic, ()):
                self._failures.pop((topic, number))
                self._sort_failed()
            self._tell(topic, self._told.get(topic, frozenset()) - {number})

    def noticed(self, topic: str, target: Target) -> None:
        """What `judged` has just said counts; a partition that is on trial is not available yet."""
        if not target.unavailable and topic not in self._told:
            return
        on_trial = self._failed.get(topic, set())
        down = target.unavailable | (on_trial & self._told.get(topic, frozenset()))
        self._tell(topic, down, "no leader, or too few replicas in sync")

    def _sort_failed(self) -> None:
        """Failures are few; topics are looked up for every chunk."""
        failed: dict[str, set[int]] = {}
        for topic, number in self._failures.remembered():
            failed.setdefault(topic, set()).add(number)
        self._failed = failed

    def _tell(self, topic: str, down: frozenset[int], why: str = "") -> None:
        before = self._told.pop(topic, frozenset())
        if down:
            if len(self._told) >= _TOLD_MAX:
                self._told.clear()
            self._told[topic] = down
        if down - before:
            log.warning(
                "target takes no writes: its timers are parked",
                topic=topic,
                partitions=sorted(down - before),
                reason=why,
            )
        if before - down:
            log.info("target takes writes again", topic=topic, partitions=sorted(before - down))
