"""The operations of recurring schedules: reads of the mapped files, and records in a timer topic.

A change waits for Kafka's acknowledgement, and `wait` seconds for ingest.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query

from duewheel.api.changes import Scheduled
from duewheel.api.schedules import NewSchedule, NextInstants, Pause, ScheduleList, ScheduleSummary
from duewheel.ops.schedules import changes, listing
from duewheel.serve.problems import Responses, problem
from duewheel.serve.service import Change, Changing, Shared

WAIT_MAX_S = 30

reading = APIRouter(prefix="/v1/schedules", tags=["schedules"])
changing = APIRouter(prefix="/v1/schedules", tags=["schedules"])

Name = Annotated[str, Path(min_length=1, max_length=200)]
Wait = Annotated[float, Query(ge=0, le=WAIT_MAX_S, description="seconds for ingest")]
MISSING = problem(404, "no such schedule")
CHANGED: Responses = {202: {"model": ScheduleSummary}}


@reading.get("", operation_id="list_schedules")
async def list_schedules(service: Shared) -> ScheduleList:
    """The schedules of this shard by name: recurring timers that are pending, 10,000 at most."""
    return await service.read(listing.listed, listing.SERVED_MAX)


@reading.get("/{name}", operation_id="show_schedule", responses=MISSING)
async def show_schedule(service: Shared, name: Name) -> ScheduleSummary:
    """One schedule."""
    return await service.read(listing.shown, name)


@reading.get("/{name}/next", operation_id="next_instants", responses=MISSING)
async def next_instants(service: Shared, name: Name) -> NextInstants:
    """The next ten instants of a schedule, pauses aside."""
    return await service.read(listing.next_instants, name)


@changing.put("/{name}", operation_id="set_schedule", responses=CHANGED)
async def set_schedule(
    change: Changing, name: Name, new: NewSchedule, wait: Wait = 5.0
) -> ScheduleSummary:
    """Sets a schedule, or replaces the one of this name. 202: it is written, and not in effect."""
    with change.logged() as service:
        row = await service.change_pending(changes.put, name, new, wait, service.producers)
    return _applied(change, row)


@changing.post("/{name}/pause", operation_id="pause_schedule", responses=CHANGED | MISSING)
async def pause_schedule(
    change: Changing, name: Name, pause: Pause | None = None, wait: Wait = 5.0
) -> ScheduleSummary:
    """Pauses a schedule: no instant fires until it is resumed."""
    note = "" if pause is None else pause.note
    with change.logged() as service:
        row = await service.change_pending(changes.pause, name, note, wait, service.producers)
    return _applied(change, row)


@changing.post("/{name}/resume", operation_id="resume_schedule", responses=CHANGED | MISSING)
async def resume_schedule(change: Changing, name: Name, wait: Wait = 5.0) -> ScheduleSummary:
    """Ends the pause of a schedule: the instants from now on fire."""
    with change.logged() as service:
        row = await service.change_pending(changes.resume, name, wait, service.producers)
    return _applied(change, row)


@changing.post(
    "/{name}/trigger", operation_id="trigger_schedule", status_code=201, responses=MISSING
)
async def trigger_schedule(change: Changing, name: Name) -> Scheduled:
    """Fires a schedule once more, now: an ordinary timer with its message. Its instants stay."""
    with change.logged() as service:
        return await service.change_pending(changes.trigger, name, service.producers)


@changing.delete("/{name}", operation_id="stop_schedule", responses=CHANGED | MISSING)
async def stop_schedule(change: Changing, name: Name, wait: Wait = 5.0) -> ScheduleSummary:
    """Ends a schedule for good."""
    with change.logged() as service:
        row = await service.change_pending(changes.stop, name, wait, service.producers)
    return _applied(change, row)


def _applied(change: Change, row: ScheduleSummary) -> ScheduleSummary:
    change.accept(unless=row.applied)
    return row
