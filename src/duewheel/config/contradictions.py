"""Rules between settings that are valid one by one. Each rule yields (key, reason)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from duewheel.config.credentials import SECRET_FILES, credential_problems
from duewheel.config.durations import duration_text as shown
from duewheel.config.keys_and_defaults import (
    RegistrySection,
    ServeSection,
    TimerSection,
    client_defaults,
)
from duewheel.config.nearest_name import nearest
from duewheel.config.topic_contradictions import topic_problems
from duewheel.config.values import as_millis
from duewheel.wheel.slots import DELAY_MS_MAX

if TYPE_CHECKING:
    from duewheel.config.settings import Settings

# Options that duewheel sets itself: the setting to use instead, or the reason.
_OWNED_CLIENT = {
    "bootstrap_servers": "set kafka.bootstrap_servers",
    "transactional_id": "it follows from app.id and the shard",
    "transaction_timeout_ms": "set dequeue.transaction_timeout_ms",
    "enable_idempotence": "exactly-once delivery requires it",
    "acks": "exactly-once delivery requires `all`",
    "group_id": "duewheel's consumers have no group",
    "isolation_level": "uncommitted records must not be read",
    "enable_auto_commit": "progress is committed with the deliveries",
    "auto_offset_reset": "duewheel seeks by itself",
    "partitioner": "keys choose the same partition as in Kafka's Java client",
    "retry_backoff_ms": "small transactions need a short one",
    "bootstrap_timeout_ms": "every call has a deadline of duewheel's own",
} | {
    f"{part}_{direction}serializer": "bytes are passed unchanged"
    for part in ("key", "value")
    for direction in ("", "de")
}
_OWNED_SPARK = {
    "spark.master": "set ingest.spark_master",
    "spark.submit.deployMode": "the driver works on the files of this host",
    "spark.dynamicAllocation.enabled": "a timer would wait for the start of an executor",
    "spark.driver.memory": "set ingest.driver_memory",
    "spark.remote": "Spark Connect runs the sink in another process, away from its files",
    "spark.api.mode": "Spark Connect runs the sink in another process, away from its files",
    "spark.sql.session.timeZone": "record timestamps are read as UTC",
    "spark.sql.streaming.checkpointLocation": "it lies in storage.data_dir",
    "spark.sql.execution.arrow.compression.codec": "compressed Arrow takes seconds per batch",
}
# On Kubernetes executors are pods of one of these images.
_IMAGES = {"spark.kubernetes.container.image", "spark.kubernetes.executor.container.image"}


def contradictions(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yields every contradiction."""
    yield from _wheel_problems(settings.timer)
    yield from topic_problems(settings)
    spreads = settings.dequeue.hot_slot == "spread"
    window_ms = as_millis(settings.dequeue.hot_slot_window)
    if spreads and window_ms + settings.timer.precision_ms > as_millis(settings.timer.roll_window):
        yield (
            "dequeue.hot_slot_window",
            "must be a slot shorter than timer.roll_window: a copy leaves within it",
        )
    timeout_ms = settings.dequeue.transaction_timeout_ms
    if as_millis(settings.dequeue.call_deadline) >= timeout_ms:
        yield (
            "dequeue.call_deadline",
            f"must be below dequeue.transaction_timeout_ms = {timeout_ms}: brokers abort it then",
        )
    shard = settings.shard
    if shard.index >= shard.count:
        yield "shard.index", f"must be below shard.count = {shard.count}"
    if settings.audit.rows_min > settings.audit.rows_max:
        yield "audit.rows_min", f"is above audit.rows_max = {settings.audit.rows_max}"
    yield from _serve_problems(settings.serve)
    yield from _registry_problems(settings.registry)
    yield from _owned("kafka.client", settings.kafka.client, _OWNED_CLIENT)
    for name, reason in credential_problems(settings.kafka.client):
        yield f"kafka.client.{name}", reason
    yield from _owned("spark", settings.spark, _OWNED_SPARK)
    if settings.ingest.spark_master.startswith("k8s:") and not _IMAGES & settings.spark.keys():
        yield "ingest.spark_master", "executors on Kubernetes need spark.kubernetes.container.image"
    if settings.ingest.shared_folder and settings.ingest.spark_master.startswith("local"):
        yield "ingest.shared_folder", "tasks of this host need none: ingest.spark_master is local"
    yield from _unknown_options(settings)


def _wheel_problems(timer: TimerSection) -> Iterator[tuple[str, str]]:
    span_ms = timer.slots * timer.precision_ms
    window_ms, margin_ms = as_millis(timer.roll_window), as_millis(timer.margin)
    if window_ms < timer.precision_ms:
        yield "timer.roll_window", f"is shorter than one slot of {shown(timer.precision_ms)}"
    # In milliseconds: rounded, both sides may look the same.
    reach = f"slots × precision_ms = {timer.slots:_} × {timer.precision_ms:_} = {span_ms:_} ms"
    remedies = [*_fitting(timer, window_ms, window_ms + margin_ms), "lower timer.roll_window"]
    if window_ms + margin_ms > span_ms:
        sum_text = f"roll_window + margin = {window_ms + margin_ms:_} ms"
        remedy = ", or ".join(remedies)
        yield "timer.roll_window", f"{sum_text} exceed {reach}, the reach of the wheel: {remedy}"
    if span_ms >= DELAY_MS_MAX:
        bound_text = f"must be below 2**30 = {DELAY_MS_MAX:_} ms, the reach of a log record"
        remedy = ", or ".join(remedies[:-1] or remedies)
        yield "timer.slots", f"{reach} {bound_text}: {remedy}"


def _fitting(timer: TimerSection, window_ms: int, needed_ms: int) -> Iterator[str]:
    """Yields the values of each factor of the reach that fit while the other stays as it is."""
    for name, other, bound in (
        ("slots", timer.precision_ms, DELAY_MS_MAX),
        ("precision_ms", timer.slots, window_ms),
    ):
        least, most = max(1, -(-needed_ms // other)), min((DELAY_MS_MAX - 1) // other, bound)
        if least <= most:
            yield f"set timer.{name} from {least:_} to {most:_}"


def _serve_problems(serve: ServeSection) -> Iterator[tuple[str, str]]:
    if not (serve.is_loopback or serve.read_token_file or serve.open_reads):
        remedy = "set serve.read_token_file; or serve.open_reads = true behind a proxy that decides"
        yield "serve.host", f"other hosts could read ids and keys of all timers: {remedy}"
    if (serve.tls_cert_file is None) != (serve.tls_key_file is None):
        yield "serve.tls_key_file", "TLS needs serve.tls_cert_file and serve.tls_key_file"


def _registry_problems(registry: RegistrySection) -> Iterator[tuple[str, str]]:
    if registry.url is None and registry != RegistrySection():
        yield "registry.url", "must be set: the other settings are for it"
    if (registry.user is None) != (registry.password_file is None):
        yield "registry.user", "goes with registry.password_file"
    if registry.token_file and registry.password_file:
        yield "registry.token_file", "is for a registry without registry.user: leave one out"


def _owned(
    table: str, options: Mapping[str, Any], owned: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    for name in options:
        if name in owned:
            yield f"{table}.{name}", f"is set by duewheel: {owned[name]}"


def _unknown_options(settings: Settings) -> Iterator[tuple[str, str]]:
    if settings.kafka.client:
        # Producers, consumers and admin clients take the same table.
        known = set.intersection(*(set(options) for options in client_defaults().values()))
        known |= SECRET_FILES.keys()
        for name in settings.kafka.client.keys() - known - _OWNED_CLIENT.keys():
            hint = nearest(name, known)
            yield f"kafka.client.{name}", f"not an option of all of kafka-python's clients{hint}"
    for name in settings.spark:
        if not name.startswith("spark."):
            yield f"spark.{name}", "Spark's options begin with `spark.`, also in this table"
