"""What Spark says about the query's progress, kept as one frozen snapshot.

Spark calls the listener on a thread of its own and waits for it: it copies numbers and returns.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)

from duewheel.schemas.timers import TopicPartition


@dataclass(frozen=True, slots=True)
class QueryStatistics:
    """The query's own view of itself.

    Attributes:
        batches: batches reported since the query started.
        rows: rows in them, replayed ones included.
        batch_id: of the newest, in Spark's count.
        end_offsets: behind its last rows, per partition.
        behind_min, behind_max: how many offsets a partition was then behind its log's end, of the
            one that was least and the one that was most.
        behind: all partitions together.
        durations_ms: where its time went, by Spark's names (triggerExecution is the whole).
        running: between start and termination.
    """

    batches: int = 0
    rows: int = 0
    batch_id: int = -1
    end_offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    behind_min: int = 0
    behind_max: int = 0
    behind: int = 0
    durations_ms: Mapping[str, int] = field(default_factory=dict)
    running: bool = False


class ProgressListener(StreamingQueryListener):
    """Keeps the newest statistics of one query. `statistics` may be read by any thread."""

    def __init__(self) -> None:
        self._statistics = QueryStatistics()

    @property
    def statistics(self) -> QueryStatistics:
        """A snapshot."""
        return self._statistics

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        self._statistics = QueryStatistics(running=True)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        self._statistics = after(self._statistics, event.progress)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        before = self._statistics
        self._statistics = QueryStatistics(before.batches, before.rows, before.batch_id)


def after(before: QueryStatistics, progress: StreamingQueryProgress) -> QueryStatistics:
    """The statistics after one more progress report."""
    source = progress.sources[0]
    ends, latest = _offsets(source.endOffset), _offsets(source.latestOffset)
    metrics = source.metrics
    return QueryStatistics(
        batches=before.batches + 1,
        rows=before.rows + progress.numInputRows,
        batch_id=progress.batchId,
        end_offsets=ends,
        behind_min=int(metrics.get("minOffsetsBehindLatest", 0)),
        behind_max=int(metrics.get("maxOffsetsBehindLatest", 0)),
        behind=sum(offset - ends.get(partition, 0) for partition, offset in latest.items()),
        durations_ms=dict(progress.durationMs),
        running=True,
    )


def _offsets(text: str | None) -> dict[TopicPartition, int]:
    """Offsets as a progress report has them: JSON, or nothing."""
    return {
        (topic, int(partition)): offset
        for topic, partitions in json.loads(text or "{}").items()
        for partition, offset in partitions.items()
    }
