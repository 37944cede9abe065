"""The schedules that are pending in a shard, from its mapped files.

A name belongs to its timer topic: who may write to another one can have the same name there.

Between a firing and the moment at which ingest has taken the copy of the next instant, which is
usually less than a second, a schedule is not pending anywhere. So who names one looks again after
pauses: `patiently`, or the server, which holds no thread meanwhile. A look is a pass over all logs.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, islice
from typing import TypeVar

from duewheel.api.schedules import NextInstants, ScheduleList, ScheduleSummary
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError, NoSuchSchedule
from duewheel.ops.changes.requests import timer_topic_of
from duewheel.ops.files import opened
from duewheel.ops.schedules.records import without_messages
from duewheel.ops.timers.pending import source_of
from duewheel.wheel.inspect.listing import Filter, PendingTimer, list_chunks
from duewheel.wheel.storage.data_directory import DataDirectory

NEXT = 10
SERVED_MAX = 10_000
READ_PAUSES_S = (0.3,) * 3  # a read needs no token
CHANGE_PAUSES_S = (0.15,) * 20  # one that fires each second is found if it is pending for 50 ms

T = TypeVar("T")


def listed(settings: Settings, limit: int = sys.maxsize) -> ScheduleList:
    """Lists the schedules by name; those that fire first, if there are more than `limit`. Keeps no
    message, and decodes none.

    Raises:
        ConfigError: there is no data directory.
        CorruptFile: a pending timer is damaged.
    """
    rows = list[ScheduleSummary]()
    with opened(settings) as directory:
        for part in pending(directory):
            timers = part[: limit + 1 - len(rows)]
            records = without_messages(timers)
            rows += [r.summary(timer) for r, timer in zip(records, timers, strict=True)]
            if len(rows) > limit:
                break
    found = sorted(rows[:limit], key=lambda row: (row.name, row.timer_topic))
    return ScheduleList(schedules=found, more=len(rows) > limit)


def shown(settings: Settings, name: str, timer_topic: str | None) -> ScheduleSummary:
    """One schedule. Raises as `required`."""
    timer = required(settings, name, timer_topic)
    (record,) = without_messages([timer])
    return record.summary(timer)


def next_instants(settings: Settings, name: str, timer_topic: str | None) -> NextInstants:
    """The next ten instants of a schedule, pauses aside. Raises as `required`."""
    timer = required(settings, name, timer_topic)
    (record,) = without_messages([timer])
    recurrence = record.recurrence
    return NextInstants(
        name=name,
        zone=None if recurrence.cron is None else recurrence.zone,
        paused=recurrence.paused,
        due_ms=list(islice(record.instants(timer), NEXT)),
    )


def required(settings: Settings, name: str, timer_topic: str | None) -> PendingTimer:
    """The pending copy of a schedule.

    Args:
        timer_topic: by default the first of `timer.topics`.

    Raises:
        NoSuchSchedule: there is none of this name in this timer topic; names others that have one.
        ConfigError: as `by_name`, or there is no such timer topic.
    """
    topic = timer_topic_of(settings, timer_topic)
    with opened(settings) as directory:
        found, others = _matching(directory, {name: topic})
    if name in found:
        return found[name]
    hint = f"; there is one in {' and '.join(sorted(others))}: name that one" if others else ""
    raise NoSuchSchedule(f"{topic} has no schedule {name!r} in this shard{hint}")


def by_name(settings: Settings, wanted: Mapping[str, str]) -> dict[str, PendingTimer]:
    """The pending copies of schedules.

    Args:
        wanted: their timer topics by their names.

    Raises:
        ConfigError: there is no data directory, or one is pending in several partitions.
    """
    with opened(settings) as directory:
        return _matching(directory, wanted)[0]


def patiently(call: Callable[[], T], pauses_s: Sequence[float]) -> T:
    """Calls it again after each pause, until it does not raise NoSuchSchedule."""
    for pause_s in pauses_s:
        with suppress(NoSuchSchedule):
            return call()
        time.sleep(pause_s)
    return call()


def _matching(
    directory: DataDirectory, wanted: Mapping[str, str]
) -> tuple[dict[str, PendingTimer], set[str]]:
    """One pass for a single name, and for many. Also returns other timer topics with the names."""
    only = next(iter(wanted)).encode(errors="surrogateescape") if len(wanted) == 1 else None
    found, others = dict[str, PendingTimer](), set[str]()
    for timer in chain.from_iterable(pending(directory, only)):
        name = timer.id.decode(errors="surrogateescape")
        if name not in wanted:
            continue
        topic, partition, offset = source_of(timer)
        if topic != wanted[name]:
            others.add(topic)
            continue
        _, former, newest = source_of(found.setdefault(name, timer))
        if former != partition:
            places = " and ".join(f"{topic}-{n}" for n in sorted({partition, former}))
            cancel = "cancel all but one by id and partition"
            raise ConfigError(f"{name!r} is pending in {places}: {cancel}")
        if offset > newest:
            found[name] = timer
    return found, others


def pending(
    directory: DataDirectory, timer_id: bytes | None = None
) -> Iterator[list[PendingTimer]]:
    """The recurring timers, all or those with an id, in the order in which they leave: in parts,
    because their messages may be large.
    """
    wanted = Filter(timer_id=timer_id, recurring=True)
    for chunk in list_chunks(directory, wanted, sys.maxsize):
        yield [timer for timer in chunk.timers if not timer.cancelled]
