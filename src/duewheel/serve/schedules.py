"""The operations of recurring schedules. They are in Kafka only, so these wait for Kafka."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response

from duewheel.api.schedules import NewSchedule, NextInstants, ScheduleList, ScheduleSummary
from duewheel.ops import schedules
from duewheel.serve.changes import logged
from duewheel.serve.models import Responses, problem
from duewheel.serve.service import Service, Shared

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
    return await service.read_kafka(lambda: schedules.overview(service.settings))


@reading.get("/{name}/next", operation_id="next_instants", responses=MISSING)
async def next_instants(service: Shared, name: Name) -> NextInstants:
    """The next ten instants of a schedule, pauses aside."""
    due_ms = await service.read_kafka(
        lambda: schedules.next_instants(schedules.schedule_of(service.settings, name))
    )
    return NextInstants(name=name, due_ms=due_ms)


@changing.put("/{name}", operation_id="set_schedule", responses=CHANGED)
async def set_schedule(
    service: Shared,
    request: Request,
    response: Response,
    name: Name,
    new: NewSchedule,
    wait: Wait = 5.0,
) -> ScheduleSummary:
    """Sets a schedule, or replaces the one of this name. 202: it is written, and not in effect."""
    call = partial(schedules.put, service.settings, name, new, wait)
    return await _changed(service, request, response, call)


@changing.post("/{name}/pause", operation_id="pause_schedule", responses=CHANGED | MISSING)
async def pause_schedule(
    service: Shared, request: Request, response: Response, name: Name, wait: Wait = 5.0
) -> ScheduleSummary:
    """Pauses a schedule: no instant fires until it is resumed."""
    call = partial(schedules.pause, service.settings, name, wait, on=True)
    return await _changed(service, request, response, call)


@changing.post("/{name}/resume", operation_id="resume_schedule", responses=CHANGED | MISSING)
async def resume_schedule(
    service: Shared, request: Request, response: Response, name: Name, wait: Wait = 5.0
) -> ScheduleSummary:
    """Ends the pause of a schedule: the instants from now on fire."""
    call = partial(schedules.pause, service.settings, name, wait, on=False)
    return await _changed(service, request, response, call)


@changing.delete("/{name}", operation_id="stop_schedule", responses=CHANGED | MISSING)
async def stop_schedule(
    service: Shared, request: Request, response: Response, name: Name, wait: Wait = 5.0
) -> ScheduleSummary:
    """Ends a schedule for good."""
    call = partial(schedules.stop, service.settings, name, wait)
    return await _changed(service, request, response, call)


async def _changed(
    service: Service, request: Request, response: Response, call: Callable[[], ScheduleSummary]
) -> ScheduleSummary:
    with logged(request):
        row = await service.on_kafka(call)
    if not row.applied:
        response.status_code = HTTPStatus.ACCEPTED
    return row
