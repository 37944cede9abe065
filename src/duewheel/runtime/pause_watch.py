"""Follows the pauses of targets, timer topics and tags, for the dequeue process.

A thread reads them once a second, with a client of its own. Nothing is delivered before the first
read: a target that is paused would otherwise get its overdue timers at each start. While Kafka does
not answer, the pauses are those of the last read.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Self

import structlog

from duewheel.checkpoints.pauses import (
    NONE_PAUSED,
    PausedTimers,
    PauseRecord,
    PausesFile,
    paused_at,
)
from duewheel.clock import Clock, Interval
from duewheel.config.settings import Settings
from duewheel.errors import DuewheelError, KafkaUnavailable
from duewheel.kafka.connect.clients import ClientSettings
from duewheel.kafka.progress.pauses import PauseReader
from duewheel.threads import Worker

_INTERVAL_S = 1.0
_AGAIN_S = 10.0
_STOP_S = 1.0  # a thread that does not end by then has no resource that others need
_FIRST_S = 10.0  # a start waits so long for the first read, then tries again
_REMIND_MS = 60_000

log = structlog.get_logger(__name__)


class PauseWatch:
    """Reads the pauses about once a second, in a thread, for the length of a with block."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        """Nothing runs yet. The data directory must exist."""
        self._settings, self._clock = settings, clock
        self._stop = threading.Event()
        self._is_read = threading.Event()
        self._pauses: Mapping[str, PauseRecord] = {}  # replaced as a whole
        self._thread = Worker("pause watch", self._run, again_after_s=_AGAIN_S)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(_STOP_S)

    def now(self) -> PausedTimers:
        """Returns the topics that are paused now. Any thread.

        Raises:
            KafkaUnavailable: they have not been read yet.
        """
        if not self._is_read.wait(0 if self._stop.is_set() else _FIRST_S):
            raise KafkaUnavailable("the pauses of topics could not be read yet")
        return paused_at(self._pauses, self._clock.now_ms()) if self._pauses else NONE_PAUSED

    def _run(self) -> None:
        client = ClientSettings(self._settings.kafka.client_options("consumer"))
        reader, warning = self._reader(client), Interval(self._clock, _REMIND_MS)
        try:
            while True:
                try:
                    self._take(reader.read())
                except DuewheelError as error:
                    if warning.is_over():
                        log.warning("the pauses of topics cannot be read", reason=str(error))
                else:
                    warning = Interval(self._clock, _REMIND_MS)
                if self._stop.wait(_INTERVAL_S):
                    return
        finally:
            reader.close()

    def _reader(self, client: ClientSettings) -> PauseReader:
        return PauseReader(client, self._settings.state_topic, stopping=self._stop)

    def _take(self, pauses: Mapping[str, PauseRecord]) -> None:
        """Makes these pauses the known ones; logs and notes a change."""
        before, self._pauses = self._pauses, pauses
        is_first = not self._is_read.is_set()
        self._is_read.set()
        if pauses is before and not is_first:
            return
        for name in sorted(pauses.keys() | before.keys()):
            now, was = pauses.get(name), before.get(name)
            if now == was:
                continue
            kind, of = name.split("/", 1)
            if now is None:
                log.warning("delivery continues", kind=kind, name=of)
            else:
                log.warning("paused: its due timers wait", kind=kind, name=of, **now._asdict())
        try:
            PausesFile(pauses).write(self._settings.storage.data_dir)
        except OSError as error:
            log.warning("the pauses cannot be written for `status`", reason=str(error))
