"""/livez, /readyz and /metrics: without a token, and without Kafka.

`/livez` says that this process answers: a restart would help nothing that lies in Kafka or in the
shard's two processes. `/readyz` says whether the shard does its work.
"""

from __future__ import annotations

from http import HTTPStatus

from fastapi import APIRouter, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST

from duewheel.api.conditions import of_reasons
from duewheel.api.shard import Readiness
from duewheel.ops.readiness import not_ready_reasons
from duewheel.serve.models import problem
from duewheel.serve.problems import Refused
from duewheel.serve.service import Shared

router = APIRouter(tags=["probes"])


@router.get("/livez", operation_id="livez", response_class=PlainTextResponse)
async def livez() -> str:
    """Whether this process answers."""
    return "ok"


@router.get(
    "/readyz",
    operation_id="readyz",
    responses=problem(503, "`reasons` has why, `conditions` in sentences"),
)
async def readyz(service: Shared) -> Readiness:
    """Whether the shard does its work: recovered, both processes run, lag below its bounds."""
    reasons = not_ready_reasons(service.settings, service.clock.now_ms())
    if reasons:
        status, detail = HTTPStatus.SERVICE_UNAVAILABLE, "; ".join(reasons.values())
        conditions = [each.model_dump() for each in of_reasons(reasons)]
        found = {"ready": False, "reasons": reasons, "conditions": conditions}
        raise Refused(status, "not_ready", detail, None, **found)
    return Readiness(ready=True)


@router.get("/metrics", operation_id="metrics", response_class=PlainTextResponse)
async def metrics(service: Shared) -> Response:
    """Metrics of this process and of the shard, for Prometheus."""
    return Response(service.metrics(), media_type=CONTENT_TYPE_LATEST)
