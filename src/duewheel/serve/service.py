"""What the operations of the API share: settings, counts that are kept, and threads.

Reads of files run in a few threads, calls of Kafka in others: while Kafka does not answer, reads
are served. The probes run in the event loop itself, and wait for neither.

A call of Kafka may last for half a minute. Its thread is a daemon, so that a stop need not wait for
it: `end_waits` ends the waits, not the calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

import anyio.to_thread
from anyio import CapacityLimiter
from fastapi import Depends, Request

from duewheel.clock import Clock
from duewheel.config.settings import Settings
from duewheel.errors import CorruptFile, DuewheelError, RecoveryPending, Unacknowledged
from duewheel.ops.changes.producers import KeptProducers
from duewheel.ops.files import files_identity
from duewheel.ops.timers.histogram import PendingView
from duewheel.serve.problems import Stopping
from duewheel.threads import beside

T = TypeVar("T")

READS_MAX = 4  # at a time
KAFKA_MAX = 8  # changes
KAFKA_READS_MAX = 4


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

    async def read(self, call: Callable[[], T]) -> T:
        """Reads the shard's files.

        Raises:
            NoDataDirectory: there are none yet.
            Unreadable: they are not of these settings, or not for this user.
            RecoveryPending: files may be cut at any moment.
        """
        return await anyio.to_thread.run_sync(self._checked(call), limiter=self._reads)

    async def read_kafka(self, call: Callable[[], T]) -> T:
        """Runs a call that reads from Kafka: apart from changes, which must not wait for reads.

        Raises:
            Stopping: the server stops.
        """
        return await self._awaited(call, self._kafka_reads, Stopping("the server stops"))

    async def on_kafka(self, call: Callable[[], T], *, needs_files: bool = False) -> T:
        """Runs a change, which waits for Kafka, and may read the shard's files, too.

        Raises:
            NoDataDirectory, RecoveryPending: as `read`, if it needs files.
            Stopping: the server stops, and the change has not begun.
            Unacknowledged: the server stops.
        """
        checked = self._checked(call) if needs_files else call
        doubt = Unacknowledged("the server stops: it may or may not be written")
        return await self._awaited(checked, self._kafka, doubt)

    async def replay(self, call: Callable[[], T]) -> T:
        """Runs a replay of dead letters: one at a time, as each fences the one before.

        Raises:
            Stopping: the server stops. A later replay continues this one.
        """
        return await self._awaited(call, self._replays, Stopping("the server stops"))

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
