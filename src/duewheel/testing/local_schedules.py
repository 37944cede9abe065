"""Recurring schedules in a test: a change is in effect once its call returns."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from duewheel.api.schedules import NewSchedule
from duewheel.client import DelayProducer
from duewheel.config.settings import Settings
from duewheel.errors import NoSuchSchedule
from duewheel.ops.named_timer_topic import timer_topic_of
from duewheel.ops.schedules.changes import write_record, write_trigger
from duewheel.ops.schedules.schedule_record import ScheduleRecord, requested
from duewheel.ops.timers.pending import source_of
from duewheel.wheel.inspect.listing import PendingTimer


class LocalSchedules:
    """See the module's head. One thread."""

    def __init__(
        self,
        settings: Settings,
        pending: Callable[[], list[PendingTimer]],
        producer: Callable[[str], DelayProducer],
        now_ms: Callable[[], int],
    ) -> None:
        """`producer` makes one of a timer topic; `now_ms` reads the clock."""
        self._settings, self._pending, self._now_ms = settings, pending, now_ms
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
        record = requested(self._settings, name, NewSchedule.of(fields), self._now_ms())
        self._write(record.beside(self._find(name, record.timer_topic)))

    def pause(self, name: str, note: str = "", *, timer_topic: str | None = None) -> None:
        """Pauses a schedule: it fires no instant.

        Args:
            name: the schedule's.
            note: why.
            timer_topic: the schedule's; by default the first of `timer.topics`.

        Raises:
            NoSuchSchedule: there is none of this name.
            ConfigError: the service would refuse it.
        """
        timer = self._require(name, timer_topic)
        self._write(ScheduleRecord.of(timer).paused(self._settings, note, timer, self._now_ms()))

    def resume(self, name: str, *, timer_topic: str | None = None) -> None:
        """Ends a pause. Raises as `pause`."""
        timer = self._require(name, timer_topic)
        self._write(ScheduleRecord.of(timer).resumed(self._settings, timer, self._now_ms()))

    def stop(self, name: str, *, timer_topic: str | None = None) -> None:
        """Ends a schedule for good. Raises as `pause`."""
        self._write(ScheduleRecord.of(self._require(name, timer_topic)), stops=True)

    def trigger(self, name: str, *, timer_topic: str | None = None) -> None:
        """Fires a schedule once more, now. Raises as `pause`."""
        record = ScheduleRecord.of(self._require(name, timer_topic))
        producer = self._producer(record.timer_topic)
        write_trigger(self._settings, producer, record, self._now_ms()).result(0)

    def _find(self, name: str, topic: str) -> PendingTimer | None:
        named = (t for t in self._pending() if t.recurring and t.id == name.encode())
        return next((t for t in named if source_of(t)[0] == topic), None)

    def _require(self, name: str, timer_topic: str | None) -> PendingTimer:
        topic = timer_topic_of(self._settings, timer_topic)
        timer = self._find(name, topic)
        if timer is None:
            raise NoSuchSchedule(f"{topic} has no schedule {name!r}")
        return timer

    def _write(self, record: ScheduleRecord, *, stops: bool = False) -> None:
        producer = self._producer(record.timer_topic)
        write_record(self._settings, producer, record, stops=stops)
        self._pending()  # takes it
