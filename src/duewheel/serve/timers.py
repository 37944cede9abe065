"""The operations that read pending timers, and count them: all from the mapped files, those of
other shards by their servers.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Query, Request

from duewheel.api.fleet import FleetTimers
from duewheel.api.requests import FleetTimerQuery, HistogramQuery, TimerQuery
from duewheel.api.timers import PendingHistogram, StatsOfShard, TimerList, TimerWithMessage
from duewheel.ops.timers import pending
from duewheel.ops.timers.pending_histogram import PendingView
from duewheel.serve import fleet_timers
from duewheel.serve.problems import Refused, documented
from duewheel.serve.scopes import OF_ALL, OwnHandle, Scoped
from duewheel.serve.service import Shared

reading = APIRouter(prefix="/v1", tags=["reads"])

NOT_PENDING = documented(404, "no such timer is pending here")


@reading.get("/timers", operation_id="list_timers")
async def list_timers(
    service: Shared, wanted: Annotated[TimerQuery, Query()], scope: Scoped
) -> TimerList:
    """Pending timers in the order in which they leave; all filters must match.

    `from` and `to` select by the instant at which a timer leaves the wheel. A search by key reads
    the messages of all timers that the other filters select: give `from` and `to`, or an `id`.
    """
    return await service.read(pending.page_of, wanted, scope=scope)


@reading.get("/fleet/timers", operation_id="list_fleet_timers")
async def list_fleet_timers(
    service: Shared, request: Request, wanted: Annotated[FleetTimerQuery, Query()], scope: Scoped
) -> FleetTimers:
    """Pending timers of all shards, as `/v1/timers` lists those of one; there are no pages.

    `absent` has the shards without an answer: their timers are not in the list.
    """
    token = request.headers.get("Authorization")
    return await fleet_timers.of_all_shards(service, wanted, scope, token)


@reading.get("/timers/{handle}", operation_id="show_timer", responses=NOT_PENDING)
async def show_timer(service: Shared, handle: OwnHandle) -> TimerWithMessage:
    """One pending timer; with value and headers of its message if serve.show_bodies is set."""
    body = service.settings.serve.show_bodies
    timer = await service.search(pending.by_handle, handle, body=body)
    if timer is None:
        raise not_pending()
    return timer


@reading.get("/histogram", operation_id="histogram", dependencies=OF_ALL)
async def histogram(
    service: Shared, wanted: Annotated[HistogramQuery, Query()]
) -> PendingHistogram:
    """Everything that is pending, by due time.

    Without `from` and `to`: the next minute, hour and day, and all up to the longest delay.
    """
    return await service.count(PendingView.histogram, wanted)


@reading.get("/stats", operation_id="stats", dependencies=OF_ALL)
async def show_stats(service: Shared) -> StatsOfShard:
    """Pending timers by target, level and time, as `duewheel stats`."""
    return await service.count(PendingView.stats)


def not_pending() -> Refused:
    """The problem of a timer that is not in the wheel."""
    detail = "no such timer is pending here: it has left, is not taken yet, or is another shard's"
    return Refused(HTTPStatus.NOT_FOUND, "not_pending", detail)
