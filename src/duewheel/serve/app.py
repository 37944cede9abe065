"""The app: its operations, its description (OpenAPI), its errors."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import structlog
from fastapi import Depends, FastAPI

from duewheel import __version__
from duewheel.clock import Clock
from duewheel.config.settings import Settings
from duewheel.deadline import Deadline
from duewheel.errors import DuewheelError
from duewheel.ops.changes.producer_pool import CLOSE_S
from duewheel.ops.changes.timer_writer import TimerWriter
from duewheel.ops.timers.pending_histogram import PendingView
from duewheel.serve import (
    changes,
    dead_letters,
    other_shards,
    page,
    receipts,
    schedules,
    shard,
    timers,
)
from duewheel.serve.access import Access, may_change, may_read
from duewheel.serve.gate import Gate, hosts_of
from duewheel.serve.metrics import Measured, RequestStatistics, ServeMetrics
from duewheel.serve.problems import MEDIA_TYPE, answer_errors, documented
from duewheel.serve.record_writer import RecordWriter
from duewheel.serve.service import Service
from duewheel.threads import Worker

log = structlog.get_logger(__name__)

_DESCRIPTION = (
    "Pending timers of one shard of duewheel. Errors are problem details (RFC 9457) with a `code`."
)
_PROBLEMS = (
    documented(400, "the request cannot be parsed")
    | documented(401, "no valid token")
    | documented(403, "not in the scope of the token")
    | documented(422, "a parameter is invalid")
    | documented(503, "no files yet, a recovery, no Kafka, or a fault of the configuration")
)
_CHANGE_PROBLEMS = (
    _PROBLEMS
    | documented(403, "changes are off, not for this token, or of no person")
    | documented(413, "the body is too large")
    | documented(504, "the change may or may not be written")
)


def make_app(settings: Settings, clock: Clock, access: Access) -> FastAPI:
    """Makes the app of one shard; it opens nothing before it is started."""
    statistics = RequestStatistics()
    view, writer = PendingView(settings, clock), TimerWriter(settings, clock)
    recorder = RecordWriter(settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        Worker("pending-counts", lambda: _warm(view)).start()
        present_files = app.state.service.present_files
        present_files.start()
        yield
        present_files.stop()
        deadline = Deadline(CLOSE_S)
        writer.close(deadline)
        recorder.close(deadline)
        view.close()

    app = FastAPI(
        title="duewheel",
        version=__version__,
        description=_DESCRIPTION,
        docs_url=None,  # both pages load scripts of other hosts
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.access = access
    app.state.requests = Counter[str]()  # being answered, by the name of their token
    metrics = ServeMetrics(settings, clock, statistics)
    app.state.service = Service(settings, clock, view, writer, recorder, metrics)
    app.include_router(page.router)
    app.include_router(page.router, prefix=other_shards.PREFIX)
    app.include_router(shard.probes)
    to_change = [Depends(may_change)]
    to_read = [] if access.read is None else [Depends(may_read)]
    for router in (
        timers.reading,
        shard.reading,
        receipts.reading,
        dead_letters.reading,
        schedules.reading,
        other_shards.reading,
    ):
        app.include_router(router, dependencies=to_read, responses=_PROBLEMS)
    for router in (
        changes.changing,
        shard.changing,
        dead_letters.changing,
        schedules.changing,
        other_shards.changing,
    ):
        app.include_router(router, dependencies=to_change, responses=_CHANGE_PROBLEMS)
    answer_errors(app)
    app.add_middleware(Gate, hosts=hosts_of(settings.serve), body_max=settings.serve.body_max)
    app.add_middleware(Measured, statistics=statistics)  # the outermost
    _describe_problems(app)
    return app


def _warm(view: PendingView) -> None:
    """Counts once: the first count of millions takes seconds, and no request is to wait for it."""
    try:
        view.stats()
    except DuewheelError as error:
        log.info("pending timers are not counted yet", reason=str(error))


def _describe_problems(app: FastAPI) -> None:
    """Corrects the media type of errors in the description: FastAPI writes that of responses."""
    describe = app.openapi

    def described() -> dict[str, Any]:  # FastAPI's
        if app.openapi_schema is None:
            for operations in describe()["paths"].values():
                for operation in operations.values():
                    for status, response in operation["responses"].items():
                        content = response.get("content", {})
                        if int(status) >= 400 and "application/json" in content:
                            content[MEDIA_TYPE] = content.pop("application/json")
        return describe()

    app.openapi = described  # type: ignore[method-assign]  # FastAPI's way to extend it
