"""`duewheel send`: one timer, from the command line, through a DelayProducer."""

from __future__ import annotations

import re
from dataclasses import asdict
from datetime import datetime
from typing import Any

from kafka.errors import KafkaError

from duewheel.client import DelayProducer, DueTime
from duewheel.config import Settings
from duewheel.errors import ConfigError, KafkaUnavailable

_ANSWER_S = 15.0


def send(
    settings: Settings,
    *,
    topic: str,
    value: bytes,
    key: bytes | None,
    headers: list[tuple[str, bytes]],
    deliver_at: str | None,
    delay: str | None,
    level: int | None,
    timer_id: str | None,
    timer_topic: str | None,
) -> dict[str, Any]:
    """Write the timer and wait for Kafka's acknowledgement.

    Returns:
        id, timer_topic, partition, offset, due_ms.

    Raises:
        ConfigError: the due time cannot be read, or a header is reserved.
        KafkaUnavailable: no acknowledgement in time; the timer may or may not have been written.
    """
    instant = None if deliver_at is None else parse_instant(deliver_at)
    DueTime.asked(instant, delay, level)  # what is wrong here is said without a broker, too
    options = {"max_block_ms": int(_ANSWER_S * 1000), **settings.kafka.client_options("producer")}
    try:
        producer = DelayProducer(
            timer_topic or settings.timer.topics[0], levels_ms=settings.timer.levels_ms, **options
        )
        try:
            asked = producer.schedule(
                topic,
                value,
                key=key,
                headers=headers,
                deliver_at=instant,
                delay=delay,
                level=level,
                id=timer_id,
            )
            return asdict(asked.result(_ANSWER_S))
        finally:
            producer.close(1)
    except (KafkaError, TimeoutError) as error:
        reason = str(error) or "no acknowledgement in time"
        raise KafkaUnavailable(f"Kafka at {settings.kafka.servers}: {reason}") from error


def parse_instant(text: str) -> datetime | int:
    """What a person writes: epoch ms, or ISO-8601 with a zone.

    Raises:
        ConfigError: it is neither.
    """
    if re.fullmatch(r"[+-]?[0-9]+", text):
        return int(text)
    try:
        return datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(
            f"{text!r} is no due time: epoch ms, or such as 2027-01-15T08:00Z"
        ) from error
