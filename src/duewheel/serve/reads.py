"""The operations that read: pending timers, counts, status. All from the mapped files."""

from __future__ import annotations

from functools import partial
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Path, Query

from duewheel.api.requests import HistogramQuery, TimerQuery
from duewheel.api.shard import ShardView
from duewheel.api.timers import (
    Lateness,
    PendingHistogram,
    PendingStats,
    TimerList,
    TimerWithMessage,
)
from duewheel.ops import lateness, status
from duewheel.ops.timers import pending
from duewheel.serve.models import problem
from duewheel.serve.problems import Refused
from duewheel.serve.service import Shared

HANDLE_MAX = 1_024

router = APIRouter(prefix="/v1", tags=["reads"])

Handle = Annotated[str, Path(max_length=HANDLE_MAX, description="a recall handle")]
NOT_PENDING = problem(404, "no such timer is pending here")


@router.get("/timers", operation_id="list_timers")
async def list_timers(service: Shared, wanted: Annotated[TimerQuery, Query()]) -> TimerList:
    """Pending timers in the order in which they leave; all filters must match.

    `from` and `to` select by the instant at which a timer leaves the wheel. A search by key reads
    the messages of all timers that the other filters select: give `from` and `to`, or an `id`.
    """
    return await service.read(
        partial(pending.page_of, service.settings, wanted, wanted.limit, wanted.page)
    )


@router.get("/timers/{handle}", operation_id="show_timer", responses=NOT_PENDING)
async def show_timer(service: Shared, handle: Handle) -> TimerWithMessage:
    """One pending timer; with value and headers of its message if serve.show_bodies is set."""
    body = service.settings.serve.show_bodies
    timer = await service.read(partial(pending.by_handle, service.settings, handle, body=body))
    if timer is None:
        raise not_pending()
    return timer


@router.get("/histogram", operation_id="histogram")
async def histogram(
    service: Shared, wanted: Annotated[HistogramQuery, Query()]
) -> PendingHistogram:
    """Everything that is pending, by due time.

    Without `from` and `to`: the next minute, hour and day, and all up to the longest delay.
    """
    return await service.read(lambda: service.view.histogram(wanted))


@router.get("/stats", operation_id="stats")
async def show_stats(service: Shared) -> PendingStats:
    """Pending timers by target, level and time, as `duewheel stats`."""
    return await service.read(service.view.stats)


@router.get("/status", operation_id="status")
async def show_status(service: Shared) -> ShardView:
    """The state of the shard, as `duewheel status`."""
    return await service.read(lambda: status.status(service.settings))


@router.get("/lateness", operation_id="lateness")
async def show_lateness(service: Shared) -> Lateness:
    """The lateness of deliveries since dequeue began, from its metrics (metrics.dequeue_port)."""
    return await service.read_kafka(lambda: lateness.lateness(service.settings))


def not_pending() -> Refused:
    """The problem of a timer that is not in the wheel."""
    detail = "no such timer is pending here: it has left, is not taken yet, or is another shard's"
    return Refused(HTTPStatus.NOT_FOUND, "not_pending", detail)
