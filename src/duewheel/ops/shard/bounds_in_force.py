"""Lists every bound between the timer topic and the target: its value and the source of the value.

A configurable bound names its setting and the source of that (file, environment, flag, default).
The other bounds are fixed; the comment at each constant gives the reason.

Timers beyond a bound stay in their topic or files, or come in the next batch or transaction. Some
bounds reject instead: docs/bounds.md says which. `dequeue.hot_slot` decides about the excess of a
hot slot.
"""

from __future__ import annotations

from functools import partial

from duewheel.api.shard import BoundInForce
from duewheel.checkpoints.partition_limit import PARTITIONS_MAX
from duewheel.config.settings import Settings
from duewheel.kafka.shard_settings import publisher_limits
from duewheel.osutil.metrics_server import TOPIC_SERIES_MAX
from duewheel.runtime.readiness import ReadyBounds
from duewheel.schemas.header_names import RECURRING_BYTES_MAX, RECURRING_HEADERS_MAX
from duewheel.streaming.background_append import BATCHES_IN_MEMORY
from duewheel.streaming.batch_attempt import SPARK_DIR, Attempt
from duewheel.wheel import dequeue_config
from duewheel.wheel.admin.skip_records import SKIPPED_MAX
from duewheel.wheel.dequeue.pipeline import CHUNKS_IN_MEMORY, QUEUES
from duewheel.wheel.publisher_protocol import TRANSACTIONS_IN_FLIGHT
from duewheel.wheel.storage.timelines.chain_ends import INDEX_BYTES

FIXED = "fixed"
_RARELY_MORE = "fixed; more where ingest.trigger_ms is large"
Value = int | str | dict[str, int] | None


def bounds_in_force(settings: Settings) -> dict[str, BoundInForce]:
    """Builds the section `bounds` of `config check` and `status`: by name, `value` and `from`."""
    set_by, ready = partial(_set, settings), ReadyBounds.of(settings)
    transactions = publisher_limits(settings)
    rows = settings.ingest.max_offsets_per_trigger
    lowered = Attempt.read(settings.storage.data_dir / SPARK_DIR)
    unlimited = BoundInForce(value=None, source=set_by("dequeue.hot_slot").source)
    is_limited = settings.dequeue.hot_slot != "none"
    return {
        "rows_per_trigger": set_by("ingest.max_offsets_per_trigger"),
        "rows_per_trigger_now": _fixed(
            min(rows, lowered.rows) if lowered else rows,
            "rows_per_trigger; fewer after a batch out of memory",
        ),
        "bytes_per_trigger": set_by("ingest.max_bytes_per_trigger"),
        "driver_heap_bytes": set_by("ingest.driver_memory", settings.ingest.driver_memory_bytes),
        "batches_in_flight": _fixed(BATCHES_IN_MEMORY),
        "partitions": _fixed(PARTITIONS_MAX, "fixed; fewer where names of topics are long"),
        "min_free": set_by("storage.min_free", str(settings.storage.min_free)),
        "ring_slots": set_by("timer.slots", settings.wheel.ring, "twice "),
        "far_index_bytes": _fixed(INDEX_BYTES),
        "skipped_records": _fixed(SKIPPED_MAX),
        "quota_per_second": set_by("timer.topic", settings.by_topic("quota_per_second")),
        "longest_delay_ms": set_by("timer.max_delay"),
        "recurring_headers": _fixed(RECURRING_HEADERS_MAX),
        "recurring_bytes": _fixed(RECURRING_BYTES_MAX),
        "hot_slot_rows": set_by("dequeue.hot_slot_limit") if is_limited else unlimited,
        "scan_records": _fixed(dequeue_config.SPAN_RECORDS),
        "queues": _fixed(QUEUES),
        "queue_records": set_by("dequeue.chunk_records"),
        "queue_bytes": set_by("dequeue.chunk_bytes"),
        "chunks_in_memory": _fixed(CHUNKS_IN_MEMORY),
        "read_ahead_ms": set_by("dequeue.read_ahead"),
        "read_ahead_bytes": set_by("dequeue.read_ahead_bytes"),
        "topic_series": _fixed(TOPIC_SERIES_MAX),
        "transactions_in_flight": _fixed(TRANSACTIONS_IN_FLIGHT),
        "transaction_records": set_by("dequeue.chunk_records"),
        "transaction_bytes": set_by("dequeue.chunk_bytes"),
        "transaction_partitions": _fixed(dequeue_config.PARTITIONS_MAX),
        "transaction_recurring": _fixed(dequeue_config.RECURRING_MAX),
        "transaction_answers": _fixed(dequeue_config.REPLIES_MAX),
        "transaction_timeout_ms": set_by("dequeue.transaction_timeout_ms"),
        "call_deadline_ms": set_by("dequeue.call_deadline"),
        "batch_bytes": _fixed(transactions.batch_bytes),
        "batch_bytes_max": _fixed(
            transactions.batch_bytes_max, "fixed; less where a topic takes less"
        ),
        "ready_silence_ms": _fixed(ready.silence_ms),
        "ready_lag_ms": _fixed(ready.lag_ms, _RARELY_MORE),
        "ready_batch_ms": _fixed(ready.batch_ms, _RARELY_MORE),
        "ready_unplanned_ms": _fixed(ready.unplanned_ms),
        "ready_behind_ms": _fixed(ready.behind_ms),
    }


def _set(settings: Settings, key: str, value: Value = None, how: str = "") -> BoundInForce:
    """Makes a bound of the setting's value, or of another one that follows from it."""
    if value is None:
        value = settings.of(key)
    return BoundInForce(value=value, source=f"{how}{key} ({settings.source(key)})")


def _fixed(value: int, source: str = FIXED) -> BoundInForce:
    return BoundInForce(value=value, source=source)
