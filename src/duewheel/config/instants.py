"""Instants given one by one, as epoch milliseconds or ISO-8601 with a zone, are rounded up here.

schemas/request/header_values.py does the same with columns of header values.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta, tzinfo
from decimal import Decimal

from duewheel.errors import ConfigError

MS_MAX = 10**15 - 1  # 31,000 years; EPOCH_MS has as many digits
EPOCH_MS = r"^[+-]?[0-9]{1,15}$"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def ms_up(instant: datetime | timedelta | float | Decimal, per_ms: int = 1) -> int:
    """Epoch milliseconds, or those of a span, rounded up: rounded down, a timer could be early.

    >>> ms_up(datetime(2027, 1, 15, 8, 0, 0, 1, tzinfo=UTC)), ms_up(1_800_000_000.001, 1_000)
    (1800000000001, 1800000000001)

    Args:
        instant: with a zone; or a number, which counts by its decimal digits.
        per_ms: milliseconds in a unit of the number; 1,000 for seconds.

    Raises:
        ValueError, OverflowError: it is no finite number.
    """
    if isinstance(instant, datetime):
        instant -= _EPOCH
    if isinstance(instant, timedelta):
        return -(-instant // _MILLISECOND)
    # repr has the digits of a float; times 1,000 it could be a little above a whole millisecond.
    exact = Decimal(repr(instant)) if isinstance(instant, float) else Decimal(instant)
    return math.ceil(exact * per_ms)


def parse_instant(text: str) -> datetime | int:
    """Parses epoch ms, or ISO-8601 with a zone.

    Raises:
        ConfigError: it is neither.
    """
    if re.fullmatch(EPOCH_MS, text):
        return int(text)
    try:
        return datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(
            f"{text!r} is no instant: give epoch ms, or such as 2027-01-15T08:00Z"
        ) from error


def epoch_ms(instant: datetime | int) -> int:
    """Epoch milliseconds, rounded up.

    Raises:
        ConfigError: it has no zone, or is beyond all calendars.
    """
    if isinstance(instant, datetime):
        if instant.tzinfo is None:
            raise ConfigError(f"{instant} has no zone: it could be any hour")
        instant = ms_up(instant)
    if abs(instant) > MS_MAX:
        raise ConfigError(f"{instant} ms is no instant")
    return instant


def utc_text(epoch_ms: int) -> str:
    """An instant in UTC for people; its number if no calendar has it.

    >>> utc_text(1_800_000_000_050)
    '2027-01-15T08:00:00.050Z'
    """
    return instant_text(epoch_ms, UTC).replace("+00:00", "Z")


def instant_text(epoch_ms: int, zone: tzinfo) -> str:
    """An instant in a zone, as `utc_text`.

    >>> instant_text(1_800_000_000_050, UTC), instant_text(900_000_000_000_000, UTC)
    ('2027-01-15T08:00:00.050+00:00', '900000000000000 ms')
    """
    try:
        time = datetime.fromtimestamp(epoch_ms / 1000, zone)
    except (ValueError, OverflowError, OSError):  # no calendar has it
        return f"{epoch_ms} ms"
    return time.isoformat(timespec="milliseconds")
