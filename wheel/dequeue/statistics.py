"""The dequeue loop's counters and histograms, in one frozen object."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
import structlog

from duewheel.clock import Clock, Interval
from duewheel.schemas.arrays import Int32, Int64
from duewheel.schemas.batches import NO_LEVEL, Deliveries
from duewheel.wheel.dequeue.delivery_lateness import LatenessStatistics
from duewheel.wheel.dequeue.duration_histogram import Histogram
from duewheel.wheel.encoded import Aside
from duewheel.wheel.inspect.counts_by_topic import Reasons, reasons_of, with_reasons, with_rows
from duewheel.wheel.policies.policy import counts_by_policy

K = TypeVar("K")

REJECTED, WAITED = "rejected", "waited"
_LOG_MS = 60_000
_POSTPONED = "policies have postponed timers"
_LETTERS = "rows became dead letters"

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Statistics:
    """Counters of the loop since its start.

    Attributes:
        delivered: timers published to their topics.
        delivered_by_level: those of them that were requested with a delay level, by level.
        dead_letters: messages published to the dead-letter topic, by reason: REJECTED by ingest,
            WAITED until that topic took them, or the reason why they could not be published.
        letters_by_topic: the same by timer topic and reason, of topics beyond TOPICS_MAX as one.
        letters_kept: dead letters sent back to wait because the dead-letter topic took no writes,
            counted each time.
        cancelled: timers that a cancel has suppressed.
        dropped: timers that a policy has dropped.
        missed: late firings of recurring timers that were left out, as TIMER_MISSED says; of
            several in a row only the first counts.
        replies: to cancels and reschedules, by outcome.
        chases: cancels that were written again to the end of their partition.
        rolled: timers sent back to their timer topic, by that topic; not among `delivered`.
        parked: timers sent back because their target took no writes, by target.
        unresolved: timers sent back because their target was not looked up yet. Not by target:
            most are names that do not exist, and producers can invent enough to fill `parked`.
        postponed: timers sent back by a policy, by its name; each time.
        transactions: commits, those without messages included.
        doubts: transactions whose outcome had to be read back.
        lateness: that of the delivered timers.
        commit_ms: from the start of a transaction until it is certainly committed.
    """

    delivered: int = 0
    delivered_by_level: Mapping[int, int] = field(default_factory=dict)
    dead_letters: Mapping[str, int] = field(default_factory=dict)
    letters_by_topic: Reasons = field(default_factory=dict)
    letters_kept: int = 0
    cancelled: int = 0
    dropped: int = 0
    missed: int = 0
    replies: Mapping[str, int] = field(default_factory=dict)
    chases: int = 0
    rolled: Mapping[str, int] = field(default_factory=dict)
    parked: Mapping[str, int] = field(default_factory=dict)
    unresolved: int = 0
    postponed: Mapping[str, int] = field(default_factory=dict)
    transactions: int = 0
    doubts: int = 0
    lateness: LatenessStatistics = field(default_factory=LatenessStatistics)
    commit_ms: Histogram = field(default_factory=Histogram)

    def after_doubt(self) -> Statistics:
        """Returns these with one more transaction whose outcome had to be read back."""
        return replace(self, doubts=self.doubts + 1)

    def after_drops(self, cancelled: int, dropped: int, missed: int) -> Statistics:
        """Returns these with so many more timers that were left out."""
        if not (cancelled or dropped or missed):
            return self  # nearly always, and this is once for each transaction
        return replace(
            self,
            cancelled=self.cancelled + cancelled,
            dropped=self.dropped + dropped,
            missed=self.missed + missed,
        )

    def after_replies(self, outcomes: Mapping[str, int], chases: int) -> Statistics:
        """Returns these with more replies, by outcome, and chases."""
        replies = Counter(self.replies) + Counter(outcomes)
        return replace(self, replies=replies, chases=self.chases + chases)

    def after_commit(
        self, deliveries: Deliveries | None, aside: Aside, committed_at_ms: int, took_ms: int
    ) -> Statistics:
        """Returns these with one more committed transaction."""
        counted = replace(
            self,
            transactions=self.transactions + 1,
            commit_ms=self.commit_ms.with_values(np.array([took_ms])),
        )
        if deliveries is None or not len(deliveries) or deliveries.answer.all():
            return counted  # replies have a transaction of their own
        at_target = np.ones(len(deliveries), np.bool_)
        for elsewhere in aside.rows:
            at_target[elsewhere] = False
        dead, rolled = at_target & deliveries.dead_letter, at_target & deliveries.is_copy
        waited = int((dead & (deliveries.retries > 0)).sum())
        counts = {**aside.reasons, REJECTED: int(dead.sum()) - waited, WAITED: waited}
        letters = _letters(deliveries, np.flatnonzero(dead), aside)
        delivered = at_target & ~dead & ~rolled
        return replace(
            counted,
            delivered=self.delivered + int(delivered.sum()),
            delivered_by_level=_with_levels(self.delivered_by_level, deliveries.level[delivered]),
            dead_letters=_added(self.dead_letters, counts),
            letters_by_topic=with_reasons(self.letters_by_topic, letters),
            letters_kept=self.letters_kept + len(aside.letters),
            rolled=_with(self.rolled, deliveries, np.flatnonzero(rolled)),
            parked=_with(self.parked, deliveries, aside.parked),
            unresolved=self.unresolved + len(aside.unresolved),
            postponed=_with_policies(self.postponed, deliveries, aside.postponed),
            lateness=self.lateness.with_deliveries(deliveries, delivered, committed_at_ms),
        )


class Totals:
    """The newest Statistics: one thread replaces them, any thread may read them.

    Attributes:
        now: a frozen snapshot.
    """

    def __init__(self, lateness_p99_ms: Mapping[str, int] | None = None) -> None:
        self.now = Statistics(lateness=LatenessStatistics.of(lateness_p99_ms or {}))


def _with(counts: Mapping[str, int], deliveries: Deliveries, rows: Int64) -> Mapping[str, int]:
    """Returns counts by target, with these rows added."""
    if not len(rows):
        return counts
    more = Counter[str]()
    for index, count in enumerate(np.bincount(deliveries.target[rows]).tolist()):
        more[deliveries.targets[index]] += count
    return with_rows(counts, more)


def _letters(deliveries: Deliveries, dead: Int64, aside: Aside) -> Reasons:
    """Counts the dead letters of a transaction by timer topic and reason; `dead` are the rows that
    ingest has rejected.
    """
    waited = (deliveries.retries[dead] > 0).astype(np.int64)
    return reasons_of(
        deliveries.source_partitions,
        deliveries.source_partition[np.concatenate([dead, aside.dead_lettered])],
        [REJECTED, WAITED, *aside.codes],
        np.concatenate([waited, 2 + aside.code]),
    )


def _with_policies(
    counts: Mapping[str, int], deliveries: Deliveries, rows: Int64
) -> Mapping[str, int]:
    """Returns counts by policy, with these rows added."""
    if not len(rows):
        return counts
    return Counter(counts) + Counter(counts_by_policy(deliveries, rows))


def _with_levels(counts: Mapping[int, int], levels: Int32) -> Mapping[int, int]:
    """Returns counts by level, with these rows added."""
    rows = np.bincount(levels).tolist()
    return _added(counts, {n: count for n, count in enumerate(rows) if n != NO_LEVEL})


def _added(counts: Mapping[K, int], more: Mapping[K, int]) -> Mapping[K, int]:
    """Returns the sums; mostly there is nothing to add, and this is once for each transaction."""
    return Counter(counts) + Counter(more) if any(more.values()) else counts


class CountsLog:
    """Logs rows that did not go to their target, by reason, once a minute while there are new ones:
    a producer can have one in each transaction. Not thread-safe.
    """

    def __init__(self, clock: Clock) -> None:
        self._logged: dict[str, Mapping[str, int]] = {}  # the counts of each line, when it was
        self._intervals = {text: Interval(clock, _LOG_MS) for text in (_POSTPONED, _LETTERS)}

    def log_changes(self, now: Statistics) -> None:
        """Logs the counts that have changed, if it is time."""
        for text, counts in ((_POSTPONED, now.postponed), (_LETTERS, now.dead_letters)):
            if counts and counts != self._logged.get(text) and self._intervals[text].is_over():
                self._logged[text] = counts
                log.warning(text, timers=dict(counts))
