"""The operations that read: pending timers, counts, status. All from the mapped files."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query

from duewheel.api.limits import ID_MAX, KEY_MAX, TOPIC_MAX, Limit
from duewheel.api.shard import ShardView
from duewheel.api.timers import (
    Lateness,
    PendingHistogram,
    PendingStats,
    TimerList,
    TimerWithMessage,
)
from duewheel.config.instants import epoch_ms, parse_instant
from duewheel.errors import ConfigError
from duewheel.ops import lateness, listed_timers, status, timers
from duewheel.ops.new_timer import octets
from duewheel.ops.pending_view import BUCKETS_MAX, TimeRange
from duewheel.serve.models import ProblemDetails
from duewheel.serve.problems import Refused
from duewheel.serve.service import Shared

HANDLE_MAX = 1_024
INSTANT_MAX = 40

router = APIRouter(prefix="/v1", tags=["reads"])

_INSTANT = "epoch ms, or ISO-8601 and zone"
Since = Annotated[str | None, Query(alias="from", max_length=INSTANT_MAX, description=_INSTANT)]
Until = Annotated[str | None, Query(alias="to", max_length=INSTANT_MAX, description=_INSTANT)]
Handle = Annotated[str, Path(max_length=HANDLE_MAX, description="a recall handle")]
NOT_PENDING: dict[int | str, dict[str, Any]] = {
    404: {"model": ProblemDetails, "description": "no such timer is pending here"}
}


@router.get("/timers", operation_id="list_timers")
async def list_timers(
    service: Shared,
    topic: Annotated[str | None, Query(max_length=TOPIC_MAX, description="the target")] = None,
    id: Annotated[str | None, Query(max_length=ID_MAX)] = None,
    key: Annotated[str | None, Query(max_length=KEY_MAX)] = None,
    key_base64: Annotated[str | None, Query(max_length=2 * KEY_MAX)] = None,
    level: Annotated[int | None, Query(ge=1, le=255)] = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = 100,
    page: Annotated[str | None, Query(pattern=r"^[0-9]{1,18}-[0-9]{1,18}$")] = None,
) -> TimerList:
    """Pending timers in the order in which they leave; all filters must match.

    `from` and `to` select by the instant at which a timer leaves the wheel. A search by key reads
    the messages of all timers that the other filters select: give `from` and `to`, or an `id`.
    """
    wanted = listed_timers.selection(
        service.settings,
        topic=topic,
        level=level,
        timer_id=id,
        key=octets("key", key, key_base64),
        since=instant("from", since),
        until=instant("to", until),
    )
    wanted = replace(wanted, after=page)
    return await service.read(lambda: timers.page_of(service.settings, wanted, limit))


@router.get("/timers/{handle}", operation_id="show_timer", responses=NOT_PENDING)
async def show_timer(service: Shared, handle: Handle) -> TimerWithMessage:
    """One pending timer; with value and headers of its message if serve.show_bodies is set."""
    body = service.settings.serve.show_bodies
    timer = await service.read(partial(timers.by_handle, service.settings, handle, body=body))
    if timer is None:
        raise not_pending()
    return timer


@router.get("/histogram", operation_id="histogram")
async def histogram(
    service: Shared,
    since: Since = None,
    until: Until = None,
    buckets: Annotated[int, Query(ge=1, le=BUCKETS_MAX)] = 60,
) -> PendingHistogram:
    """Everything that is pending, by due time.

    Without `from` and `to`: the next minute, hour and day, and all up to the longest delay.
    """
    wanted = None
    if since is not None or until is not None:
        from_ms, to_ms = instant("from", since), instant("to", until)
        if from_ms is None or to_ms is None:
            raise ConfigError("give `from` and `to`, or neither")
        wanted = TimeRange.of(from_ms, to_ms, buckets)
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


def instant(name: str, text: str | None) -> int | None:
    """Parses an instant of a request, to epoch milliseconds.

    Raises:
        ConfigError: it is none; with the parameter's name.
    """
    try:
        return None if text is None else epoch_ms(parse_instant(text))
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from None


def not_pending() -> Refused:
    """The problem of a timer that is not in the wheel."""
    detail = "no such timer is pending here: it has left, is not taken yet, or is another shard's"
    return Refused(HTTPStatus.NOT_FOUND, "not_pending", detail)
