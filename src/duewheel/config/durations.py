"""Durations as text: "24h", "50ms", "1h30m". Imports only the standard library."""

from __future__ import annotations

import re
from decimal import Decimal

_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_PART = re.compile(r"([0-9.]+) *(ms|[smhd])")
# Three decimals of a unit from seconds up are a whole number of milliseconds.
DURATION = r"^(?:[0-9]+(?:\.[0-9]{1,3})? *[smhd] *|[0-9]+ *ms *)+$"


def parse_duration_ms(text: str) -> int:
    """Parses a duration; returns its milliseconds.

    >>> [parse_duration_ms(text) for text in ("50ms", "24h", "1.5h", "1h 30m", "0s")]
    [50, 86400000, 5400000, 5400000, 0]
    >>> parse_duration_ms("90")
    Traceback (most recent call last):
    ValueError: "90" is no duration in a whole number of milliseconds: give such as "24h" or "1.5s"

    Raises:
        ValueError: another form than DURATION, or more than 2**53 ms.
    """
    text = text.strip()
    if not re.fullmatch(DURATION, text):
        form = 'is no duration in a whole number of milliseconds: give such as "24h" or "1.5s"'
        raise ValueError(f'"{text}" {form}')
    total = sum(Decimal(number) * _UNIT_MS[unit] for number, unit in _PART.findall(text))
    if total > 2**53:
        raise ValueError("a duration of more than 2**53 ms is longer than any that can be kept")
    return int(total)


def format_duration_ms(duration_ms: int) -> str:
    """A duration in the largest unit, up to hours, that divides it.

    >>> [format_duration_ms(ms) for ms in (86_400_000, 5_400_000, 1_500, 0)]
    ['24h', '90m', '1500ms', '0ms']
    """
    for unit in ("h", "m", "s"):
        if duration_ms and duration_ms % _UNIT_MS[unit] == 0:
            return f"{duration_ms // _UNIT_MS[unit]}{unit}"
    return f"{duration_ms}ms"


def duration_text(span_ms: int) -> str:
    """Formats any duration for people: exactly below ten seconds, else as `about`.

    >>> [duration_text(ms) for ms in (1_500, -250, 61_999, 86_400_000)]
    ['1500ms', '-250ms', '1m1s', '1d']
    """
    sign, span_ms = "-" if span_ms < 0 else "", abs(span_ms)
    return sign + (about(span_ms) if span_ms >= 10_000 else format_duration_ms(span_ms))


def about(span_ms: int) -> str:
    """A duration for people: its two largest units, rounded down.

    >>> [about(ms) for ms in (0, 850, 61_999, 3_600_000, 100_000_000)]
    ['0ms', '850ms', '1m1s', '1h', '1d3h']
    """
    if span_ms < 1_000:
        return f"{max(0, span_ms)}ms"
    parts: list[tuple[int, str]] = []
    for unit in ("d", "h", "m", "s"):
        count, span_ms = divmod(span_ms, _UNIT_MS[unit])
        if count or parts:
            parts.append((count, unit))
    return "".join(f"{count}{unit}" for count, unit in parts[:2] if count)
