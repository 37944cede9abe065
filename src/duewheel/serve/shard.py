"""The operations of a shard as a whole, and the probes /livez, /readyz and /metrics.

The probes need no token, and no Kafka, and `/livez` no file: it says that this process answers. A
restart would mend nothing that is in Kafka, in the shard's two processes or on its disk. `/readyz`
says whether the shard does its work.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Path, Request, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST

from duewheel.api.conditions import of_reasons
from duewheel.api.fleet import Fleet
from duewheel.api.requests import SelectivePause
from duewheel.api.shard import (
    Paused,
    PausedSelection,
    ProcessName,
    Readiness,
    ShardView,
)
from duewheel.api.timers import Lateness
from duewheel.ops.shard.lateness import read_lateness
from duewheel.ops.shard.pause import set_paused
from duewheel.ops.shard.selective_pause import pause_selection, resume_selection
from duewheel.ops.shard.status import read_status
from duewheel.ops.topics.targets import doubts_about
from duewheel.serve.change_records import Changing, recorded
from duewheel.serve.problems import Refused, documented
from duewheel.serve.scopes import OF_ALL, OF_NONE, OwnSelection
from duewheel.serve.service import Shared
from duewheel.serve.shard_requests import OtherShards
from duewheel.serve.url_names import NAME

probes = APIRouter(tags=["probes"])
reading = APIRouter(prefix="/v1", tags=["reads"])
changing = APIRouter(prefix="/v1", tags=["changes"])

Process = Annotated[ProcessName, Path()]


@probes.get("/livez", operation_id="livez", response_class=PlainTextResponse)
async def livez() -> str:
    """Whether this process answers."""
    return "ok"


@probes.get(
    "/readyz",
    operation_id="readyz",
    responses=documented(503, "`reasons` has why, `conditions` in sentences"),
)
async def readyz(service: Shared) -> Readiness:
    """Whether the shard does its work: recovered, both processes run, lag below its bounds."""
    try:
        reasons = service.present_files.removed or await service.not_ready()
    except TimeoutError as error:
        reasons = {"unreadable": str(error)}
    if reasons:
        detail = "; ".join(reasons.values())
        conditions = [each.model_dump() for each in of_reasons(reasons)]
        members = {"ready": False, "reasons": reasons, "conditions": conditions}
        raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, "not_ready", detail, None, **members)
    return Readiness(ready=True)


@probes.get("/metrics", operation_id="metrics", response_class=PlainTextResponse)
async def metrics(service: Shared) -> Response:
    """Metrics of this process and of the shard, for Prometheus."""
    return Response(
        await service.metrics.text(service.present_files.removed), media_type=CONTENT_TYPE_LATEST
    )


@reading.get("/status", operation_id="status", dependencies=OF_NONE)
async def show_status(service: Shared) -> ShardView:
    """The state of the shard, as `duewheel status`."""
    return await service.read(read_status, service.clock)


@reading.get("/lateness", operation_id="lateness", dependencies=OF_NONE)
async def show_lateness(service: Shared) -> Lateness:
    """The lateness of deliveries since dequeue began."""
    # Without present files it has the reason itself: the page shows it in place of the figures.
    return await service.peek(read_lateness, service.clock)


@reading.get("/fleet", operation_id="fleet", dependencies=OF_NONE)
async def show_fleet(service: Shared, request: Request) -> Fleet:
    """The shards of the app side by side: those of the servers that `serve.shards` names."""
    return await service.ask_servers(OtherShards.fleet, request.headers.get("Authorization"))


@changing.post(f"/pause/{{kind}}/{NAME}", operation_id="pause_selection")
@recorded
async def pause_one(
    change: Changing, selection: OwnSelection, given: SelectivePause
) -> PausedSelection:
    """Lets the due timers of a target, timer topic or tag wait, in all shards."""
    service, (kind, name) = change.service, selection
    doubts = await service.read_kafka(doubts_about, name) if kind == "target" else []
    done = await service.write_pause(pause_selection, service.clock, kind, name, given)
    return done.model_copy(update={"doubts": doubts})


@changing.post(f"/resume/{{kind}}/{NAME}", operation_id="resume_selection")
@recorded
async def resume_one(change: Changing, selection: OwnSelection) -> PausedSelection:
    """Ends the pause of a target, timer topic or tag."""
    service = change.service
    return await service.write_pause(resume_selection, service.clock, *selection)


@changing.post("/pause/{process}", operation_id="pause", dependencies=OF_ALL)
@recorded
async def pause(change: Changing, process: Process) -> Paused:
    """Pauses ingest or dequeue, over restarts, too."""
    # In outdated files it would pause nothing: the shard runs elsewhere.
    change.service.present_files.require()
    return await change.service.write_file(set_paused, process, on=True)


@changing.post("/resume/{process}", operation_id="resume", dependencies=OF_ALL)
@recorded
async def resume(change: Changing, process: Process) -> Paused:
    """Ends the pause of ingest or dequeue."""
    # In any files: none may stay paused because they are outdated now.
    return await change.service.write_file(set_paused, process, on=False)
