"""The schedules that are pending in a shard, from its mapped files.

Between a firing and the moment at which ingest has taken the copy of the next instant, which is
usually less than a second, a schedule is not pending anywhere: who names one waits for it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Iterator
from itertools import islice

from duewheel.api.schedules import NextInstants, ScheduleList, ScheduleSummary
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError, NoSuchSchedule
from duewheel.ops.files import opened
from duewheel.ops.schedules.records import ScheduleRecord, records_of
from duewheel.ops.timers.pending import source_of
from duewheel.wheel.inspect.listing import Filter, PendingTimer, list_pending
from duewheel.wheel.storage.data_directory import DataDirectory

NEXT = 10
SERVED_MAX = 10_000
ON_ITS_WAY_S = 3.0
_PAUSE_S = 0.05


def listed(settings: Settings, limit: int = sys.maxsize) -> ScheduleList:
    """Lists the schedules by name; those that fire first, if there are more than `limit`.

    Raises:
        ConfigError: there is no data directory.
        CorruptFile: a pending timer is damaged.
    """
    with opened(settings) as directory:
        timers = list(islice(pending(directory), min(limit, sys.maxsize - 1) + 1))
    records = records_of(timers[:limit])
    rows = [record.summary(timer) for record, timer in zip(records, timers, strict=False)]
    rows.sort(key=lambda row: row.name)
    return ScheduleList(schedules=rows, more=len(timers) > limit)


def shown(settings: Settings, name: str) -> ScheduleSummary:
    """One schedule. Raises as `required`."""
    timer = required(settings, name)
    return ScheduleRecord.of(timer).summary(timer)


def next_instants(settings: Settings, name: str) -> NextInstants:
    """The next ten instants of a schedule, pauses aside. Raises as `required`."""
    timer = required(settings, name)
    record = ScheduleRecord.of(timer)
    recurrence = record.recurrence
    return NextInstants(
        name=name,
        zone=None if recurrence.cron is None else recurrence.zone,
        paused=recurrence.paused,
        due_ms=list(islice(record.instants(timer), NEXT)),
    )


def required(settings: Settings, name: str) -> PendingTimer:
    """The pending copy of a schedule.

    Raises:
        NoSuchSchedule: there is none of this name here.
        ConfigError: as `by_name`.
    """
    found = by_name(settings, [name], ON_ITS_WAY_S).get(name)
    if found is None:
        raise NoSuchSchedule(f"there is no schedule {name!r} in this shard")
    return found


def by_name(settings: Settings, names: Collection[str], within_s: float) -> dict[str, PendingTimer]:
    """The pending copies of schedules, as far as they are found within the time.

    Raises:
        ConfigError: there is no data directory, or one is pending in several partitions.
    """
    end_s = time.monotonic() + within_s
    found = dict[str, PendingTimer]()
    with opened(settings) as directory:
        while True:
            found |= _matching(directory, set(names) - found.keys())
            if len(found) == len(names) or time.monotonic() >= end_s:
                return found
            time.sleep(_PAUSE_S)


def _matching(directory: DataDirectory, names: Collection[str]) -> dict[str, PendingTimer]:
    """One pass for a single name, and for many."""
    only = next(iter(names)).encode(errors="surrogateescape") if len(names) == 1 else None
    found = dict[str, PendingTimer]()
    for timer in pending(directory, only):
        name = timer.id.decode(errors="surrogateescape")
        if name not in names:
            continue
        topic, partition, offset = source_of(timer)
        former = source_of(found.setdefault(name, timer))
        if former[:2] != (topic, partition):
            places = sorted({f"{topic}-{partition}", f"{former[0]}-{former[1]}"})
            cancel = "cancel all but one by id and partition"
            raise ConfigError(f"{name!r} is pending in {' and '.join(places)}: {cancel}")
        if offset > former[2]:
            found[name] = timer
    return found


def pending(directory: DataDirectory, timer_id: bytes | None = None) -> Iterator[PendingTimer]:
    """The recurring timers, all or those with an id, in the order in which they leave."""
    wanted = Filter(timer_id=timer_id, recurring=True)
    timers = list_pending(directory, wanted, sys.maxsize)
    return (timer for timer in timers if not timer.cancelled)
