"""The metrics of the ingest process: accepted, rejected and waiting messages; Spark's batches."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import Metric

from duewheel.audit import metrics as audit_metrics
from duewheel.audit.history import AuditHistory
from duewheel.checkpoints import durable_checkpoint
from duewheel.checkpoints.state_file import State
from duewheel.clock import Clock
from duewheel.config.settings import Settings
from duewheel.osutil.metrics_server import TopicLabels, counter, counters, gauge, gauges
from duewheel.runtime.configured_facts import ConfiguredFacts
from duewheel.runtime.shard_metrics import families_of
from duewheel.schemas.batches import TopicPartition
from duewheel.streaming.batch_taker import TakerStatistics
from duewheel.streaming.query_progress import QueryProgress


class IngestMetrics:
    """The families of one ingest process; `state` is opened for this object alone."""

    def __init__(
        self,
        state: State,
        clock: Clock,
        statistics: Callable[[], TakerStatistics],
        settings: Settings,
        audits: AuditHistory,
        cut: Sequence[TopicPartition],
    ) -> None:
        """`cut`: as IngestRun has it."""
        self._state = state
        self._clock = clock
        self._statistics = statistics
        self._settings = settings
        self._audits = audits
        self._cut = Counter(topic for topic, _ in cut)
        self._topics: defaultdict[str, TopicLabels] = defaultdict(TopicLabels)  # by family
        self.progress = QueryProgress()  # the newest; ingest's tick sets it

    def families(self) -> Iterator[Metric]:
        """See metrics_server.Source."""
        statistics = self._statistics()
        yield from self._taken(statistics)
        yield from self._waiting(statistics)
        yield gauges(
            "recovery_cut_partitions",
            "Timer partitions whose log begins later than what the recovery at this start of "
            "ingest had to read: pending messages before that are lost. `topic` is the timer "
            "topic.",
            "topic",
            self._topics["recovery_cut_partitions"].of(self._cut),
        )
        yield from _spark(self.progress, statistics)
        facts = ConfiguredFacts(self._state, self._clock.now_ms(), self._settings)
        yield from families_of(facts, "ingest")
        age_s = durable_checkpoint.age_s(facts.path, facts.now_ms)
        if age_s is not None:
            yield gauge(
                "checkpoint_age_seconds",
                "Age of the last durable checkpoint. After a loss of power newer messages are "
                "read again.",
                age_s,
            )
        audit = self._audits.newest()
        if audit is not None:
            yield from audit_metrics.families(audit)

    def _waiting(self, statistics: TakerStatistics) -> Iterator[Metric]:
        yield gauge(
            "paused_waiting", "Messages read that wait for a resume.", statistics.rows_paused
        )
        yield gauge(
            "standby_waiting",
            "Messages read that wait in a standby until its owner has taken them.",
            statistics.rows_ahead,
        )

    def _taken(self, statistics: TakerStatistics) -> Iterator[Metric]:
        rejected = sum(sum(each.values()) for each in statistics.rejected.values())
        yield counter(
            "timers_accepted",
            "Timers, copies and cancels that ingest has taken.",
            statistics.rows - rejected,
        )
        yield counters(
            "rejected",
            "Messages that were not accepted; they go to the dead-letter topic. `topic` is the "
            "timer topic.",
            "topic, reason",
            self._topics["rejected"].with_reasons(statistics.rejected),
        )
        yield counters(
            "forged_copies",
            "Messages with headers of copies that duewheel did not write: the headers are "
            "ignored. `topic` is the timer topic.",
            "topic",
            self._topics["forged_copies"].of(statistics.forged),
        )
        yield counter(
            "kept_out",
            "Timers dropped by TIMER_IF_PENDING: keep, as an earlier one of their id was pending.",
            statistics.rows_kept_out,
        )
        yield counter(
            "replayed",
            "Messages read again and dropped, because they were taken before.",
            statistics.rows_replayed,
        )
        yield counters(
            "rows_lost",
            "Offsets that retention deleted before ingest had read them: their messages are lost. "
            "`topic` is the timer topic.",
            "topic",
            self._topics["rows_lost"].of(statistics.rows_lost),
        )


def _spark(progress: QueryProgress, statistics: TakerStatistics) -> Iterator[Metric]:
    yield counter("spark_batches", "Batches that ingest has taken.", statistics.batches)
    yield gauge("spark_batch_rows", "Offsets of the newest batch.", progress.rows)
    yield gauge(
        "spark_input_rows_per_second", "Rows per second that came in.", progress.input_rows_per_s
    )
    yield gauge(
        "spark_processed_rows_per_second",
        "Rows per second of the newest batch.",
        progress.processed_rows_per_s,
    )
    yield gauges(
        "spark_batch_duration_seconds",
        "Duration of the newest batch by phase, without its append; triggerExecution is the whole.",
        "phase",
        {phase: ms / 1000 for phase, ms in progress.durations_ms.items()},
    )
