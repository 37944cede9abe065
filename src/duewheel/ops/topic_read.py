"""`duewheel topic read`: the committed records of a topic, as a consumer of it gets them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from duewheel.config.settings import Settings
from duewheel.errors import ConfigError
from duewheel.kafka.admin import KafkaAdmin
from duewheel.kafka.bounded_reader import Bound, BoundedReader
from duewheel.kafka.clients import ClientSettings
from duewheel.ops.listed_timers import key_shown
from duewheel.schemas.header_names import DUE_MS

_CHUNK_RECORDS = 500
_AGAIN_S = 0.2  # between two looks for new records


def records_of(
    settings: Settings, topic: str, since: Bound | None, *, follow: bool
) -> Iterator[dict[str, Any]]:
    """Yields committed records; those read at once are in the order of their timestamps.

    Args:
        settings: of the cluster.
        topic: any topic that this user may read.
        since: the first record of each partition; None: its present end.
        follow: go on at the present end, for ever.

    Raises:
        ConfigError: there is no such topic.
        KafkaUnavailable: no answer in time.
    """
    client = ClientSettings(settings.kafka.client_options("consumer"))
    with KafkaAdmin(settings.kafka.client_options("admin")) as admin:
        if topic not in admin.describe_partitions([topic]):
            raise ConfigError(f"Kafka at {settings.kafka.servers} has no topic {topic!r}")
        starts, ends = admin.log_start_offsets([topic]), admin.stable_offsets([topic])
        at = ends
        if since is not None:
            firsts = since.offsets(ends, lambda time_ms: admin.offsets_at([topic], time_ms))
            at = {place: max(starts[place], first) for place, first in firsts.items()}
        with BoundedReader(client, _CHUNK_RECORDS) as reader:
            while True:
                bounds = {place: (first, ends[place]) for place, first in at.items()}
                for chunk in reader.read(bounds):
                    for record in sorted(chunk.records, key=lambda each: each.timestamp):
                        yield _row(record)
                if not follow:
                    return
                at = ends
                while (ends := admin.stable_offsets([topic])) == at:
                    time.sleep(_AGAIN_S)
                at = {place: at.get(place, 0) for place in ends}


def _row(record: Any) -> dict[str, Any]:
    headers = [(name, _text(value)) for name, value in record.headers]
    due_ms = dict(record.headers).get(DUE_MS, b"")
    return {
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp,
        **key_shown(record.key),
        "value": _text(record.value),
        "headers": headers,
        "late_ms": record.timestamp - int(due_ms) if due_ms.isdigit() else None,
    }


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="backslashreplace")
