"""State that the operations of the API share: settings, counts that are kept, and threads.

Reads of files run in a few threads, calls of Kafka in others: while Kafka does not answer, reads
are served. The probes run in the event loop itself, and wait for neither.

A call of Kafka may last for half a minute. Its thread is a daemon, so that a stop need not wait for
it: `end_waits` ends the waits, not the calls.

Each change is logged with the client's address, and without ids, keys and bodies; one that fails,
too, because it may have written something.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, Concatenate, ParamSpec, TypeVar

import anyio.to_thread
import structlog
from anyio import CapacityLimiter
from fastapi import Depends, Request, Response

from duewheel.clock import Clock
from duewheel.config.settings import Settings
from duewheel.errors import CorruptFile, DuewheelError, RecoveryPending, Unacknowledged
from duewheel.ops.changes.producers import KeptProducers
from duewheel.ops.files import files_identity
from duewheel.ops.timers.histogram import PendingView
from duewheel.serve.problems import Stopping
from duewheel.threads import beside

log = structlog.get_logger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

READS_MAX = 4  # at a time
KAFKA_MAX = 8  # changes
KAFKA_READS_MAX = 4
_IN_DOUBT = "the server stops: it may or may not be written"


@dataclass(frozen=True)
class Service:
    """See the module's head. `metrics` writes those of this process and of the shard."""

    settings: Settings
    clock: Clock
    view: PendingView
    producers: KeptProducers
    metrics: Callable[[], bytes]
    _reads: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(READS_MAX))
    _kafka_reads: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(KAFKA_READS_MAX))
    _kafka: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(KAFKA_MAX))
    _replays: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(1))
    _stop: asyncio.Event = field(default_factory=asyncio.Event)

    def end_waits(self) -> None:
        """Ends the wait for every call of Kafka. Called in the event loop's thread."""
        self._stop.set()

    async def read(
        self, call: Callable[Concatenate[Settings, P], T], *args: P.args, **named: P.kwargs
    ) -> T:
        """Reads the shard's files; like all methods, hands the settings to the call.

        Raises:
            NoDataDirectory: there are none yet.
            Unreadable: they are not of these settings, or not for this user.
            RecoveryPending: files may be cut at any moment.
        """
        made = partial(call, self.settings, *args, **named)
        return await anyio.to_thread.run_sync(self._checked(made), limiter=self._reads)

    async def read_kafka(
        self, call: Callable[Concatenate[Settings, P], T], *args: P.args, **named: P.kwargs
    ) -> T:
        """Runs a call that reads from Kafka: apart from changes, which must not wait for reads.

        Raises:
            Stopping: the server stops.
        """
        made = partial(call, self.settings, *args, **named)
        return await self._awaited(made, self._kafka_reads, Stopping("the server stops"))

    async def change(
        self, call: Callable[Concatenate[Settings, P], T], *args: P.args, **named: P.kwargs
    ) -> T:
        """Runs a change, which waits for Kafka.

        Raises:
            Stopping: the server stops, and the change has not begun.
            Unacknowledged: the server stops.
        """
        made = partial(call, self.settings, *args, **named)
        return await self._awaited(made, self._kafka, Unacknowledged(_IN_DOUBT))

    async def change_pending(
        self, call: Callable[Concatenate[Settings, P], T], *args: P.args, **named: P.kwargs
    ) -> T:
        """Runs a change that reads the shard's files before; raises as `read` and `change`."""
        made = self._checked(partial(call, self.settings, *args, **named))
        return await self._awaited(made, self._kafka, Unacknowledged(_IN_DOUBT))

    async def replay(
        self, call: Callable[Concatenate[Settings, P], T], *args: P.args, **named: P.kwargs
    ) -> T:
        """Runs a replay of dead letters: one at a time, as each fences the one before.

        Raises:
            Stopping: the server stops. A later replay continues this one.
        """
        made = partial(call, self.settings, *args, **named)
        return await self._awaited(made, self._replays, Stopping("the server stops"))

    async def _awaited(
        self, call: Callable[[], T], limiter: CapacityLimiter, unfinished: DuewheelError
    ) -> T:
        """Runs a call in a thread of its own, and returns its result.

        Raises:
            Stopping: the server stops before it has begun.
            DuewheelError: `unfinished`: the server stops.
        """
        async with limiter:
            if self._stop.is_set():
                raise Stopping("the server stops: nothing was written")
            result = asyncio.wrap_future(beside("kafka-call", call))
            stop = asyncio.ensure_future(self._stop.wait())
            either: set[asyncio.Future[Any]] = {result, stop}
            try:
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            finally:
                stop.cancel()
            if result.done():
                return result.result()
            # Its error, if it ends with one, is no longer of interest.
            result.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
            raise unfinished

    def _checked(self, call: Callable[[], T]) -> Callable[[], T]:
        def checked() -> T:
            before = files_identity(self.settings)
            try:
                return call()
            except (CorruptFile, FileNotFoundError) as error:
                # No damage, if the files have been replaced or moved meanwhile.
                if files_identity(self.settings) != before:
                    raise RecoveryPending("the files were replaced: try again") from error
                raise

        return checked


async def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


Shared = Annotated[Service, Depends(_service)]


@dataclass(frozen=True)
class Change:
    """A request that changes something."""

    service: Service
    request: Request
    response: Response

    @contextmanager
    def logged(self) -> Iterator[Service]:
        """Logs who has requested the change of a with block, and whether it has failed."""
        client = self.request.client
        who = {
            "operation": self.request.scope["route"].operation_id,
            "client": client.host if client else "unknown",
        }
        try:
            yield self.service
        except DuewheelError as error:
            log.info("change failed", **who, error=type(error).__name__)
            raise
        log.info("change", **who)

    def accept(self, *, unless: bool) -> None:
        """Makes the status 202: written, and its effect is still to come."""
        if not unless:
            self.response.status_code = HTTPStatus.ACCEPTED


async def _change(service: Shared, request: Request, response: Response) -> Change:
    return Change(service, request, response)


Changing = Annotated[Change, Depends(_change)]
