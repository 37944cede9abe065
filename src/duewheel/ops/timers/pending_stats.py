"""`duewheel stats`: counts of pending timers, from the shard's data directory alone."""

from __future__ import annotations

from collections.abc import Iterator

from duewheel.api.timers import LevelCount, PendingStats, StatsOfShard
from duewheel.clock import Clock
from duewheel.config.durations import format_duration_ms
from duewheel.config.settings import Settings
from duewheel.ops.files import open_files
from duewheel.ops.timers.pending import ShardFields, shard_fields
from duewheel.runtime.pending_breakdown import pending_breakdown
from duewheel.wheel.inspect.listing import Filter, PendingTimer, list_pending
from duewheel.wheel.inspect.pending_counts import PendingTimers
from duewheel.wheel.storage.data_directory import DataDirectory


def stats(settings: Settings, clock: Clock) -> StatsOfShard:
    """Counts pending timers by topic, by level, and by the seconds until they leave."""
    with open_files(settings) as directory:
        of_shard = shard_fields(settings, directory)
        found = pending_breakdown(directory, PendingTimers(directory), clock.now_ms())
    return stats_of(of_shard, found)


def stats_of(of_shard: ShardFields, counts: PendingStats) -> StatsOfShard:
    """Adds the fields of the shard to its counts."""
    return StatsOfShard(**of_shard, **dict(counts))


def levels(settings: Settings) -> Iterator[LevelCount]:
    """Reports of each delay level how many timers are pending, and how far it is delivered."""
    delays = dict(enumerate(settings.timer.levels_ms, 1))
    precision_ms = settings.timer.precision_ms
    with open_files(settings) as directory:
        pending = PendingTimers(directory).count()
        delivered = pending.delivered_slot
        for level in sorted(delays.keys() | pending.by_level.keys()):
            following = _next_of(directory, level, pending.next_slot.get(level))
            yield LevelCount(
                level=level,
                delay=format_duration_ms(delays[level]) if level in delays else None,
                pending=pending.by_level.get(level, 0),
                delivered_ms=delivered * precision_ms if delivered >= 0 else None,
                next_due_ms=None if following is None else following.due_ms,
                next=None if following is None else following.source,
            )


def _next_of(directory: DataDirectory, level: int, slot: int | None) -> PendingTimer | None:
    if slot is None:
        return None
    return next(list_pending(directory, Filter(level=level, first_slot=slot), 1), None)
