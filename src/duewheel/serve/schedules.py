"""The operations of recurring schedules. They are in Kafka only, so these wait for Kafka."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query

from duewheel.api.schedules import NewSchedule, NextInstants, ScheduleList, ScheduleSummary
from duewheel.ops import schedules
from duewheel.serve.problems import Responses, problem
from duewheel.serve.service import Change, Changing, Shared

WAIT_MAX_S = 30

reading = APIRouter(prefix="/v1/schedules", tags=["schedules"])
changing = APIRouter(prefix="/v1/schedules", tags=["schedules"])

Name = Annotated[str, Path(pattern=r"^[A-Za-z0-9._-]{1,200}$")]
Wait = Annotated[float, Query(ge=0, le=WAIT_MAX_S, description="seconds for the scheduler")]
MISSING = problem(404, "no such schedule")
CHANGED: Responses = {202: {"model": ScheduleSummary}}


@reading.get("", operation_id="list_schedules")
async def list_schedules(service: Shared) -> ScheduleList:
    """All schedules by name."""
    return await service.read_kafka(schedules.overview)


@reading.get("/{name}/next", operation_id="next_instants", responses=MISSING)
async def next_instants(service: Shared, name: Name) -> NextInstants:
    """The next ten instants of a schedule, pauses aside."""
    due_ms = await service.read_kafka(
        lambda settings: schedules.next_instants(schedules.schedule_of(settings, name))
    )
    return NextInstants(name=name, due_ms=due_ms)


@changing.put("/{name}", operation_id="set_schedule", responses=CHANGED)
async def set_schedule(
    change: Changing, name: Name, new: NewSchedule, wait: Wait = 5.0
) -> ScheduleSummary:
    """Sets a schedule, or replaces the one of this name. 202: it is written, and not in effect."""
    with change.logged() as service:
        return _applied(change, await service.change(schedules.put, name, new, wait))


@changing.post("/{name}/pause", operation_id="pause_schedule", responses=CHANGED | MISSING)
async def pause_schedule(change: Changing, name: Name, wait: Wait = 5.0) -> ScheduleSummary:
    """Pauses a schedule: no instant fires until it is resumed."""
    with change.logged() as service:
        return _applied(change, await service.change(schedules.pause, name, wait, on=True))


@changing.post("/{name}/resume", operation_id="resume_schedule", responses=CHANGED | MISSING)
async def resume_schedule(change: Changing, name: Name, wait: Wait = 5.0) -> ScheduleSummary:
    """Ends the pause of a schedule: the instants from now on fire."""
    with change.logged() as service:
        return _applied(change, await service.change(schedules.pause, name, wait, on=False))


@changing.delete("/{name}", operation_id="stop_schedule", responses=CHANGED | MISSING)
async def stop_schedule(change: Changing, name: Name, wait: Wait = 5.0) -> ScheduleSummary:
    """Ends a schedule for good."""
    with change.logged() as service:
        return _applied(change, await service.change(schedules.stop, name, wait))


def _applied(change: Change, row: ScheduleSummary) -> ScheduleSummary:
    change.accept(unless=row.applied)
    return row
