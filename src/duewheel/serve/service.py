"""State that the operations of the API share: settings, counts that are kept, and threads.

Reads of files run in a few threads, calls of Kafka in others: while Kafka does not answer, reads
are served. The probes have threads of their own, and wait for neither. A change holds its thread
until Kafka has acknowledged it; its effect is awaited without one (waits.py).

A call of Kafka may last for half a minute. Its thread is a daemon, so that a stop need not wait for
it: `end_waits` ends the waits, not the calls.

A stop waits for calls for STOP_S at most (server.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import Annotated, Any, Concatenate, Generic, ParamSpec, TypeVar

from anyio import CapacityLimiter
from fastapi import Depends, Request

from duewheel.clock import Clock
from duewheel.config.settings import Settings
from duewheel.errors import CorruptFile, RecoveryPending, Unacknowledged
from duewheel.ops.changes.timer_writer import TimerWriter
from duewheel.ops.files import files_identity
from duewheel.ops.shard.local_readiness import not_ready_reasons
from duewheel.ops.shard.present_files import PresentFilesWatch
from duewheel.ops.timers.pending_histogram import PendingView
from duewheel.serve.file_probe import FileProbe
from duewheel.serve.gate import REQUESTS_MAX
from duewheel.serve.metrics import ServeMetrics
from duewheel.serve.problems import Stopping, busy
from duewheel.serve.record_writer import RecordWriter
from duewheel.serve.shard_requests import OtherShards
from duewheel.serve.waits import Waits
from duewheel.threads import beside

P = ParamSpec("P")
S = TypeVar("S", Settings, TimerWriter, RecordWriter, PendingView, OtherShards)
T = TypeVar("T")

READS_MAX = 4  # at a time
SEARCHES_MAX = 2
SERVER_READS_MAX = 2
SHARD_REQUESTS_MAX = 4  # for each shard
KAFKA_MAX = 8  # changes
KAFKA_READS_MAX = 4
WAITING_MAX = 16  # for a lane of reads
CHANGES_WAITING_MAX = 64
KAFKA_PAGE_S = 5.0  # how long a page is read from Kafka


class Service:
    """See the module's head. Each lane has calls of one kind, and their first argument; lanes with
    the same limiter share its threads.
    """

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        view: PendingView,
        writer: TimerWriter,
        recorder: RecordWriter,
        metrics: ServeMetrics,
    ) -> None:
        self.settings, self.clock, self.view = settings, clock, view
        self.recorder, self.metrics = recorder, metrics
        self.present_files = files = PresentFilesWatch(settings)
        self.not_ready = FileProbe(partial(not_ready_reasons, settings, clock))
        self._stop = stop = asyncio.Event()
        self.waits = Waits(stop)
        others = OtherShards(settings, clock, files)
        reads, searches, counts = map(CapacityLimiter, (READS_MAX, SEARCHES_MAX, 1))
        server_reads, kafka_reads = map(CapacityLimiter, (SERVER_READS_MAX, KAFKA_READS_MAX))
        changes, records, pauses, replays = map(CapacityLimiter, (KAFKA_MAX, KAFKA_MAX, 1, 1))
        many = CHANGES_WAITING_MAX

        def lane(
            first: S,
            threads: CapacityLimiter,
            at_stop: AtStop,
            files: PresentFilesWatch | None = None,
            waiting_max: int = WAITING_MAX,
        ) -> Lane[S]:
            return Lane(settings, stop, first, threads, at_stop, files, waiting_max)

        # Reads of the shard's files; and by calls that say themselves why there is nothing to read.
        self.read = lane(settings, reads, AtStop.WAITS, files)
        self.peek = lane(settings, reads, AtStop.WAITS)
        # Reads of them for seconds: reads and changes must not wait for these.
        self.search = lane(settings, searches, AtStop.AGAIN, files)
        # Counts of all pending timers: each continues the last one, and the first takes seconds.
        self.count = lane(view, counts, AtStop.WAITS, files)
        # Reads of all shards' servers, for seconds if one is absent.
        self.ask_servers = lane(others, server_reads, AtStop.AGAIN)
        # Requests to another shard: one that does not answer must not hold up the others.
        shards = {n: CapacityLimiter(SHARD_REQUESTS_MAX) for n in range(settings.shard.count)}
        self.read_shard = {n: lane(others, each, AtStop.AGAIN) for n, each in shards.items()}
        self.change_shard = {n: lane(others, each, AtStop.DOUBT) for n, each in shards.items()}
        # Reads from Kafka: changes must not wait for them.
        self.read_kafka = lane(settings, kafka_reads, AtStop.AGAIN)
        # A replay of dead letters: each fences the one before, and a later one continues it.
        self.replay = lane(settings, replays, AtStop.AGAIN)
        # Records in timer topics; and after a look at the shard's files.
        self.write = lane(writer, changes, AtStop.DOUBT, None, many)
        self.write_pending = lane(writer, changes, AtStop.DOUBT, files, many)
        # Pauses of topics and tags, in the state topic.
        self.write_pause = lane(settings, changes, AtStop.DOUBT, None, many)
        # A pause of a process, in a file: it must not wait for a Kafka that hangs.
        self.write_file = lane(settings, pauses, AtStop.DOUBT, None, many)
        # Records of changes, apart from these. Those of the outcome are few enough: their changes
        # have begun.
        self.record = lane(recorder, records, AtStop.WAITS, None, many)
        self.record_end = lane(recorder, records, AtStop.WAITS, None, REQUESTS_MAX)

    def end_waits(self) -> None:
        """Ends the waits for all calls of Kafka, and all effects. Called in the event loop."""
        self._stop.set()


class AtStop(Enum):
    """How a stop of the server treats a call that has begun."""

    WAITS = auto()  # waits for it
    AGAIN = auto()  # ends its wait: the request can be sent again
    DOUBT = auto()  # ends its wait: it may have written


@dataclass(frozen=True)
class Lane(Generic[S]):
    """Calls with the same first argument, as many at a time as `threads` permits.

    Attributes:
        files: looks at the shard's files first, which must be the present ones.
        waiting_max: further requests are refused: those for one lane must not take the room of
            all others in the gate (gate.py).
    """

    settings: Settings
    stop: asyncio.Event
    first: S
    threads: CapacityLimiter
    at_stop: AtStop
    files: PresentFilesWatch | None
    waiting_max: int

    async def __call__(
        self, call: Callable[Concatenate[S, P], T], *args: P.args, **named: P.kwargs
    ) -> T:
        """Runs a call in a thread of its own, and returns its result.

        Raises:
            Refused: too many wait already.
            Stopping: the server stops: the call has not begun, or can be repeated.
            Unacknowledged: the server stops, and the call may have written.
            NoDataDirectory: it needs files, and there are none yet.
            Unreadable: they are not of these settings, or not for this user.
            Reassigned: their partitions are other shards'.
            Fenced: another data directory has taken the shard over.
            KafkaUnavailable: a change by them, before a first look.
            RecoveryPending: they may be cut at any moment.
        """
        made = partial(call, self.first, *args, **named)
        waiting = self.threads.statistics().tasks_waiting
        if waiting >= self.waiting_max:
            raise busy(f"{waiting} such requests are waiting")
        async with self.threads:
            is_awaited = self.at_stop is AtStop.WAITS
            if self.stop.is_set() and not is_awaited:
                raise Stopping("the server stops: nothing was written")
            checked = made if self.files is None else self._checked(self.files, made)
            result = asyncio.wrap_future(beside("call", checked))
            ends: list[asyncio.Future[Any]] = []
            if not is_awaited:
                ends.append(asyncio.ensure_future(self.stop.wait()))
            try:
                await asyncio.wait({result, *ends}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for end in ends:
                    end.cancel()
            if result.done():
                return result.result()
            # Its error, if it ends with one, is no longer of interest.
            result.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
            if self.at_stop is AtStop.DOUBT:
                raise Unacknowledged("the server stops: it may or may not be written")
            raise Stopping("the server stops: send the request again")

    def _checked(self, files: PresentFilesWatch, call: Callable[[], T]) -> Callable[[], T]:
        def checked() -> T:
            files.require_after_read(to_change=self.at_stop is AtStop.DOUBT)
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
