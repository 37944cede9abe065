"""Times as people read them; programs get milliseconds, with `--output json`."""

from __future__ import annotations

from datetime import UTC, datetime

_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000))


def instant(epoch_ms: int) -> str:
    """An instant in UTC; its number if no calendar has it.

    >>> instant(1_800_000_000_050)
    '2027-01-15T08:00:00.050Z'
    """
    try:
        time = datetime.fromtimestamp(epoch_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{epoch_ms} ms"
    return f"{time.replace(tzinfo=None).isoformat(timespec='milliseconds')}Z"


def span(span_ms: int) -> str:
    """A duration in its two largest units, rounded down.

    >>> [span(ms) for ms in (0, 850, 61_999, 3_600_000, 100_000_000)]
    ['0ms', '850ms', '1m1s', '1h', '1d3h']
    """
    if span_ms < 1_000:
        return f"{max(0, span_ms)}ms"
    parts = []
    for unit, unit_ms in _UNITS:
        count, span_ms = divmod(span_ms, unit_ms)
        if count or parts:
            parts.append((count, unit))
    return "".join(f"{count}{unit}" for count, unit in parts[:2] if count)


def distance(epoch_ms: int, now_ms: int) -> str:
    """How far an instant is from now.

    >>> distance(1_090_000, 1_000_000), distance(1_000_000, 1_090_000)
    ('in 1m30s', '1m30s ago')
    """
    ahead_ms = epoch_ms - now_ms
    return f"in {span(ahead_ms)}" if ahead_ms >= 0 else f"{span(-ahead_ms)} ago"


def moment(epoch_ms: int, now_ms: int) -> str:
    """An instant, and how far it is from now.

    >>> moment(1_800_000_000_050, 1_800_000_000_000)
    '2027-01-15T08:00:00.050Z (in 50ms)'
    """
    return f"{instant(epoch_ms)} ({distance(epoch_ms, now_ms)})"
