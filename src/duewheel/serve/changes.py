"""The operations that change timers: each writes records in a timer topic, like any client's.

A request waits for Kafka's acknowledgement, and `wait` seconds for the reply.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

from fastapi import APIRouter, Query

from duewheel.api.changes import Answered, BulkCancelled, ReplacedPending, Scheduled
from duewheel.api.requests import BulkCancel, DueTimeFields, NamedTimers
from duewheel.ops.changes import cancel_matching, requests, reschedule_pending
from duewheel.ops.changes.written import WrittenChange
from duewheel.ops.timers import pending
from duewheel.serve.change_records import Change, Changing, recorded
from duewheel.serve.problems import documented
from duewheel.serve.scopes import OwnHandle, OwnTimer, Scoped
from duewheel.serve.timers import NOT_PENDING, not_pending
from duewheel.serve.waits import WAIT_MAX_S, WAIT_S, set_status

A = TypeVar("A", bound=Answered)

changing = APIRouter(prefix="/v1", tags=["changes"])

ForReply = Annotated[
    float, Query(ge=0, le=WAIT_MAX_S, description="seconds for the reply; 0: none is awaited")
]
CONFLICT = documented(409, "the timer's state does not permit it")
REPLACED = {202: {"model": ReplacedPending}, **NOT_PENDING, **CONFLICT}


@changing.post("/timers", operation_id="schedule", status_code=201)
@recorded
async def schedule(change: Changing, timer: OwnTimer) -> Scheduled:
    """Schedules a message. It is listed once ingest has taken it, usually within a second."""
    return await change.service.write(requests.send, timer)


@changing.delete(
    "/timers/{handle}", operation_id="cancel_timer", responses={202: {"model": Answered}}
)
@recorded
async def cancel_timer(change: Changing, handle: OwnHandle, wait: ForReply = WAIT_S) -> Answered:
    """Cancels one timer. 202: it is written and takes effect, and its reply is still to come."""
    named = NamedTimers(handle=handle)
    written = await change.service.write(requests.cancel, named, reply=wait > 0)
    return await _answered(change, written, wait)


@changing.post("/timers/{handle}/reschedule", operation_id="reschedule_timer", responses=REPLACED)
@recorded
async def reschedule_timer(
    change: Changing, handle: OwnHandle, due: DueTimeFields, wait: ForReply = WAIT_S
) -> ReplacedPending:
    """Replaces a pending timer by one with the same message and another due time.

    If the answer is `already_delivered`, the timer has left before, and the new one will, too.
    """
    call = reschedule_pending.reschedule_pending
    written = await change.service.write_pending(call, handle, due, reply=wait > 0)
    return await _answered(change, written, wait)


@changing.post("/timers/{handle}/fire", operation_id="fire_timer", responses=REPLACED)
@recorded
async def fire_timer(
    change: Changing, handle: OwnHandle, wait: ForReply = WAIT_S
) -> ReplacedPending:
    """Makes a pending timer due now; 409 if it leaves within seconds by itself."""
    fire = reschedule_pending.fire
    written = await change.service.write_pending(fire, handle, reply=wait > 0)
    return await _answered(change, written, wait)


@changing.post("/cancel", operation_id="cancel_timers", responses=CONFLICT)
@recorded
async def cancel_timers(
    change: Changing, bulk: BulkCancel, scope: Scoped, wait: ForReply = WAIT_S
) -> BulkCancelled:
    """Cancels all pending timers that match a filter; with `dry_run` it only counts them.

    `dry_run` is required. If more than `at_most` match, none is cancelled.
    """
    find, most = cancel_matching.find_matching, bulk.at_most
    service = change.service
    search = service.search if bulk.dry_run else service.search_to_change
    matching = await search(find, bulk.filter, at_most=most, within_s=pending.SEARCH_S, scope=scope)
    if bulk.dry_run:
        return matching.result(dry_run=True)
    written = await service.write(cancel_matching.cancel_all, matching, reply=wait > 0)
    return await service.waits.replied(change.request, written, wait)


async def _answered(change: Change, written: WrittenChange[A] | None, wait_s: float) -> A:
    if written is None:
        raise not_pending()
    result = await change.service.waits.replied(change.request, written, wait_s)
    set_status(change.response, in_effect=result.answer is not None)
    return result
