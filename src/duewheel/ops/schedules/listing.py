"""The schedules that are pending in a shard, from its mapped files.

A name belongs to its timer topic: who may write to another one can have the same name there.

Between a firing and the moment at which ingest has taken the copy of the next instant, which is
usually less than a second, a schedule is not pending anywhere. So who names one looks again after
pauses: `patiently`. A look is a pass over all logs.

Then it reads the messages of the schedules that its topics and name select: the writers of a topic
decide how many. So it has a bound in time, but for `schedule apply`. A list that it ends says that
there may be more. A search for one name is refused: the newest copy might be among those not read.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, islice
from typing import TypeVar

from duewheel.api.schedules import NextInstants, ScheduleList, ScheduleSummary
from duewheel.clock import Clock
from duewheel.config.settings import Settings
from duewheel.deadline import Deadline
from duewheel.errors import ConfigError, NoSuchSchedule, TooMuch
from duewheel.ops.files import open_files
from duewheel.ops.named_timer_topic import narrowed, timer_topic_of
from duewheel.ops.schedules.read_before_change import LogEnds, files_to_change
from duewheel.ops.schedules.schedule_record import without_messages
from duewheel.ops.timers.pending import SEARCH_S, shard_fields, source_of
from duewheel.schemas.partition_names import partition_name
from duewheel.schemas.topic_scope import ALL_TOPICS, TopicScope
from duewheel.wheel.inspect.listing import Filter, PendingTimer, list_chunks
from duewheel.wheel.storage.data_directory import DataDirectory

NEXT = 10
SERVED_MAX = 10_000
HINTS_MAX = 100
HINTS_S = 1.0
READ_PAUSES_S = (0.3,) * 3  # a read needs no token
CHANGE_PAUSES_S = (0.15,) * 20  # one that fires each second is found if it is pending for 50 ms

T = TypeVar("T")


def list_schedules(
    settings: Settings,
    clock: Clock,
    limit: int,
    timer_topic: str | None = None,
    scope: TopicScope = ALL_TOPICS,
    within_s: float = math.inf,
) -> ScheduleList:
    """Lists the schedules of the timer topics in `scope`, or of one of them, by name; those that
    fire first, if there are more than `limit`, or it takes longer than `within_s`. Keeps and
    decodes no message.

    Raises:
        ConfigError: there is no data directory, or no such timer topic.
        CorruptFile: a pending timer is damaged.
    """
    scope = narrowed(settings, scope, timer_topic)
    rows, deadline, more = list[ScheduleSummary](), Deadline(within_s), False
    with open_files(settings) as directory:
        of_shard = shard_fields(settings, directory)
        for part in _summaries(directory, clock, scope):
            rows += part
            more = len(rows) > limit or deadline.is_over
            if more:
                break
    return ScheduleList(**of_shard, schedules=_by_name(rows[:limit]), more=more)


def all_schedules(
    settings: Settings,
    clock: Clock,
    limit: int = sys.maxsize,
    timer_topic: str | None = None,
) -> Iterator[ScheduleSummary]:
    """Yields the schedules of all timer topics, or of one: SERVED_MAX of those that fire first, by
    name, then as many of those that fire next, until `limit`. Raises as `list_schedules`.
    """
    scope = narrowed(settings, ALL_TOPICS, timer_topic)
    with open_files(settings) as directory:
        parts = _summaries(directory, clock, scope)
        rows = islice(chain.from_iterable(parts), limit)
        while some := list(islice(rows, SERVED_MAX)):
            yield from _by_name(some)


def _summaries(
    directory: DataDirectory, clock: Clock, scope: TopicScope
) -> Iterator[list[ScheduleSummary]]:
    now_ms = clock.now_ms()
    for timers in pending_copies(directory, scope=scope):
        records = without_messages(timers)
        yield [r.summary(now_ms, timer) for r, timer in zip(records, timers, strict=True)]


def _by_name(rows: list[ScheduleSummary]) -> list[ScheduleSummary]:
    return sorted(rows, key=lambda row: (row.name, row.timer_topic))


def show_schedule(
    settings: Settings, clock: Clock, name: str, timer_topic: str | None
) -> ScheduleSummary:
    """One schedule. Raises as `require_schedule`."""
    timer = require_schedule(settings, name, timer_topic)
    (record,) = without_messages([timer])
    return record.summary(clock.now_ms(), timer)


def next_instants(
    settings: Settings, clock: Clock, name: str, timer_topic: str | None
) -> NextInstants:
    """The next ten instants of a schedule, pauses aside. Raises as `require_schedule`."""
    timer = require_schedule(settings, name, timer_topic)
    (record,) = without_messages([timer])
    recurrence = record.recurrence
    return NextInstants(
        name=name,
        zone=None if recurrence.cron is None else recurrence.zone,
        paused=recurrence.paused,
        due_ms=list(islice(record.coming_instants(clock.now_ms(), timer), NEXT)),
    )


def require_schedule(
    settings: Settings, name: str, timer_topic: str | None, *, ends: LogEnds | None = None
) -> PendingTimer:
    """The pending copy of a schedule.

    Args:
        timer_topic: by default the first of `timer.topics`.
        ends: for a change: as `files_to_change`.

    Raises:
        NoSuchSchedule: there is none of this name in this timer topic; names others that have one.
        ConfigError, RecoveryPending, IngestBehind: as `find_schedules`, or there is no such timer
            topic.
    """
    topic = timer_topic_of(settings, timer_topic)
    files = open_files(settings) if ends is None else files_to_change(settings, ends)
    with files as directory:
        found = _matching(directory, {name: topic})
        others = set[str]() if found else _with_schedule(directory, name)
    if name in found:
        return found[name]
    hint = f"; there is one in {' and '.join(sorted(others))}: name that one" if others else ""
    fired = "one that has just fired appears once ingest has read its next timer"
    raise NoSuchSchedule(f"{topic} has no schedule {name!r} in this shard ({fired})", hint)


def find_schedules(
    settings: Settings, wanted: Mapping[str, str], ends: LogEnds
) -> dict[str, PendingTimer]:
    """The pending copies of schedules that are to be changed, by name.

    Args:
        wanted: their timer topics by their names.
        ends: as `files_to_change`.

    Raises:
        ConfigError: there is no data directory; one is pending in several partitions; or the copies
            of one name cannot be read within SEARCH_S. Several names are not bounded.
        RecoveryPending, IngestBehind: as `files_to_change`.
    """
    with files_to_change(settings, ends) as directory:
        return _matching(directory, wanted)


async def patiently(
    call: Callable[[], Awaitable[T]],
    pauses_s: Sequence[float],
    sleep: Callable[[float], Awaitable[None]],
    last: Callable[[], Awaitable[T]] | None = None,
) -> T:
    """Calls it, and again after each pause, until it does not raise NoSuchSchedule; after all
    pauses it calls `last`, if given.
    """
    for pause_s in pauses_s:
        with suppress(NoSuchSchedule):
            return await call()
        await sleep(pause_s)
    return await (call() if last is None else last())


def _matching(directory: DataDirectory, wanted: Mapping[str, str]) -> dict[str, PendingTimer]:
    """The pending copies, by one pass that reads no message of another timer topic: there anyone
    may have the same names, any number of times.
    """
    if len(wanted) == 1:
        parts = _in_time(directory, *wanted.items())
    else:
        parts = copies_of(directory, wanted.values())
    found = dict[str, PendingTimer]()
    for timer in chain.from_iterable(parts):
        name = timer.id.decode(errors="surrogateescape")
        topic, partition, offset = source_of(timer)
        if wanted.get(name) != topic:
            continue
        _, former, newest = source_of(found.setdefault(name, timer))
        if former != partition:
            names = " and ".join(partition_name((topic, n)) for n in sorted({partition, former}))
            cancel = "cancel all but one by id and partition"
            raise ConfigError(f"{name!r} is pending in {names}: {cancel}")
        if offset > newest:
            found[name] = timer
    return found


def _in_time(directory: DataDirectory, named: tuple[str, str]) -> Iterator[list[PendingTimer]]:
    """Yields the copies of a name in a timer topic; TooMuch if reading them takes longer than
    SEARCH_S. The pass over the logs before the first part does not count: its length is no fault of
    the name's, and no other try would be shorter.
    """
    name, topic = named
    parts = copies_of(directory, [topic], _id_of(name))
    first = next(parts, [])
    deadline = Deadline(SEARCH_S)
    for part in chain([first], parts):
        if deadline.is_over:
            raise TooMuch(
                f"too many schedules have the name {name!r} in {topic}: the search ended after "
                f"{SEARCH_S:g} s; cancel this id, then set the schedule again"
            )
        yield part


def _with_schedule(directory: DataDirectory, name: str) -> set[str]:
    """Timer topics that have a schedule of this name: a hint, from few of them."""
    wanted = Filter(timer_id=_id_of(name), recurring=True, live=True)
    topics, deadline = set[str](), Deadline(HINTS_S)
    for chunk in list_chunks(directory, wanted, HINTS_MAX):
        topics.update(source_of(timer)[0] for timer in chunk.timers)
        if deadline.is_over:
            break
    return topics


def _id_of(name: str) -> bytes:
    return name.encode(errors="surrogateescape")


def copies_of(
    directory: DataDirectory, topics: Iterable[str], timer_id: bytes | None = None
) -> Iterator[list[PendingTimer]]:
    """Yields as `pending_copies` those of the named timer topics, none without a name."""
    if names := tuple(sorted(set(topics))):
        yield from pending_copies(directory, timer_id, TopicScope(names))


def pending_copies(
    directory: DataDirectory, timer_id: bytes | None = None, scope: TopicScope = ALL_TOPICS
) -> Iterator[list[PendingTimer]]:
    """Yields the recurring timers that are not cancelled, all or those with an id, in the order in
    which they leave. They come in parts, because their messages may be large.
    """
    wanted = Filter(timer_id=timer_id, recurring=True, live=True, timer_topics=scope)
    for chunk in list_chunks(directory, wanted, sys.maxsize):
        yield chunk.timers
