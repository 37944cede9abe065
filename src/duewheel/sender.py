"""`duewheel send`: one timer, from the command line, through a plain Kafka producer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from kafka import KafkaProducer
from kafka.errors import KafkaError

from duewheel.config import Settings
from duewheel.durations import parse_duration_ms
from duewheel.errors import ConfigError, KafkaUnavailable
from duewheel.schemas import header_names as names
from duewheel.schemas.header_names import REQUEST
from duewheel.schemas.headers import Field
from duewheel.schemas.requests import due_times

_ANSWER_S = 15.0


def due_header(deliver_at: str | None, delay: str | None, level: int | None) -> tuple[str, bytes]:
    """The one request header that says when.

    Raises:
        ConfigError: none or several are given, or a duration cannot be read.
    """
    given = [value for value in (deliver_at, delay, level) if value is not None]
    if len(given) != 1:
        raise ConfigError("give exactly one of --deliver-at, --delay and --level")
    if deliver_at is not None:
        return "TIMER_DELIVER_MS", deliver_at.encode()
    if level is not None:
        return "DELAY", str(level).encode()
    assert delay is not None
    try:
        return "TIMER_DELAY_MS", str(parse_duration_ms(delay)).encode()
    except ValueError as error:
        raise ConfigError(f"--delay: {error}") from error


def send(
    settings: Settings,
    *,
    topic: str,
    value: bytes,
    key: bytes | None,
    headers: list[tuple[str, bytes]],
    when: tuple[str, bytes],
    timer_id: str | None,
    timer_topic: str | None,
) -> dict[str, Any]:
    """Write the timer and wait for Kafka's acknowledgement.

    Returns:
        id, timer_topic, partition, offset, due_ms.

    Raises:
        ConfigError: the due time cannot be read.
        KafkaUnavailable: no acknowledgement in time; the timer may or may not have been written.
    """
    if _due_ms(settings, when, 0) is None:
        raise ConfigError(f"{when[1].decode()!r} is no due time")
    request = [when, ("REAL_TOPIC", topic.encode())]
    if timer_id is not None:
        request.append((names.TIMER_ID, timer_id.encode()))
    written_to = timer_topic or settings.timer.topics[0]
    options = settings.kafka.client_options("producer")
    try:
        producer = KafkaProducer(**{"max_block_ms": int(_ANSWER_S * 1000), **options})
        try:
            sent = producer.send(written_to, value, key=key, headers=[*headers, *request])
            metadata = sent.get(timeout=_ANSWER_S)
        finally:
            producer.close(timeout=1)
    except KafkaError as error:
        raise KafkaUnavailable(f"Kafka at {settings.kafka.servers}: {error}") from error
    return {
        "id": timer_id or f"{written_to}-{metadata.partition}@{metadata.offset}",
        "timer_topic": written_to,
        "partition": metadata.partition,
        "offset": metadata.offset,
        "due_ms": _due_ms(settings, when, metadata.timestamp),
    }


def _due_ms(settings: Settings, when: tuple[str, bytes], timestamp_ms: int) -> int | None:
    """When the timer is due, by the rule that ingest applies to the header."""
    name, value = when
    asked = Field(np.zeros(1, np.int64), pa.array([value], pa.large_binary()))
    due = due_times({REQUEST[name]: asked}, np.array([timestamp_ms]), settings.timer.levels_ms)
    return int(due.due_ms[0]) if due.known[0] else None
