"""The metrics of `duewheel serve`: its requests, and those of the shard."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress

import numpy as np
from prometheus_client.core import Metric
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from duewheel.clock import Clock
from duewheel.config.settings import Settings
from duewheel.errors import DuewheelError
from duewheel.osutil.metrics_server import counters, exposed, histograms
from duewheel.runtime.shard_metrics import ShardMetrics, of_reasons
from duewheel.serve.file_probe import FileProbe
from duewheel.wheel.dequeue.duration_histogram import Histogram

_NO_OPERATION = "none"
_CLIENT_LEFT = 499  # as 500 it would raise the alert of failed requests, for any client's doing


class RequestStatistics:
    """Counts requests. Used by the thread of the event loop alone."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, ...]] = Counter()
        self._duration_ms: defaultdict[str, Histogram] = defaultdict(Histogram)

    def count(self, operation: str, status: int, code: str, duration_ms: int) -> None:
        """Counts a request that has ended."""
        self._requests[operation, str(status), code] += 1
        before = self._duration_ms[operation]
        self._duration_ms[operation] = before.with_values(np.array([duration_ms]))

    def families(self) -> Iterator[Metric]:
        """See metrics_server.Source."""
        yield counters(
            "http_requests",
            "Requests; operation `none`: no such path, or refused before; `code`: of its problem.",
            "operation, status, code",
            self._requests,
        )
        yield histograms(
            "http_request_duration_seconds",
            "Duration of a request, to the end of its response.",
            "operation",
            self._duration_ms,
        )


class Measured:
    """ASGI middleware that counts each request."""

    def __init__(self, app: ASGIApp, statistics: RequestStatistics) -> None:
        self._app, self._statistics = app, statistics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin_s = time.monotonic()
        status: int | None = None

        async def note_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        async def note_leaving() -> Message:
            nonlocal status
            message = await receive()
            if message["type"] == "http.disconnect" and status is None:
                status = _CLIENT_LEFT
            return message

        try:
            await self._app(scope, note_leaving, note_status)
        finally:
            operation = getattr(scope.get("route"), "operation_id", None) or _NO_OPERATION
            duration_ms = round((time.monotonic() - begin_s) * 1000)
            self._statistics.count(operation, status or 500, scope.get("problem", ""), duration_ms)


class ServeMetrics:
    """The families of the process: its requests, and the shard's once it has files."""

    def __init__(self, settings: Settings, clock: Clock, statistics: RequestStatistics) -> None:
        self._statistics, shard = statistics, ShardMetrics(settings, clock)
        self._read = FileProbe(lambda: list(shard.families()))
        self._of_shard: Sequence[Metric] = ()
        self._text = exposed(self)

    def families(self) -> Iterator[Metric]:
        """See metrics_server.Source."""
        yield from self._statistics.families()
        yield from self._of_shard

    async def text(self, removed: Collection[str]) -> bytes:
        """All families as of now; `removed`: as of PresentFilesWatch."""
        of_shard: Sequence[Metric] = ()
        with suppress(OSError, DuewheelError):  # /readyz has the reason
            of_shard = [*of_reasons(removed)] if removed else await self._read()
        self._of_shard = of_shard  # after the wait, in which another request sets its own
        return self._text()
