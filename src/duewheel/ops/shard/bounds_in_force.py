"""Lists every bound between the timer topic and the target: its value and the source of the value.

A configurable bound names its setting and the source of that (file, environment, flag, default).
The other bounds are fixed; the comment at each constant gives the reason.

Invariant: no bound loses a timer. Timers beyond a bound stay in their topic or files, or come in
the next batch or transaction. `dequeue.hot_slot` decides about the excess of a hot slot.
"""

from __future__ import annotations

from duewheel.api.shard import BoundInForce
from duewheel.checkpoints.partition_limit import PARTITIONS_MAX
from duewheel.config.settings import Settings
from duewheel.config.values import as_millis
from duewheel.kafka.limits import PublisherLimits
from duewheel.osutil.metrics_server import TOPIC_SERIES_MAX
from duewheel.runtime.readiness import ReadyBounds
from duewheel.streaming.batch_attempt import SPARK_DIR, Attempt
from duewheel.wheel.admin.change_settings import SKIPPED_MAX
from duewheel.wheel.dequeue_config import REPLIES_MAX, ROLLS_MAX, SPAN_RECORDS, TOPICS_MAX
from duewheel.wheel.storage.timelines.chain_ends import INDEX_BYTES

FIXED = "fixed"
Value = int | str | dict[str, int] | None


def bounds(settings: Settings) -> dict[str, BoundInForce]:
    """Builds the section `bounds` of `config check` and `status`: by name, `value` and `from`."""
    return {
        **_of_ingest(settings),
        **_of_dequeue(settings),
        **_of_transactions(settings),
        **_of_readiness(settings),
    }


def _of_ingest(settings: Settings) -> dict[str, BoundInForce]:
    ingest, timer = settings.ingest, settings.timer
    lowered = Attempt.read(settings.storage.data_dir / SPARK_DIR)
    rows = ingest.max_offsets_per_trigger
    return {
        "rows_per_trigger": _set(settings, "ingest.max_offsets_per_trigger", rows),
        "rows_per_trigger_now": _fixed(
            min(rows, lowered.rows) if lowered else rows,
            "rows_per_trigger; fewer after a batch out of memory",
        ),
        "bytes_per_trigger": _set(
            settings, "ingest.max_bytes_per_trigger", ingest.max_bytes_per_trigger
        ),
        "driver_heap_bytes": _set(settings, "ingest.driver_memory", ingest.driver_memory_bytes),
        "batches_in_flight": _fixed(2),
        "partitions": _fixed(PARTITIONS_MAX, "fixed; fewer where names of topics are long"),
        "min_free": _set(settings, "storage.min_free", str(settings.storage.min_free)),
        "ring_slots": _set(settings, "timer.slots", 2 * timer.slots, "twice "),
        "far_index_bytes": _fixed(INDEX_BYTES),
        "skipped_records": _fixed(SKIPPED_MAX),
        "quota_per_second": _set(settings, "timer.topic", timer.quotas),
        "longest_delay_ms": _set(settings, "timer.max_delay", as_millis(timer.max_delay)),
    }


def _of_dequeue(settings: Settings) -> dict[str, BoundInForce]:
    dequeue = settings.dequeue
    is_limited = dequeue.hot_slot != "none"
    return {
        "hot_slot_rows": _set(
            settings,
            "dequeue.hot_slot_limit" if is_limited else "dequeue.hot_slot",
            dequeue.hot_slot_limit if is_limited else None,
        ),
        "scan_records": _fixed(SPAN_RECORDS),
        "queues": _fixed(2),
        "queue_records": _set(settings, "dequeue.chunk_records", dequeue.chunk_records),
        "queue_bytes": _set(settings, "dequeue.chunk_bytes", dequeue.chunk_bytes),
        "chunks_in_memory": _fixed(2),
        "read_ahead_ms": _set(settings, "dequeue.read_ahead", as_millis(dequeue.read_ahead)),
        "read_ahead_bytes": _set(settings, "dequeue.read_ahead_bytes", dequeue.read_ahead_bytes),
        "topic_series": _fixed(TOPIC_SERIES_MAX),
    }


def _of_transactions(settings: Settings) -> dict[str, BoundInForce]:
    dequeue, limits = settings.dequeue, PublisherLimits()
    timeout_ms, call_ms = dequeue.transaction_timeout_ms, as_millis(dequeue.call_deadline)
    return {
        "transactions_in_flight": _fixed(1),
        "transaction_records": _set(settings, "dequeue.chunk_records", dequeue.chunk_records),
        "transaction_bytes": _set(settings, "dequeue.chunk_bytes", dequeue.chunk_bytes),
        "transaction_topics": _fixed(TOPICS_MAX),
        "transaction_rolls": _fixed(ROLLS_MAX),
        "transaction_answers": _fixed(REPLIES_MAX),
        "transaction_timeout_ms": _set(settings, "dequeue.transaction_timeout_ms", timeout_ms),
        "call_deadline_ms": _set(settings, "dequeue.call_deadline", call_ms),
        "batch_bytes": _fixed(limits.batch_bytes),
        "batch_bytes_max": _fixed(limits.batch_bytes_max, "fixed; less where a topic takes less"),
    }


def _of_readiness(settings: Settings) -> dict[str, BoundInForce]:
    ready, seldom = ReadyBounds.of(settings), "fixed; more where ingest.trigger_ms is large"
    return {
        "ready_silence_ms": _fixed(ready.silence_ms),
        "ready_lag_ms": _fixed(ready.lag_ms, seldom),
        "ready_batch_ms": _fixed(ready.batch_ms, seldom),
        "ready_behind_ms": _fixed(ready.behind_ms),
    }


def _set(settings: Settings, key: str, value: Value, how: str = "") -> BoundInForce:
    return BoundInForce(value=value, source=f"{how}{key} ({settings.source(key)})")


def _fixed(value: int, source: str = FIXED) -> BoundInForce:
    return BoundInForce(value=value, source=source)
