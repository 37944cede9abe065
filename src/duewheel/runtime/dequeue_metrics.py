"""The metrics of the dequeue process: deliveries, their lateness, and pending timers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping

import structlog
from prometheus_client.core import Metric

from duewheel.api.fact import exported
from duewheel.api.timers import PendingStats
from duewheel.clock import Clock
from duewheel.errors import CorruptFile
from duewheel.osutil.metrics_server import TopicLabels, counter, counters, histogram, histograms
from duewheel.runtime.pending_breakdown import pending_breakdown
from duewheel.runtime.shard_facts import ShardFacts
from duewheel.runtime.shard_metrics import families_of
from duewheel.wheel.dequeue.statistics import Statistics
from duewheel.wheel.inspect.pending_counts import PendingTimers
from duewheel.wheel.storage.data_directory import DataDirectory

log = structlog.get_logger(__name__)

OF_PENDING = tuple(exported(PendingStats))


class DequeueMetrics:
    """The families of one dequeue process; `directory` is opened for this object alone."""

    def __init__(
        self,
        directory: DataDirectory,
        clock: Clock,
        statistics: Callable[[], Statistics],
        spans: Callable[[], Mapping[str, int]] | None = None,
    ) -> None:
        """`spans` returns those of deliveries by outcome, if there are any."""
        self._directory = directory
        self._clock = clock
        self._statistics = statistics
        self._spans = spans
        self._pending = PendingTimers(directory)
        self._topics: defaultdict[str, TopicLabels] = defaultdict(TopicLabels)  # by family

    def families(self) -> Iterator[Metric]:
        """See metrics_server.Source."""
        yield from self._deliveries()
        state, now_ms = self._directory.state, self._clock.now_ms()
        facts = ShardFacts(state, now_ms, lambda: self._pending.count().total)
        yield from families_of(facts, "dequeue")
        if state.needs_recovery:
            return  # files may be cut at any moment
        try:
            stats = pending_breakdown(self._directory, self._pending, now_ms)
            # A gauge may move between series: names without timers to speak of keep none.
            own = {"by_topic": TopicLabels().of(stats.by_topic)}
            yield from families_of(stats.model_copy(update=own), "dequeue", OF_PENDING)
        except CorruptFile as error:
            # Dequeue reads the same files, and raises the error.
            log.warning("pending timers cannot be counted", reason=str(error))

    def _deliveries(self) -> Iterator[Metric]:
        statistics = self._statistics()
        yield counter("delivered", "Timers delivered to their targets.", statistics.delivered)
        yield counters(
            "delivered_by_level",
            "Timers delivered that had a delay level, by level.",
            "level",
            _by_level(statistics.delivered_by_level),
        )
        yield from self._dead_letters(statistics)
        yield from self._copies(statistics)
        yield from self._cancels(statistics)
        yield from self._transactions(statistics)
        if self._spans is not None:
            yield counters(
                "spans",
                "Spans of deliveries, with `traces.enabled`; `dropped`: beyond a bound; `failed`: "
                "the collector did not take them.",
                "outcome",
                self._spans(),
            )

    def _dead_letters(self, statistics: Statistics) -> Iterator[Metric]:
        yield counters(
            "dead_letters",
            "Messages written to the dead-letter topic. Reason `rejected`: ingest has not "
            "accepted it, or its recurrence has failed. `waited`: it waited in its timer topic "
            "while the dead-letter topic took no writes. `topic` is the timer topic.",
            "topic, reason",
            self._topics["dead_letters"].with_reasons(statistics.letters_by_topic),
        )
        yield counter(
            "dead_letters_kept",
            "Dead letters written to their timer topic, because the dead-letter topic took no "
            "writes; each time counts.",
            statistics.letters_kept,
        )

    def _copies(self, statistics: Statistics) -> Iterator[Metric]:
        """Copies: rolled, parked or postponed."""
        yield counters(
            "rolled",
            "Timers written to their timer topic again, because they are due beyond the roll "
            "window, and next copies of recurring ones. `topic` is the timer topic.",
            "topic",
            self._topics["rolled"].of(statistics.rolled),
        )
        yield counters(
            "parked",
            "Timers written to their timer topic again, because their target was slow, it or the "
            "receipts topic took no writes, or they were paused, or their timer topic rested; each "
            "time counts. `topic` is the target.",
            "topic",
            self._topics["parked"].of(statistics.parked),
        )
        yield counter(
            "unresolved",
            "Timers written to their timer topic again, because a transaction had too many targets "
            "to look up; each time counts.",
            statistics.unresolved,
        )
        yield counters(
            "postponed",
            "Timers written to their timer topic again by a rule, such as `hot_slot`; each time "
            "counts. Its dead letters are in `dead_letters`, with its name as the reason.",
            "policy",
            statistics.postponed,
        )

    def _cancels(self, statistics: Statistics) -> Iterator[Metric]:
        yield counter("cancelled", "Timers that a cancel has stopped.", statistics.cancelled)
        yield counter("dropped", "Timers dropped because they had expired.", statistics.dropped)
        yield counter(
            "missed",
            "Firings of recurring timers that were late by more than a minute and left out, as "
            "TIMER_MISSED says. Of several in a row only the first counts.",
            statistics.missed,
        )
        yield counters(
            "answers",
            "Replies to cancels, reschedules and TIMER_IF_PENDING, by outcome.",
            "answer",
            statistics.replies,
        )
        yield counter(
            "cancels_chased",
            "Cancels that duewheel has written once more, because their timer may have a copy "
            "after them.",
            statistics.chases,
        )

    def _transactions(self, statistics: Statistics) -> Iterator[Metric]:
        yield counter("transactions", "Committed transactions.", statistics.transactions)
        yield counter(
            "doubts",
            "Transactions that failed or had no answer, so that duewheel looked up their outcome.",
            statistics.doubts,
        )
        yield histograms(
            "delivery_lateness_seconds",
            "How late timers were: acknowledgement of their transaction minus due time. `topic` is "
            "the timer topic.",
            "topic",
            statistics.lateness.by_topic,
        )
        yield histogram(
            "commit_duration_seconds",
            "From the first attempt at a transaction until its commit is acknowledged.",
            statistics.commit_ms,
        )
        yield from self._lateness_objectives(statistics)

    def _lateness_objectives(self, statistics: Statistics) -> Iterator[Metric]:
        """Only of timer topics with a setting of their own, which bounds the number of labels."""
        objectives = statistics.lateness.objectives.items()
        yield counters(
            "objective_deliveries",
            "Timers delivered from timer topics with `lateness_p99`.",
            "topic",
            {topic: each.delivered for topic, each in objectives},
        )
        yield counters(
            "objective_late",
            "Those of them that were later than `lateness_p99` says, at the acknowledgement of "
            "their transaction.",
            "topic",
            {topic: each.late for topic, each in objectives},
        )


def _by_level(counts: Mapping[int, int]) -> dict[str, float]:
    return {str(level): count for level, count in counts.items()}
