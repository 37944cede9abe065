"""Instants as text: epoch milliseconds, or ISO-8601 with a zone."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from duewheel.errors import ConfigError

_MS_MAX = 2**53  # 285,000 years


def parse_instant(text: str) -> datetime | int:
    """Parses epoch ms, or ISO-8601 with a zone.

    Raises:
        ConfigError: it is neither.
    """
    if re.fullmatch(r"[+-]?[0-9]{1,18}", text):
        return int(text)
    try:
        return datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(
            f"{text!r} is no due time: give epoch ms, or such as 2027-01-15T08:00Z"
        ) from error


def epoch_ms(instant: datetime | int) -> int:
    """Converts an instant to epoch milliseconds.

    Raises:
        ConfigError: it has no zone, or lies beyond all calendars.
    """
    if isinstance(instant, datetime):
        if instant.tzinfo is None:
            raise ConfigError(f"{instant} has no zone: it could be any hour")
        instant = round(instant.timestamp() * 1000)
    if abs(instant) > _MS_MAX:
        raise ConfigError(f"{instant} ms is no instant")
    return instant


def utc_text(epoch_ms: int) -> str:
    """An instant in UTC, as people read it; its number if no calendar has it.

    >>> utc_text(1_800_000_000_050)
    '2027-01-15T08:00:00.050Z'
    """
    try:
        time = datetime.fromtimestamp(epoch_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{epoch_ms} ms"
    return f"{time.replace(tzinfo=None).isoformat(timespec='milliseconds')}Z"
