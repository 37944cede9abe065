"""Starts, runs and ends one shard's loop (loop.py).

A start takes the shard, decides which files are kept (wheel/recovery/startup.py), and commits the
progress in its own name. If the owner before it commits once more in between, the start decides
again. Damage found by the loop is recorded in `state`, and the process ends: its next start
recovers.

Not thread-safe, except where a docstring says so.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from duewheel.checkpoints.progress import Progress
from duewheel.clock import Clock
from duewheel.errors import CorruptFile
from duewheel.wheel.dequeue.committer import Overtaken
from duewheel.wheel.dequeue.loop import Loop
from duewheel.wheel.dequeue.phase import Phase
from duewheel.wheel.dequeue.pipeline import THREADS, Threads
from duewheel.wheel.dequeue.statistics import Statistics, Totals
from duewheel.wheel.dequeue_config import DequeueConfig
from duewheel.wheel.publisher_protocol import Publisher
from duewheel.wheel.recovery.startup import start
from duewheel.wheel.storage.data_directory import DataDirectory

log = structlog.get_logger(__name__)


class Dequeue:
    """One shard's delivery, from its start to its end; see the module's head."""

    def __init__(
        self,
        directory: DataDirectory,
        publisher: Publisher,
        clock: Clock,
        config: DequeueConfig,
        stopping: Callable[[], bool] = lambda: False,
        threads: Threads = THREADS,
    ) -> None:
        self._directory = directory
        self._publisher = publisher
        self._clock = clock
        self._config = config
        self._stopping = stopping
        self._threads = threads
        self._totals = Totals(config.lateness_p99_ms)
        self._loop: Loop | None = None  # until the shard is this directory's

    def start(
        self,
        first: Progress | None = None,
        *,
        take_over: bool = False,
        before_claim: Callable[[], None] = lambda: None,
    ) -> None:
        """Takes the shard, decides where delivery continues, informs ingest, claims the progress.

        Args:
            first: progress of a shard that never had any; None if it may have had some.
            take_over: the operator has given --take-over.
            before_claim: called before the shard is taken; its errors are raised.

        Raises:
            Fenced: the shard is another directory's; nothing has changed.
            RecoveryRefused: its progress and the local files contradict each other; nothing has
                changed.
            RecoveryPending: another instance may own the shard: try again later. Or a half-applied
                batch of ingest is damaged: the next start recovers.
            KafkaUnavailable: no answer in time.
            PublishDoubt: the outcome of publishing `first` is unknown; start again.
        """
        while True:
            started = start(
                self._directory,
                self._publisher,
                self._config,
                first,
                take_over=take_over,
                before_claim=before_claim,
            )
            self.close()
            self._loop = loop = Loop(
                self._directory,
                self._publisher,
                self._clock,
                self._config,
                started,
                self._totals,
                self._stopping,
                self._threads,
            )
            try:
                loop.begin()
            except Overtaken as overtaken:
                log.warning("deciding again", reason=str(overtaken))
            except CorruptFile as error:
                raise self._directory.mark_damaged(error) from error
            else:
                return

    @property
    def statistics(self) -> Statistics:
        """A frozen copy of the counters. May be read from any thread."""
        return self._totals.now

    @property
    def delivered_slot(self) -> int:
        """R: the last slot delivered in full. May be read from any thread."""
        return self._started.position.delivered_slot

    @property
    def is_ready(self) -> bool:
        """Whether no recovery, which unlinks files, is running. May be read from any thread."""
        return self._started.phase is not Phase.RECOVERING

    def close(self) -> None:
        """Closes the files; the directory may be stopped afterwards."""
        if self._loop is not None:
            self._loop.close()

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        """Runs turns until `stopping`, or `until` between two of them."""
        while not (self._stopping() or until()):
            if not self.tick():
                self._clock.sleep(self._until_next_slot_ms() / 1000)

    def tick(self) -> bool:
        """Runs one turn of the loop; returns whether it had work.

        Raises:
            Fenced: another instance has the shard.
            RecoveryRefused: Kafka's progress is not the one that this loop wrote.
            RecoveryPending: a pending timer is damaged, and has not been delivered: the next start
                recovers.
        """
        try:
            return self._started.turn()
        except CorruptFile as error:
            raise self._directory.mark_damaged(error) from error

    @property
    def _started(self) -> Loop:
        assert self._loop is not None, "not started"
        return self._loop

    def _until_next_slot_ms(self) -> int:
        precision_ms = self._directory.config.precision_ms
        return precision_ms - self._clock.now_ms() % precision_ms
