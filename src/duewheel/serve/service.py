"""What the operations of the API share: settings, counts that are kept, and threads.

Reads of files run in a few threads, calls of Kafka in others: while Kafka does not answer, reads
are served. The probes run in the event loop itself, and wait for neither.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, TypeVar

import anyio
import anyio.to_thread
from anyio import CapacityLimiter
from fastapi import Depends, Request

from duewheel.clock import Clock
from duewheel.config.settings import Settings
from duewheel.errors import CorruptFile, RecoveryPending
from duewheel.ops.changes import KeptProducers
from duewheel.ops.pending_view import PendingView
from duewheel.ops.stats import files_identity

T = TypeVar("T")

READS_MAX = 4  # at a time
KAFKA_MAX = 8  # changes
KAFKA_READS_MAX = 4


@dataclass(frozen=True)
class Service:
    """See the module's head.

    Attributes:
        settings: of the shard.
        clock: this host's.
        view: counts of what is pending.
        producers: of the changes.
        metrics: writes those of this process and of the shard.
    """

    settings: Settings
    clock: Clock
    view: PendingView
    producers: KeptProducers
    metrics: Callable[[], bytes]
    _reads: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(READS_MAX))
    _kafka_reads: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(KAFKA_READS_MAX))
    _kafka: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(KAFKA_MAX))
    _replays: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(1))

    async def read(self, call: Callable[[], T]) -> T:
        """Reads the shard's files.

        Raises:
            NoDataDirectory: there are none yet.
            Unreadable: they are not of these settings, or not for this user.
            RecoveryPending: files may be cut at any moment.
        """
        return await anyio.to_thread.run_sync(self._checked(call), limiter=self._reads)

    async def read_kafka(self, call: Callable[[], T]) -> T:
        """Runs a call that reads from Kafka: apart from changes, which must not wait for reads."""
        return await anyio.to_thread.run_sync(call, limiter=self._kafka_reads)

    async def on_kafka(self, call: Callable[[], T], *, needs_files: bool = False) -> T:
        """Runs a change, which waits for Kafka, and may read the shard's files, too.

        Raises:
            NoDataDirectory, RecoveryPending: as `read`, if it needs files.
        """
        checked = self._checked(call) if needs_files else call
        return await anyio.to_thread.run_sync(checked, limiter=self._kafka)

    async def replay(self, call: Callable[[], T]) -> T:
        """Runs a replay of dead letters: one at a time, as each fences the one before."""
        return await anyio.to_thread.run_sync(call, limiter=self._replays)

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
