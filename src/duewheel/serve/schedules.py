"""The operations of recurring schedules: reads of the mapped files, and records in a timer topic.

A change waits for Kafka's acknowledgement, and `wait` seconds for ingest. A copy that may be on its
way is awaited here, so that no thread of reads or changes waits for it.
"""

from __future__ import annotations

from asyncio import sleep
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Annotated, TypeVar

from fastapi import APIRouter, Path, Query

from duewheel.api.changes import Scheduled
from duewheel.api.requests import Topic
from duewheel.api.schedules import NewSchedule, NextInstants, Pause, ScheduleList, ScheduleSummary
from duewheel.errors import InvalidTimer, NoSuchSchedule
from duewheel.ops.schedules import changes, listing
from duewheel.serve.changes import WAIT_MAX_S
from duewheel.serve.names import NAME
from duewheel.serve.problems import Responses, problem
from duewheel.serve.service import Change, Changing, Service, Shared

reading = APIRouter(prefix="/v1/schedules", tags=["schedules"])
changing = APIRouter(prefix="/v1/schedules", tags=["schedules"])

Name = Annotated[str, Path(min_length=1, max_length=200)]
Wait = Annotated[float, Query(ge=0, le=WAIT_MAX_S, description="seconds for ingest")]
TimerTopic = Annotated[
    Topic | None, Query(description="the schedule's; by default the first of timer.topics")
]
MISSING = problem(404, "no such schedule")
CHANGED: Responses = {202: {"model": ScheduleSummary}}

T = TypeVar("T")


@reading.get("", operation_id="list_schedules")
async def list_schedules(service: Shared) -> ScheduleList:
    """The schedules of this shard by name: recurring timers that are pending, 10,000 at most."""
    return await service.read(listing.list_schedules, service.clock, listing.SERVED_MAX)


# A name may have slashes: longer paths come first.
@reading.get(f"/{NAME}/next", operation_id="next_instants", responses=MISSING)
async def next_instants(
    service: Shared, name: Name, timer_topic: TimerTopic = None
) -> NextInstants:
    """The next ten instants of a schedule, pauses aside."""
    return await _reading(
        lambda: service.read(listing.next_instants, service.clock, name, timer_topic)
    )


@reading.get(f"/{NAME}", operation_id="show_schedule", responses=MISSING)
async def show_schedule(
    service: Shared, name: Name, timer_topic: TimerTopic = None
) -> ScheduleSummary:
    """One schedule."""
    return await _reading(
        lambda: service.read(listing.show_schedule, service.clock, name, timer_topic)
    )


@changing.put(f"/{NAME}", operation_id="set_schedule", responses=CHANGED)
async def set_schedule(
    change: Changing,
    name: Name,
    new: NewSchedule,
    timer_topic: TimerTopic = None,
    wait: Wait = 5.0,
) -> ScheduleSummary:
    """Sets a schedule, or replaces the one of this name. 202: it is written, and not in effect."""
    if timer_topic is not None:
        if new.timer_topic not in {None, timer_topic}:
            raise InvalidTimer("the URL has another timer_topic than the body")
        new = new.model_copy(update={"timer_topic": timer_topic})

    def put(*, may_add: bool) -> Awaitable[ScheduleSummary]:
        return change.service.write_pending(changes.put, name, new, wait, may_add=may_add)

    replace, add = partial(put, may_add=False), partial(put, may_add=True)
    with change.logged():
        row = await _patiently(replace, listing.READ_PAUSES_S, add)
    change.accept(unless=row.applied)
    return row


@changing.post(f"/{NAME}/pause", operation_id="pause_schedule", responses=CHANGED | MISSING)
async def pause_schedule(
    change: Changing,
    name: Name,
    pause: Pause | None = None,
    timer_topic: TimerTopic = None,
    wait: Wait = 5.0,
) -> ScheduleSummary:
    """Pauses a schedule: no instant fires until it is resumed."""
    note = "" if pause is None else pause.note
    return await _applied(
        change, lambda s: s.write_pending(changes.pause, name, timer_topic, note, wait)
    )


@changing.post(f"/{NAME}/resume", operation_id="resume_schedule", responses=CHANGED | MISSING)
async def resume_schedule(
    change: Changing, name: Name, timer_topic: TimerTopic = None, wait: Wait = 5.0
) -> ScheduleSummary:
    """Ends the pause of a schedule: the instants from now on fire."""
    return await _applied(
        change, lambda s: s.write_pending(changes.resume, name, timer_topic, wait)
    )


@changing.post(
    f"/{NAME}/trigger", operation_id="trigger_schedule", status_code=201, responses=MISSING
)
async def trigger_schedule(
    change: Changing, name: Name, timer_topic: TimerTopic = None
) -> Scheduled:
    """Fires a schedule once more, now: an ordinary timer with its message. Its instants stay."""
    return await _changing(change, lambda s: s.write_pending(changes.trigger, name, timer_topic))


@changing.delete(f"/{NAME}", operation_id="stop_schedule", responses=CHANGED | MISSING)
async def stop_schedule(
    change: Changing, name: Name, timer_topic: TimerTopic = None, wait: Wait = 5.0
) -> ScheduleSummary:
    """Ends a schedule for good."""
    return await _applied(change, lambda s: s.write_pending(changes.stop, name, timer_topic, wait))


async def _applied(
    change: Change, call: Callable[[Service], Awaitable[ScheduleSummary]]
) -> ScheduleSummary:
    """As `_changing`. 202: it is written, and not in effect."""
    row = await _changing(change, call)
    change.accept(unless=row.applied)
    return row


async def _changing(change: Change, call: Callable[[Service], Awaitable[T]]) -> T:
    """Runs a change of a pending schedule, and logs it."""
    with change.logged() as service:
        return await _patiently(lambda: call(service), listing.CHANGE_PAUSES_S)


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
