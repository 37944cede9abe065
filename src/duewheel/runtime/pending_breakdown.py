"""How many timers are pending by topic, level and time: for `duewheel stats` and the metrics."""

from __future__ import annotations

from duewheel.api.timers import PendingStats, Rolls
from duewheel.wheel.inspect.pending_counts import PendingTimers
from duewheel.wheel.slots import HOUR_MS, closable_slot
from duewheel.wheel.storage.data_directory import DataDirectory

WITHIN_S = (1, 10, 60, 300, 900, 3_600, 21_600, 86_400)


def pending_breakdown(directory: DataDirectory, timers: PendingTimers, now_ms: int) -> PendingStats:
    """The pending timers, with counts that `timers` keeps."""
    precision_ms = directory.config.precision_ms
    until = [closable_slot(now_ms + 1000 * within_s, precision_ms) for within_s in WITHIN_S]
    now, hour_later = (closable_slot(ms, precision_ms) for ms in (now_ms, now_ms + HOUR_MS))
    pending = timers.count(until, range(now + 1, hour_later + 1))
    within = {str(s): count for s, count in zip(WITHIN_S, pending.within, strict=True)}
    oldest = pending.oldest_slot
    return PendingStats(
        role="standby" if directory.state.standby else "owner",
        pending=pending.total,
        by_topic=dict(sorted(pending.by_topic.items())),
        by_level=dict(pending.by_level),
        within_s={**within, "+Inf": pending.total},
        oldest_ms=None if oldest is None else oldest * precision_ms,
        slot_max=pending.slot_max,
        beyond_ring=pending.beyond_ring,
        rolls=Rolls(
            pending=pending.rolls,
            next_hour=pending.rolls_ahead,
            per_second=round(pending.rolls_ahead / 3_600, 3),
            per_second_max=pending.rolls_per_second,
        ),
    )
