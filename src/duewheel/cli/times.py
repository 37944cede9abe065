"""Times as people read them; programs get milliseconds, with `--output json`."""

from __future__ import annotations

from duewheel.config.durations import about
from duewheel.config.instants import utc_text


def distance(epoch_ms: int, now_ms: int) -> str:
    """How far an instant is from now.

    >>> distance(1_090_000, 1_000_000), distance(1_000_000, 1_090_000)
    ('in 1m30s', '1m30s ago')
    """
    ahead_ms = epoch_ms - now_ms
    return f"in {about(ahead_ms)}" if ahead_ms >= 0 else f"{about(-ahead_ms)} ago"


def moment(epoch_ms: int, now_ms: int) -> str:
    """An instant, and how far it is from now.

    >>> moment(1_800_000_000_050, 1_800_000_000_000)
    '2027-01-15T08:00:00.050Z (in 50ms)'
    """
    return f"{utc_text(epoch_ms)} ({distance(epoch_ms, now_ms)})"
