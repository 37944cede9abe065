"""The operations of recurring schedules: reads of the mapped files, and records in a timer topic.

A change waits for Kafka's acknowledgement, and `wait` seconds for ingest. A copy that may be on its
way, and ingest, are awaited here, so that no thread of reads or changes waits for them.
"""

from __future__ import annotations

from asyncio import sleep
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, repeat
from typing import Annotated, TypeVar

from fastapi import APIRouter, Path, Query

from duewheel.api.changes import Scheduled
from duewheel.api.requests import Topic
from duewheel.api.schedules import NextInstants, Pause, ScheduleList, ScheduleSummary
from duewheel.errors import DuewheelError, NoSuchSchedule
from duewheel.ops.named_timer_topic import timer_topic_of
from duewheel.ops.schedules import changes, listing, read_before_change
from duewheel.ops.schedules.changes import WrittenSchedule
from duewheel.ops.schedules.read_before_change import READ_S, LogEnds
from duewheel.ops.timers.pending import SEARCH_S
from duewheel.serve.change_records import Change, Changing, recorded
from duewheel.serve.changes import WAIT_MAX_S, WAIT_S
from duewheel.serve.problems import Refused, Responses, documented
from duewheel.serve.scopes import OwnSchedule, OwnTimerTopic, Scoped
from duewheel.serve.service import Service, Shared
from duewheel.serve.url_names import NAME
from duewheel.serve.waits import set_status

reading = APIRouter(prefix="/v1/schedules", tags=["schedules"])
changing = APIRouter(prefix="/v1/schedules", tags=["schedules"])

Name = Annotated[str, Path(min_length=1, max_length=200)]
Wait = Annotated[float, Query(ge=0, le=WAIT_MAX_S, description="seconds for ingest")]
OfTopic = Annotated[Topic | None, Query(description="only those of this timer topic")]
MISSING = documented(404, "no such schedule")
CHANGED: Responses = {202: {"model": ScheduleSummary}}

# The last one again and again: each look takes a thread of reads for a moment.
_TAKEN_PAUSES_S = 0.05, 0.1, 0.2, 0.4, 0.8

T = TypeVar("T")


@reading.get("", operation_id="list_schedules")
async def list_schedules(
    service: Shared, scope: Scoped, timer_topic: OfTopic = None
) -> ScheduleList:
    """The schedules of this shard by name: recurring timers that are pending, 10,000 at most. The
    search for them ends after 10 s.
    """
    wanted = listing.SERVED_MAX, timer_topic, scope
    return await service.search(listing.list_schedules, service.clock, *wanted, SEARCH_S)


# A name may have slashes: longer paths come first.
@reading.get(f"/{NAME}/next", operation_id="next_instants", responses=MISSING)
async def next_instants(service: Shared, name: Name, timer_topic: OwnTimerTopic) -> NextInstants:
    """The next ten instants of a schedule, pauses aside."""
    return await _reading(
        lambda: service.search(listing.next_instants, service.clock, name, timer_topic)
    )


@reading.get(f"/{NAME}", operation_id="show_schedule", responses=MISSING)
async def show_schedule(service: Shared, name: Name, timer_topic: OwnTimerTopic) -> ScheduleSummary:
    """One schedule."""
    return await _reading(
        lambda: service.search(listing.show_schedule, service.clock, name, timer_topic)
    )


@changing.put(f"/{NAME}", operation_id="set_schedule", responses=CHANGED)
@recorded
async def set_schedule(
    change: Changing,
    name: Name,
    new: OwnSchedule,
    wait: Wait = WAIT_S,
) -> ScheduleSummary:
    """Sets a schedule, or replaces the one of this name. 202: it is written, and not in effect."""
    _, ends = await _read_to_change(change, new.timer_topic)

    def put(*, may_add: bool) -> Awaitable[WrittenSchedule]:
        return change.service.write_pending(changes.put, name, new, ends, may_add=may_add)

    replace, add = partial(put, may_add=False), partial(put, may_add=True)
    written = await _patiently(replace, listing.READ_PAUSES_S, add)
    return await _applied(change, written, wait)


@changing.post(f"/{NAME}/pause", operation_id="pause_schedule", responses=CHANGED | MISSING)
@recorded
async def pause_schedule(
    change: Changing,
    name: Name,
    timer_topic: OwnTimerTopic,
    pause: Pause | None = None,
    wait: Wait = WAIT_S,
) -> ScheduleSummary:
    """Pauses a schedule: no instant fires until it is resumed."""
    note = "" if pause is None else pause.note
    write = change.service.write_pending
    topic, ends = await _read_to_change(change, timer_topic)
    written = await _changing(lambda: write(changes.pause, name, topic, ends, note))
    return await _applied(change, written, wait)


@changing.post(f"/{NAME}/resume", operation_id="resume_schedule", responses=CHANGED | MISSING)
@recorded
async def resume_schedule(
    change: Changing, name: Name, timer_topic: OwnTimerTopic, wait: Wait = WAIT_S
) -> ScheduleSummary:
    """Ends the pause of a schedule: the instants from now on fire."""
    write = change.service.write_pending
    topic, ends = await _read_to_change(change, timer_topic)
    written = await _changing(lambda: write(changes.resume, name, topic, ends))
    return await _applied(change, written, wait)


@changing.post(
    f"/{NAME}/trigger", operation_id="trigger_schedule", status_code=201, responses=MISSING
)
@recorded
async def trigger_schedule(change: Changing, name: Name, timer_topic: OwnTimerTopic) -> Scheduled:
    """Fires a schedule once more, now: an ordinary timer with its message. Its instants stay."""
    write = change.service.write_pending
    topic, ends = await _read_to_change(change, timer_topic)
    return await _changing(lambda: write(changes.trigger, name, topic, ends))


@changing.delete(f"/{NAME}", operation_id="stop_schedule", responses=CHANGED | MISSING)
@recorded
async def stop_schedule(
    change: Changing, name: Name, timer_topic: OwnTimerTopic, wait: Wait = WAIT_S
) -> ScheduleSummary:
    """Ends a schedule for good."""
    write = change.service.write_pending
    topic, ends = await _read_to_change(change, timer_topic)
    written = await _changing(lambda: write(changes.stop, name, topic, ends))
    return await _applied(change, written, wait)


async def _read_to_change(change: Change, timer_topic: str | None) -> tuple[str, LogEnds]:
    """Returns the timer topic and its ends, once ingest has read up to them, or after READ_S."""
    service = change.service
    topic = timer_topic_of(service.settings, timer_topic)
    ends = await service.read_kafka(read_before_change.log_ends, [topic])
    has_read = partial(_has_read, service, ends)
    if not await has_read():
        await service.waits.until(change.request, _effect(has_read), READ_S)
    return topic, ends


async def _has_read(service: Service, ends: LogEnds) -> bool:
    with suppress(DuewheelError, Refused):  # the change has the reason
        return await service.peek(read_before_change.has_read, ends)
    return False


async def _applied(change: Change, written: WrittenSchedule, wait_s: float) -> ScheduleSummary:
    """Waits for ingest. 202: it is written, and not in effect."""
    service = change.service
    applied = await _is_taken(service, written)
    if not applied and wait_s > 0:
        taken = _effect(partial(_is_taken, service, written))
        applied = await service.waits.until(change.request, taken, wait_s)
    set_status(change.response, in_effect=applied)
    return written.with_applied(applied)


async def _effect(is_so: Callable[[], Awaitable[bool]]) -> None:
    """Ends once it is so."""
    for pause_s in chain(_TAKEN_PAUSES_S, repeat(_TAKEN_PAUSES_S[-1])):
        await sleep(pause_s)
        if await is_so():
            return


async def _is_taken(service: Service, written: WrittenSchedule) -> bool:
    with suppress(DuewheelError, Refused):  # no files or no room: it is written nevertheless
        return await service.peek(written.is_taken)
    return False


async def _changing(call: Callable[[], Awaitable[T]]) -> T:
    return await _patiently(call, listing.CHANGE_PAUSES_S)


async def _reading(call: Callable[[], Awaitable[T]]) -> T:
    return await _patiently(call, listing.READ_PAUSES_S)


async def _patiently(
    call: Callable[[], Awaitable[T]],
    pauses_s: Sequence[float],
    last: Callable[[], Awaitable[T]] | None = None,
) -> T:
    """As `listing.patiently`; holds no thread meanwhile."""
    for pause_s in pauses_s:
        with suppress(NoSuchSchedule):
            return await call()
        await sleep(pause_s)
    return await (call() if last is None else last())
