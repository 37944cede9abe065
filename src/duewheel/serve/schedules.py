"""The operations of recurring schedules: reads of the mapped files, and records in a timer topic.

A change waits for Kafka's acknowledgement, and `wait` seconds for ingest. A copy that may be on its
way, and ingest, are awaited here, so that no thread of reads or changes waits for them.
"""

from __future__ import annotations

from asyncio import sleep
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import chain, repeat
from typing import Annotated, TypeVar

from fastapi import APIRouter, Path, Query

from duewheel.api.changes import Scheduled
from duewheel.api.requests import Topic
from duewheel.api.schedules import NextInstants, Pause, ScheduleList, ScheduleSummary
from duewheel.config.settings import Settings
from duewheel.errors import DuewheelError
from duewheel.ops.changes.timer_writer import TimerWriter
from duewheel.ops.schedules import changes, listing, steps
from duewheel.ops.schedules.changes import WrittenSchedule
from duewheel.ops.timers.pending import SEARCH_S
from duewheel.serve.change_records import Change, Changing, recorded
from duewheel.serve.problems import Refused, Responses, documented
from duewheel.serve.scopes import OwnSchedule, OwnTimerTopic, Scoped
from duewheel.serve.service import Shared
from duewheel.serve.url_names import NAME, WithName
from duewheel.serve.waits import WAIT_MAX_S, WAIT_S, set_status

reading = APIRouter(prefix="/v1/schedules", tags=["schedules"], route_class=WithName)
changing = APIRouter(prefix="/v1/schedules", tags=["schedules"], route_class=WithName)

Name = Annotated[str, Path(min_length=1, max_length=200, description="a slash in it as %2F")]
ForIngest = Annotated[float, Query(ge=0, le=WAIT_MAX_S, description="seconds for ingest")]
OfTopic = Annotated[Topic | None, Query(description="only those of this timer topic")]
MISSING = documented(404, "no such schedule")
CHANGED: Responses = {202: {"model": ScheduleSummary}}

# The last one again and again: each look takes a thread of reads for a moment.
_PAUSES_S = 0.05, 0.1, 0.2, 0.4, 0.8

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


# Before the next one, whose name would take the rest of this path.
@reading.get(f"/{NAME}/next", operation_id="next_instants", responses=MISSING)
async def next_instants(service: Shared, name: Name, timer_topic: OwnTimerTopic) -> NextInstants:
    """The next ten instants of a schedule, pauses aside."""
    read = partial(service.search, listing.next_instants, service.clock, name, timer_topic)
    return await listing.patiently(read, listing.READ_PAUSES_S, sleep)


@reading.get(f"/{NAME}", operation_id="show_schedule", responses=MISSING)
async def show_schedule(service: Shared, name: Name, timer_topic: OwnTimerTopic) -> ScheduleSummary:
    """One schedule."""
    read = partial(service.search, listing.show_schedule, service.clock, name, timer_topic)
    return await listing.patiently(read, listing.READ_PAUSES_S, sleep)


@changing.put(f"/{NAME}", operation_id="set_schedule", responses=CHANGED)
@recorded
async def set_schedule(
    change: Changing,
    name: Name,
    new: OwnSchedule,
    wait: ForIngest = WAIT_S,
) -> ScheduleSummary:
    """Sets a schedule, or replaces the one of this name. 202: it is written, and not in effect."""
    written = await steps.put(_ServedCalls(change), name, new)
    return await _applied(change, written, wait)


@changing.post(f"/{NAME}/pause", operation_id="pause_schedule", responses=CHANGED | MISSING)
@recorded
async def pause_schedule(
    change: Changing,
    name: Name,
    timer_topic: OwnTimerTopic,
    pause: Pause | None = None,
    wait: ForIngest = WAIT_S,
) -> ScheduleSummary:
    """Pauses a schedule: no instant fires until it is resumed."""
    note = "" if pause is None else pause.note
    written = await steps.change(_ServedCalls(change), changes.pause, name, timer_topic, note)
    return await _applied(change, written, wait)


@changing.post(f"/{NAME}/resume", operation_id="resume_schedule", responses=CHANGED | MISSING)
@recorded
async def resume_schedule(
    change: Changing, name: Name, timer_topic: OwnTimerTopic, wait: ForIngest = WAIT_S
) -> ScheduleSummary:
    """Ends the pause of a schedule: the instants from now on fire."""
    written = await steps.change(_ServedCalls(change), changes.resume, name, timer_topic)
    return await _applied(change, written, wait)


@changing.post(
    f"/{NAME}/trigger", operation_id="trigger_schedule", status_code=201, responses=MISSING
)
@recorded
async def trigger_schedule(change: Changing, name: Name, timer_topic: OwnTimerTopic) -> Scheduled:
    """Fires a schedule once more, now: an ordinary timer with its message. Its instants stay."""
    return await steps.change(_ServedCalls(change), changes.trigger, name, timer_topic)


@changing.delete(f"/{NAME}", operation_id="stop_schedule", responses=CHANGED | MISSING)
@recorded
async def stop_schedule(
    change: Changing, name: Name, timer_topic: OwnTimerTopic, wait: ForIngest = WAIT_S
) -> ScheduleSummary:
    """Ends a schedule for good."""
    written = await steps.change(_ServedCalls(change), changes.stop, name, timer_topic)
    return await _applied(change, written, wait)


async def _applied(change: Change, written: WrittenSchedule, wait_s: float) -> ScheduleSummary:
    """Waits for ingest. 202: it is written, and not in effect."""
    row = await steps.applied(_ServedCalls(change), written, wait_s)
    set_status(change.response, in_effect=row.applied is True)
    return row


class _ServedCalls:
    """The calls of a change, in the lanes of the service."""

    def __init__(self, change: Change) -> None:
        self._service, self._request = change.service, change.request
        self.settings = change.service.settings

    async def read_kafka(self, call: Callable[[Settings], T]) -> T:
        return await self._service.read_kafka(call)

    async def write(self, call: Callable[[TimerWriter], T]) -> T:
        return await self._service.write_pending(call)

    async def until(self, is_so: Callable[[Settings], bool], within_s: float) -> bool:
        async def is_so_now() -> bool:
            with suppress(DuewheelError, Refused):  # no files or no room: the change has the reason
                return await self._service.peek(is_so)
            return False

        async def becomes_so() -> None:
            for pause_s in chain(_PAUSES_S, repeat(_PAUSES_S[-1])):
                await sleep(pause_s)
                if await is_so_now():
                    return

        if await is_so_now():
            return True
        return within_s > 0 and await self._service.waits.until(
            self._request, becomes_so(), within_s
        )

    async def sleep(self, seconds: float) -> None:
        await sleep(seconds)
