"""Recurring schedules in a test: the scheduler of `duewheel recur` over topics in memory.

The schedules topic has the records that commands and the scheduler write; `advance` calls `turn`
when the scheduler would do something. A change is in effect once its call returns.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import Future
from typing import Any

from pydantic import ValidationError

from duewheel.api.model import text_of
from duewheel.api.schedules import NewSchedule
from duewheel.client import DelayProducer
from duewheel.clock import Clock
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError
from duewheel.kafka.connect.deadline import Deadline
from duewheel.kafka.topic_follower import KeyedRecord
from duewheel.ops.schedules import accepted_schedule, paused, require_schedule
from duewheel.recurring.firing_records import (
    batches_of,
    cancelled_instants,
    firing_batches,
    firing_partition,
    position_row,
)
from duewheel.recurring.records import read_changes, read_table, schedules_topic
from duewheel.recurring.schedule import SCHEDULE_PREFIX, Schedule, require_name
from duewheel.recurring.scheduler import ScheduleCommit, Scheduler, Table
from duewheel.recurring.steps import FiringCancels
from duewheel.testing.memory_cluster import PARTITIONS, MemoryCluster

_REPLIES_S = 10.0  # they are there before a cancel is


class LocalSchedules:
    """See the module's head. One thread."""

    def __init__(
        self, settings: Settings, cluster: MemoryCluster, clock: Clock, producer: DelayProducer
    ) -> None:
        """The producer writes the scheduler's cancels.

        Raises:
            ConfigError: the settings name no topic for schedules.
        """
        self._settings, self._clock, self._cluster = settings, clock, cluster
        self._place = (schedules_topic(settings), 0)
        self._scheduler = Scheduler(_MemoryStore(cluster, self._place, clock, producer), clock)
        self._scheduler.open()

    def set(self, name: str, **fields: Any) -> None:
        """Sets a schedule, or replaces the one of this name.

        Args:
            name: the schedule's.
            fields: those of the HTTP API's body: `cron` and `zone`, or `every`; `target`, `value`,
                `key`, `headers`, `missed`, `timer_topic`.

        Raises:
            ConfigError: the service would refuse it.
        """
        require_name(name)
        try:
            new = NewSchedule(**fields)
        except ValidationError as error:
            raise ConfigError(f"the schedule {name}: {text_of(error)}") from None
        self._change(name, accepted_schedule(self._settings, name, new))

    def pause(self, name: str) -> None:
        """Pauses a schedule: it fires no instant.

        Raises:
            NoSuchSchedule: there is none of this name.
        """
        self._change(name, paused(name, self._scheduler.schedules.get(name), on=True))

    def resume(self, name: str) -> None:
        """Ends a pause. Raises as `pause`."""
        self._change(name, paused(name, self._scheduler.schedules.get(name), on=False))

    def stop(self, name: str) -> None:
        """Ends a schedule for good. Raises as `pause`."""
        require_schedule(name, self._scheduler.schedules.get(name))
        self._change(name, None)

    def turn(self) -> None:
        """Does all that is due."""
        self._scheduler.turn()
        while (wake_ms := self.wake_ms) is not None and wake_ms <= self._clock.now_ms():
            self._scheduler.turn()

    @property
    def wake_ms(self) -> int | None:
        """When there is something to do next; None: after a change."""
        return self._scheduler.wake_ms

    def _change(self, name: str, schedule: Schedule | None) -> None:
        value = None if schedule is None else schedule.encode()
        self._cluster.append(self._place, SCHEDULE_PREFIX + name.encode(), value, ())
        self.turn()


class _MemoryStore:
    """The Store of the scheduler (recurring/scheduler.py)."""

    def __init__(
        self,
        cluster: MemoryCluster,
        place: tuple[str, int],
        clock: Clock,
        producer: DelayProducer,
    ) -> None:
        self._cluster, self._place, self._clock, self._producer = cluster, place, clock, producer
        self._position = 0

    def open(self) -> Table:
        """See Store."""
        self._position = 0
        return read_table(self._added())

    def now_ms(self) -> int:
        """See Store."""
        return self._clock.now_ms()

    def changes(self) -> Iterable[tuple[str, Schedule | None, bool]]:
        """See Store."""
        return read_changes(self._added())

    def partition(self, schedule: Schedule) -> int:
        """See Store."""
        return firing_partition(schedule, PARTITIONS)

    def write(self, written: Collection[ScheduleCommit]) -> None:
        """See Store."""
        now_ms = self._clock.now_ms()
        with self._cluster.changed:
            for place, batch in firing_batches(written):
                self._cluster.write(place, batch, now_ms)
            for place, batch in batches_of(self._place, map(position_row, written)):
                self._cluster.write(place, batch, now_ms)

    def cancel(self, cancels: FiringCancels) -> Future[frozenset[int]]:
        """See Store. The replies are there when it returns."""
        replied: Future[frozenset[int]] = Future()
        replied.set_result(cancelled_instants(self._producer, cancels, Deadline(_REPLIES_S)))
        return replied

    def _added(self) -> Iterator[KeyedRecord]:
        with self._cluster.changed:
            records = self._cluster.slice(self._place, self._position)
            self._position = self._cluster.end(self._place)
        return (KeyedRecord(each.key, each.value, each.timestamp) for each in records)
