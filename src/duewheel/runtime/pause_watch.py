"""Follows the pauses of targets, timer topics and tags, for the dequeue process.

A thread reads them once a second, with a client of its own. No delivery begins before the first
read (`wait`): a target that is paused would otherwise get its overdue timers at each start. While
Kafka does not answer, the pauses are those of the last read.
"""

from __future__ import annotations

import threading

import structlog

from duewheel.checkpoints.pauses import (
    NONE_PAUSED,
    PausedTimers,
    PausesFile,
    paused_at,
)
from duewheel.clock import Clock, Interval
from duewheel.config.settings import Settings
from duewheel.errors import DuewheelError
from duewheel.kafka.connect.clients import KafkaClients
from duewheel.kafka.progress.pause_records import PauseReader
from duewheel.runtime.watch import Watch

_INTERVAL_S = 1.0
_AGAIN_S = 10.0
_POLL_S = 0.1
_REMIND_MS = _FILE_MS = 60_000

log = structlog.get_logger(__name__)


class PauseWatch(Watch):
    """Reads the pauses about once a second, in a thread, for the length of a with block."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        """Nothing runs yet. The data directory must exist."""
        super().__init__("pause watch", _AGAIN_S)
        self._settings, self._clock = settings, clock
        self._is_read = threading.Event()
        self._last = PausesFile.read(settings.storage.data_dir)  # replaced as a whole
        self._writing = Interval(clock, _FILE_MS)

    def wait(self, stopping: threading.Event) -> None:
        """Waits for the first read, or for a stop."""
        while not self._is_read.wait(_POLL_S) and not stopping.is_set():
            pass

    def now(self) -> PausedTimers:
        """Returns the targets, timer topics and tags that are paused now. Any thread."""
        pauses = self._last.of
        return paused_at(pauses, self._clock.now_ms()) if pauses else NONE_PAUSED

    def _run(self) -> None:
        client = KafkaClients(self._settings.kafka.client_options("consumer"))
        topic, warning = self._settings.state_topic, Interval(self._clock, _REMIND_MS)
        reader = PauseReader(client, topic, self._last, stopping=self._stop)
        try:
            while True:
                try:
                    self._take(reader.read())
                except DuewheelError as error:
                    if warning.is_over():
                        log.warning("the pauses cannot be read", reason=str(error))
                else:
                    warning = Interval(self._clock, _REMIND_MS)
                if self._stop.wait(_INTERVAL_S):
                    return
        finally:
            reader.close()

    def _take(self, newest: PausesFile) -> None:
        """Makes these pauses the known ones; logs a change, and notes it."""
        before, self._last = self._last, newest
        changed = newest.of != before.of or not self._is_read.is_set()
        self._is_read.set()
        for name in sorted(newest.of.keys() | before.of.keys()):
            now = newest.of.get(name)
            kind, _, of = name.partition("/")
            if now is None:
                log.warning("no longer paused", kind=kind, name=of)
            elif now != before.of.get(name):
                log.warning("paused: its due timers wait", kind=kind, name=of, **now._asdict())
        if changed or self._writing.is_over():
            try:
                newest.write(self._settings.storage.data_dir)
            except OSError as error:
                log.warning("the pauses cannot be written for `status`", reason=str(error))
