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
from dataclasses import replace
from functools import partial
from typing import Annotated

from anyio import CapacityLimiter
from fastapi import Depends, Request

from duewheel.clock import Clock
from duewheel.config.settings import Settings
from duewheel.ops.changes.timer_writer import TimerWriter
from duewheel.ops.shard.local_readiness import not_ready_reasons
from duewheel.ops.shard.present_files import PresentFilesWatch
from duewheel.ops.timers.pending_histogram import PendingView
from duewheel.serve.bulkhead import AtStop, Bulkhead
from duewheel.serve.file_probe import FileProbe
from duewheel.serve.gate import REQUESTS_MAX
from duewheel.serve.metrics import ServeMetrics
from duewheel.serve.record_writer import RecordWriter
from duewheel.serve.shard_requests import OtherShards
from duewheel.serve.waits import Waits

READS_MAX = 4  # at a time
SEARCHES_MAX = 2
SERVER_READS_MAX = 2
SHARD_REQUESTS_MAX = 4  # for each shard
KAFKA_MAX = 8  # changes
KAFKA_READS_MAX = 4
WAITING_MAX = 16  # for a bulkhead of reads
CHANGES_WAITING_MAX = 64
KAFKA_PAGE_S = 5.0  # how long a page is read from Kafka


class Service:
    """See the module's head. Each lane has calls of one kind, and their first argument; those of
    one bulkhead (bulkhead.py) share its threads.
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

        def bulkhead(calls_max: int, waiting_max: int = WAITING_MAX) -> Bulkhead:
            return Bulkhead(settings, stop, CapacityLimiter(calls_max), waiting_max)

        # Reads of the shard's files. `peek` reads outdated ones, too: it only ends a wait.
        reads = bulkhead(READS_MAX)
        self.read = reads.lane(settings, AtStop.WAITS, files.require_to_read)
        self.peek = reads.lane(settings, AtStop.WAITS)
        # Reads of them that take seconds: other reads and changes must not wait for these. Of
        # `search_to_change` the results are changed afterwards.
        searches = bulkhead(SEARCHES_MAX)
        self.search = searches.lane(settings, AtStop.AGAIN, files.require_to_read)
        self.search_to_change = searches.lane(settings, AtStop.AGAIN, files.require_to_change)
        # Counts of all pending timers: each continues the last one, and the first takes seconds.
        self.count = bulkhead(1).lane(view, AtStop.WAITS, files.require_to_read)
        # Reads of the servers of all shards: they take seconds if one is absent.
        self.ask_servers = bulkhead(SERVER_READS_MAX).lane(others, AtStop.AGAIN)
        # Requests to another shard: one that does not answer must not hold up the others.
        shards = {number: bulkhead(SHARD_REQUESTS_MAX) for number in range(settings.shard.count)}
        self.read_shard = {n: each.lane(others, AtStop.AGAIN) for n, each in shards.items()}
        self.change_shard = {n: each.lane(others, AtStop.DOUBT) for n, each in shards.items()}
        # Reads from Kafka: changes must not wait for them.
        self.read_kafka = bulkhead(KAFKA_READS_MAX).lane(settings, AtStop.AGAIN)
        # A replay of dead letters: each fences the one before, and a later one continues it.
        self.replay = bulkhead(1).lane(settings, AtStop.AGAIN)
        # Writes of records in timer topics; `write_pending` makes them from the shard's files.
        changes = bulkhead(KAFKA_MAX, CHANGES_WAITING_MAX)
        self.write = changes.lane(writer, AtStop.DOUBT)
        self.write_pending = changes.lane(writer, AtStop.DOUBT, files.require_to_change)
        # Writes of the pauses of topics and tags, in the state topic.
        self.write_pause = changes.lane(settings, AtStop.DOUBT)
        # Writes of the pause of a process, in a file: it must not wait for a Kafka that hangs.
        self.write_file = bulkhead(1, CHANGES_WAITING_MAX).lane(settings, AtStop.DOUBT)
        # Writes of the records of changes, which must not wait for the changes themselves.
        # `record_end` writes the outcome, and needs no bound of its own: its change has begun.
        records = bulkhead(KAFKA_MAX, CHANGES_WAITING_MAX)
        self.record = records.lane(recorder, AtStop.WAITS)
        self.record_end = replace(records, waiting_max=REQUESTS_MAX).lane(recorder, AtStop.WAITS)

    def end_waits(self) -> None:
        """Ends the waits for all calls of Kafka, and all effects. Called in the event loop."""
        self._stop.set()


async def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


Shared = Annotated[Service, Depends(_service)]
