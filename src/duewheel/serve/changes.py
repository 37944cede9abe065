"""The operations that change timers: each writes records in a timer topic, like any client's.

A request waits for Kafka's acknowledgement, and `wait` seconds for the reply.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query

from duewheel.api.changes import Answered, BulkCancelled, RescheduledTimer, Scheduled
from duewheel.api.requests import BulkCancel, DueTimeFields, NamedTimers, NewTimer
from duewheel.ops.changes import cancel_matching, requests, reschedule_pending
from duewheel.ops.changes.written import WrittenChange
from duewheel.ops.timers import pending
from duewheel.serve.problems import documented
from duewheel.serve.service import Change, Changing
from duewheel.serve.timers import NOT_PENDING, Handle, not_pending

WAIT_S, WAIT_MAX_S = 5.0, 30  # unless a request has `wait`, and at most

changing = APIRouter(prefix="/v1", tags=["changes"])

Wait = Annotated[
    float, Query(ge=0, le=WAIT_MAX_S, description="seconds for the reply; 0: none is awaited")
]
CONFLICT = documented(409, "the timer's state does not permit it")
REPLACED = {202: {"model": RescheduledTimer}, **NOT_PENDING, **CONFLICT}


@changing.post("/timers", operation_id="schedule", status_code=201)
async def schedule(change: Changing, timer: NewTimer) -> Scheduled:
    """Schedules a message. It is listed once ingest has taken it, usually within a second."""
    with change.logged() as service:
        return await service.write(requests.send, timer)


@changing.delete(
    "/timers/{handle}", operation_id="cancel_timer", responses={202: {"model": Answered}}
)
async def cancel_timer(change: Changing, handle: Handle, wait: Wait = WAIT_S) -> Answered:
    """Cancels one timer. 202: it is written and takes effect, and its reply is still to come."""
    named = NamedTimers(handle=handle)
    with change.logged() as service:
        written = await service.write(requests.cancel, named, reply=wait > 0)
        result = await change.replied(written, wait)
    change.set_status(in_effect=result.answer is not None)
    return result


@changing.post("/timers/{handle}/reschedule", operation_id="reschedule_timer", responses=REPLACED)
async def reschedule_timer(
    change: Changing, handle: Handle, due: DueTimeFields, wait: Wait = WAIT_S
) -> RescheduledTimer:
    """Replaces a pending timer by one with the same message and another due time.

    If the answer is `already_delivered`, the timer has left before, and the new one will, too.
    """
    call = reschedule_pending.reschedule_pending
    with change.logged() as service:
        written = await service.write_pending(call, handle, due, reply=wait > 0)
        return await _replaced(change, written, wait)


@changing.post("/timers/{handle}/fire", operation_id="fire_timer", responses=REPLACED)
async def fire_timer(change: Changing, handle: Handle, wait: Wait = WAIT_S) -> RescheduledTimer:
    """Makes a pending timer due now; 409 if it leaves within seconds by itself."""
    with change.logged() as service:
        written = await service.write_pending(reschedule_pending.fire, handle, reply=wait > 0)
        return await _replaced(change, written, wait)


@changing.post("/cancel", operation_id="cancel_timers", responses=CONFLICT)
async def cancel_timers(change: Changing, bulk: BulkCancel, wait: Wait = WAIT_S) -> BulkCancelled:
    """Cancels all pending timers that match a filter; with `dry_run` it only counts them.

    `dry_run` is required. If more than `at_most` match, none is cancelled.
    """
    find = partial(cancel_matching.find_matching, at_most=bulk.at_most, within_s=pending.SEARCH_S)
    if bulk.dry_run:
        return (await change.service.search(find, bulk.filter)).result(dry_run=True)
    with change.logged() as service:
        matching = await service.search(find, bulk.filter)
        written = await service.write(cancel_matching.cancel_all, matching, reply=wait > 0)
        return await change.replied(written, wait)


async def _replaced(
    change: Change, written: WrittenChange[RescheduledTimer] | None, wait_s: float
) -> RescheduledTimer:
    if written is None:
        raise not_pending()
    result = await change.replied(written, wait_s)
    change.set_status(in_effect=result.answer is not None)
    return result
