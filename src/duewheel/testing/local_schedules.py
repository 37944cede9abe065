"""Recurring schedules in a test: a change is in effect once its call returns."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from duewheel.api.schedules import NewSchedule
from duewheel.client import DelayProducer
from duewheel.config.settings import Settings
from duewheel.errors import NoSuchSchedule
from duewheel.ops.schedules.changes import write_record, write_trigger
from duewheel.ops.schedules.records import ScheduleRecord, requested
from duewheel.ops.timers.pending import source_of
from duewheel.wheel.inspect.listing import PendingTimer


class LocalSchedules:
    """See the module's head. One thread."""

    def __init__(
        self,
        settings: Settings,
        pending: Callable[[], list[PendingTimer]],
        producer: Callable[[str], DelayProducer],
    ) -> None:
        """`producer` makes one of a timer topic."""
        self._settings, self._pending = settings, pending
        self._producer = lru_cache(None)(producer)

    def set(self, name: str, **fields: Any) -> None:
        """Sets a schedule, or replaces the one of this name.

        Args:
            name: the schedule's.
            fields: those of the HTTP API's body: `cron` and `zone`, or `every`; `missed`, `starts`,
                `ends`, `jitter`; `target`, `value`, `key`, `headers`, `timer_topic`.

        Raises:
            ConfigError: the service would refuse it.
        """
        timer, new = self._find(name), NewSchedule.of(fields)
        topic = None if timer is None else source_of(timer)[0]
        self._write(requested(self._settings, name, new, topic), timer)

    def pause(self, name: str, note: str = "") -> None:
        """Pauses a schedule: it fires no instant.

        Raises:
            NoSuchSchedule: there is none of this name.
            ConfigError: the service would refuse it.
        """
        timer = self._require(name)
        self._write(ScheduleRecord.of(timer).paused(self._settings, note, timer), timer)

    def resume(self, name: str) -> None:
        """Ends a pause. Raises as `pause`."""
        timer = self._require(name)
        self._write(ScheduleRecord.of(timer).resumed(self._settings), timer)

    def stop(self, name: str) -> None:
        """Ends a schedule for good. Raises as `pause`."""
        timer = self._require(name)
        self._write(ScheduleRecord.of(timer), timer, stops=True)

    def trigger(self, name: str) -> None:
        """Fires a schedule once more, now. Raises as `pause`."""
        record = ScheduleRecord.of(self._require(name))
        write_trigger(self._settings, self._producer(record.timer_topic), record).result(0)

    def _find(self, name: str) -> PendingTimer | None:
        named = (t for t in self._pending() if t.recurring and t.id == name.encode())
        return next(named, None)

    def _require(self, name: str) -> PendingTimer:
        timer = self._find(name)
        if timer is None:
            raise NoSuchSchedule(f"there is no schedule {name!r}")
        return timer

    def _write(
        self, record: ScheduleRecord, timer: PendingTimer | None, *, stops: bool = False
    ) -> None:
        producer = self._producer(record.timer_topic)
        write_record(self._settings, producer, record, timer, stops=stops)
        self._pending()  # takes it
