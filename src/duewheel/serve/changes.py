"""The operations that change timers: each writes records in a timer topic, like any client's.

A request waits for Kafka's acknowledgement, and `wait` seconds for the reply. Each change is logged
with the client's address, and without ids, keys and bodies; one that fails, too, as it may have
written something.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from typing import Annotated, Literal, TypeVar

import structlog
from fastapi import APIRouter, Path, Query, Request, Response

from duewheel.api.changes import Answered, BulkCancelled, RescheduledTimer, Scheduled
from duewheel.api.requests import BulkCancel, DueTimeFields, NamedTimers, NewTimer
from duewheel.api.shard import Paused
from duewheel.errors import DuewheelError
from duewheel.ops.changes import pending_timers as pending_changes
from duewheel.ops.changes import requests as changes
from duewheel.ops.pause import set_paused
from duewheel.serve.models import problem
from duewheel.serve.reads import NOT_PENDING, Handle, not_pending
from duewheel.serve.service import Service, Shared

log = structlog.get_logger(__name__)

T = TypeVar("T")
Change = TypeVar("Change", Answered, RescheduledTimer)

SEARCH_S = 10.0
WAIT_MAX_S = 30

router = APIRouter(prefix="/v1", tags=["changes"])

Wait = Annotated[
    float, Query(ge=0, le=WAIT_MAX_S, description="seconds for the reply; 0: none is awaited")
]
CONFLICT = problem(409, "the timer's state does not permit it")


@router.post("/timers", operation_id="schedule", status_code=201)
async def schedule(service: Shared, request: Request, timer: NewTimer) -> Scheduled:
    """Schedules a message. It is listed once ingest has taken it, usually within a second."""
    call = partial(changes.send, service.settings, timer, service.producers)
    return await _logged(service, request, call)


@router.delete(
    "/timers/{handle}", operation_id="cancel_timer", responses={202: {"model": Answered}}
)
async def cancel_timer(
    service: Shared, request: Request, response: Response, handle: Handle, wait: Wait = 5.0
) -> Answered:
    """Cancels one timer. 202: it is written and takes effect, and its reply is still to come."""
    named, producers = NamedTimers(handle=handle), service.producers
    call = partial(changes.cancel, service.settings, named, wait or None, producers=producers)
    result = await _logged(service, request, call)
    return _accepted(result, response)


@router.post(
    "/timers/{handle}/reschedule",
    operation_id="reschedule_timer",
    responses={202: {"model": RescheduledTimer}, **NOT_PENDING, **CONFLICT},
)
async def reschedule_timer(
    service: Shared,
    request: Request,
    response: Response,
    handle: Handle,
    due: DueTimeFields,
    wait: Wait = 5.0,
) -> RescheduledTimer:
    """Replaces a pending timer by one with the same message and another due time.

    If the answer is `already_delivered`, the timer has left before, and the new one will, too.
    """
    settings, producers = service.settings, service.producers
    call = partial(
        pending_changes.reschedule_pending, settings, handle, due, wait or None, producers
    )
    return _replaced(await _logged(service, request, call, reads=True), response)


@router.post(
    "/timers/{handle}/fire",
    operation_id="fire_timer",
    responses={202: {"model": RescheduledTimer}, **NOT_PENDING, **CONFLICT},
)
async def fire_timer(
    service: Shared, request: Request, response: Response, handle: Handle, wait: Wait = 5.0
) -> RescheduledTimer:
    """Makes a pending timer due now; 409 if it leaves within seconds by itself."""
    settings, now_ms = service.settings, service.clock.now_ms()
    call = partial(pending_changes.fire, settings, handle, wait or None, now_ms, service.producers)
    return _replaced(await _logged(service, request, call, reads=True), response)


@router.post("/cancel", operation_id="cancel_timers", responses=CONFLICT)
async def cancel_timers(
    service: Shared, request: Request, bulk: BulkCancel, wait: Wait = 5.0
) -> BulkCancelled:
    """Cancels all pending timers that match a filter; with `dry_run` it only counts them.

    `dry_run` is required. If more than `at_most` match, none is cancelled.
    """
    call = partial(
        pending_changes.cancel_all,
        service.settings,
        bulk.filter,
        wait or None,
        service.producers,
        at_most=bulk.at_most,
        dry_run=bulk.dry_run,
        within_s=SEARCH_S,
    )
    if bulk.dry_run:
        return await service.on_kafka(call, needs_files=True)
    return await _logged(service, request, call, reads=True)


Process = Annotated[Literal["ingest", "dequeue"], Path()]


@router.post("/pause/{process}", operation_id="pause")
async def pause(service: Shared, request: Request, process: Process) -> Paused:
    """Pauses ingest or dequeue, over restarts, too."""
    call = partial(set_paused, service.settings, process, on=True)
    return await _logged(service, request, call)


@router.post("/resume/{process}", operation_id="resume")
async def resume(service: Shared, request: Request, process: Process) -> Paused:
    """Ends the pause of ingest or dequeue."""
    call = partial(set_paused, service.settings, process, on=False)
    return await _logged(service, request, call)


async def _logged(
    service: Service, request: Request, call: Callable[[], T], *, reads: bool = False
) -> T:
    """Runs a change, and logs who has requested it.

    Args:
        service: runs it.
        request: of the change.
        call: the change.
        reads: whether it needs the shard's files.
    """
    with logged(request):
        return await service.on_kafka(call, needs_files=reads)


@contextmanager
def logged(request: Request) -> Iterator[None]:
    """Logs who has requested the change that is made in a with block, and whether it has failed."""
    who = {
        "operation": request.scope["route"].operation_id,
        "client": request.client.host if request.client else "unknown",
    }
    try:
        yield
    except DuewheelError as error:
        log.info("change failed", **who, error=type(error).__name__)
        raise
    log.info("change", **who)


def _accepted(result: Change, response: Response) -> Change:
    if result.answer is None:
        response.status_code = HTTPStatus.ACCEPTED
    return result


def _replaced(result: RescheduledTimer | None, response: Response) -> RescheduledTimer:
    if result is None:
        raise not_pending()
    return _accepted(result, response)
