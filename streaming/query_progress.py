"""Spark's report on the query's newest batch, as one frozen snapshot.

The process polls the query a few times a second. A listener would be called for every batch, which
costs several times as much Python time as a small batch itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql.streaming.listener import StreamingQueryProgress

from duewheel.checkpoints.commit_and_close_pages import Marks
from duewheel.schemas.batches import TopicPartition
from duewheel.streaming.early_ends import offsets_from


@dataclass(frozen=True, slots=True)
class QueryProgress:
    """The newest batch that the query has finished."""

    batch_id: int = -1  # in Spark's count; -1 before the first
    rows: int = 0  # offsets in it: of records, replayed ones included, and of transaction markers
    # After its last rows, per partition
    end_offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    behind: int = 0  # offsets from there to the logs' ends, of all partitions together
    behind_min: int = 0  # the same of the best partition, and `behind_max` of the worst
    behind_max: int = 0
    # Of its phases, by Spark's names (triggerExecution is the whole)
    durations_ms: Mapping[str, int] = field(default_factory=dict)
    input_rows_per_s: float = 0.0  # the rates of arrival and of processing
    processed_rows_per_s: float = 0.0


def read_progress(reported: StreamingQueryProgress | None, early_ends: Marks) -> QueryProgress:
    """Spark's report as a snapshot; Spark reports None before the first batch. `early_ends` are
    those of the newest batch (early_ends.py).
    """
    if reported is None:
        return QueryProgress()
    # pyspark's own fields hold the offsets as text that is no JSON.
    raw = json.loads(reported.json)
    (source,) = raw["sources"]
    (starts, _), (ends, begins), (latest, _) = (
        offsets_from(source[name] or {}) for name in ("startOffset", "endOffset", "latestOffset")
    )
    starts, ends = {**starts, **begins}, {**ends, **early_ends}
    rows = sum(end - starts.get(partition, end) for partition, end in ends.items())
    # Spark counts the tasks' rows, each a part with many timers.
    rows_of_each = rows / max(raw["numInputRows"], 1)
    behind = {partition: offset - ends.get(partition, 0) for partition, offset in latest.items()}
    return QueryProgress(
        batch_id=raw["batchId"],
        rows=rows,
        end_offsets=ends,
        behind=sum(behind.values()),
        behind_min=min(behind.values(), default=0),
        behind_max=max(behind.values(), default=0),
        durations_ms=raw["durationMs"],
        # Spark omits them where they are not finite.
        input_rows_per_s=rows_of_each * raw.get("inputRowsPerSecond", 0.0),
        processed_rows_per_s=rows_of_each * raw.get("processedRowsPerSecond", 0.0),
    )
