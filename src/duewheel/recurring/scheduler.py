"""Writes the firings of all schedules, turn by turn, over a Store: Kafka's, or a model of it.

    open    the store makes this instance the only one, then returns all records
    turn    takes changes; writes the steps that are due, those of many schedules in one
            transaction; sends cancels and takes their replies

After an error the caller opens again: what is in memory follows from the records, but for replies
to cancels, and those are asked for again. A transaction that fails is repeated one schedule at a
time, and a schedule that fails alone waits, so that none stops the others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Protocol

import structlog

from duewheel.clock import Clock
from duewheel.errors import DuewheelError, PublishDoubt
from duewheel.recurring.schedule import FiringPosition, Schedule
from duewheel.recurring.steps import FiringCancels, Write, next_step, wake_ms, without

_AGAIN_MS = 10_000  # after a failure of a schedule alone, or of its cancels
_STEPS_MAX = 500  # of a transaction
_FIRINGS_MAX = 500  # likewise; its last step may exceed it
_BYTES_MAX = 4 << 20  # likewise

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ScheduleCommit:
    """What one transaction writes for one schedule.

    Attributes:
        name: of the schedule.
        schedule: the message of the firings; None: it is no more.
        position: the new one, with the firings; None: the record is deleted.
        firings: instant and partition of each new timer.
    """

    name: str
    schedule: Schedule | None
    position: FiringPosition | None
    firings: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Table:
    """The newest records; a schedule that cannot be read is None."""

    schedules: Mapping[str, Schedule | None]
    positions: Mapping[str, FiringPosition]


class Store(Protocol):
    """The schedules topic and the timer topics."""

    def open(self) -> Table:
        """Make this instance the only one that can write, and read everything."""
        ...

    def now_ms(self) -> int | None:
        """This host's time; None while its clock is ahead of the brokers', or is not compared with
        theirs: an instant that is decided too early counts as missed, or as fired, for good.
        """
        ...

    def changes(self) -> Iterable[tuple[str, Schedule | None, bool]]:
        """Schedules that commands have changed since: name, the schedule (None: stopped, or
        unreadable), and whether it can be read.
        """
        ...

    def partition(self, schedule: Schedule) -> int:
        """The timer partition of the schedule's firings."""
        ...

    def write(self, written: Collection[ScheduleCommit]) -> None:
        """Write all of it in one transaction, or raise an error."""
        ...

    def cancel(self, cancels: FiringCancels) -> Future[frozenset[int]]:
        """Cancel timers; the result is the instants whose reply is `cancelled`."""
        ...


@dataclass
class FiringStatistics:
    """Of this process.

    Attributes:
        firings, missed_steps, cancelled, transactions, failures: counters.
        late: of the firings, those that were written after their instant.
        turned_ms: when the last turn ended: all that was due by then is written.
    """

    firings: int = 0
    missed_steps: int = 0
    cancelled: int = 0
    transactions: int = 0
    failures: int = 0
    late: int = 0
    turned_ms: int = 0


@dataclass
class Scheduler:
    """See the module's head. One thread.

    Attributes:
        store: the topics.
        clock: decides what is due to be written.
        statistics: of this process.
    """

    store: Store
    clock: Clock
    statistics: FiringStatistics = field(default_factory=FiringStatistics)
    _schedules: dict[str, Schedule] = field(default_factory=dict)
    _positions: dict[str, FiringPosition] = field(default_factory=dict)
    _unreadable: set[str] = field(default_factory=set)
    _wake_ms: dict[str, int] = field(default_factory=dict)
    _cancels: dict[str, Future[frozenset[int]]] = field(default_factory=dict)
    _alone: set[str] = field(default_factory=set)

    @property
    def schedules(self) -> Mapping[str, Schedule]:
        """Those that are not stopped."""
        return self._schedules

    @property
    def unreadable(self) -> int:
        """How many records of schedules cannot be read."""
        return len(self._unreadable)

    @property
    def waiting(self) -> int:
        """How many wait for replies to cancels."""
        return len(self._cancels)

    @property
    def wake_ms(self) -> int | None:
        """When the next step is due, unless a change comes before; None: after a change."""
        return min(self._wake_ms.values(), default=None)

    def open(self) -> None:
        """Begin, or begin again after an error.

        Raises:
            DuewheelError: as the store does.
        """
        table = self.store.open()
        self._schedules = {name: s for name, s in table.schedules.items() if s is not None}
        self._unreadable = {name for name, s in table.schedules.items() if s is None}
        self._positions = dict(table.positions)
        self._cancels = {}
        failed = {name: at for name, at in self._wake_ms.items() if name in self._alone}
        self._wake_ms = dict.fromkeys(self._schedules.keys() | self._positions.keys(), 0) | failed

    def turn(self) -> None:
        """Do all that is due.

        Raises:
            PublishDoubt: a transaction may or may not have been committed: open again.
            DuewheelError: as the store does: open again.
        """
        for name, schedule, is_readable in self.store.changes():
            self._take(name, schedule, is_readable=is_readable)
        now_ms = self.store.now_ms()
        if now_ms is None:
            return
        steps: list[ScheduleCommit] = []
        firings = size = 0
        for name in [name for name, at in self._wake_ms.items() if at <= now_ms]:
            step = self._step(name, now_ms)
            if step is None:
                continue
            if name in self._alone:
                self._write([step], now_ms)
                continue
            steps.append(step)
            firings += len(step.firings)
            size += len(step.firings) * len((step.schedule and step.schedule.value) or b"")
            if len(steps) >= _STEPS_MAX or firings >= _FIRINGS_MAX or size >= _BYTES_MAX:
                self._write(steps, now_ms)
                steps, firings, size = [], 0, 0
        if steps:
            self._write(steps, now_ms)
        self.statistics.turned_ms = self.clock.now_ms()

    def _take(self, name: str, schedule: Schedule | None, *, is_readable: bool) -> None:
        self._unreadable.discard(name)
        self._schedules.pop(name, None)
        if not is_readable:
            self._unreadable.add(name)
        if schedule is not None:
            self._schedules[name] = schedule
        self._wake_ms[name] = 0
        log.info("schedule changed", schedule=name, revision=schedule and schedule.revision)

    def _step(self, name: str, now_ms: int) -> ScheduleCommit | None:
        if name in self._unreadable:  # neither fires nor ends: a later version may have written it
            del self._wake_ms[name]
            return None
        if name in self._cancels and not self._take_replies(name, now_ms):
            return None
        schedule, position = self._schedules.get(name), self._positions.get(name)
        step = next_step(name, schedule, position, now_ms)
        if isinstance(step, FiringCancels):
            self._cancels[name] = self.store.cancel(step)
            return None
        if step is None:
            self._sleep(name)
            return None
        try:
            return self._commit(name, schedule, step)
        except DuewheelError as error:
            self.statistics.failures += 1
            log.warning("firings wait", schedule=name, reason=str(error))
            self._wake_ms[name] = now_ms + _AGAIN_MS
            return None

    def _commit(self, name: str, schedule: Schedule | None, step: Write) -> ScheduleCommit:
        if step.skipped is not None:
            self.statistics.missed_steps += 1
            log.warning("missed instants do not fire", schedule=name, between_ms=step.skipped)
        position = step.position
        firings: tuple[tuple[int, int], ...] = ()
        if schedule is not None and position is not None and step.firings:
            partition = self.store.partition(schedule)
            firings = tuple((instant, partition) for instant in step.firings)
            position = replace(position, ahead=position.ahead + firings)
        return ScheduleCommit(name, schedule, position, firings)

    def _take_replies(self, name: str, now_ms: int) -> bool:
        """Whether all replies to the schedule's cancels are there."""
        if not self._cancels[name].done():
            return False
        replies, position = self._cancels.pop(name), self._positions[name]
        try:
            cancelled = replies.result()
        except DuewheelError as error:
            log.warning("cancels are sent again", schedule=name, reason=str(error))
            self._wake_ms[name] = now_ms + _AGAIN_MS
            return False
        self.statistics.cancelled += len(cancelled)
        self._positions[name] = without(position, cancelled)
        return True

    def _write(self, steps: list[ScheduleCommit], now_ms: int) -> None:
        try:
            self.store.write(steps)
        except PublishDoubt:
            self.statistics.failures += 1
            if len(steps) > 1:
                self._alone.update(step.name for step in steps)
            else:
                self._alone.add(steps[0].name)
                self._wake_ms[steps[0].name] = now_ms + _AGAIN_MS
            raise
        self.statistics.transactions += 1
        for step in steps:
            self._alone.discard(step.name)
            self.statistics.firings += len(step.firings)
            self.statistics.late += sum(at < now_ms for at, _ in step.firings)
            if step.position is None:
                del self._positions[step.name]
            else:
                self._positions[step.name] = step.position
            self._sleep(step.name)

    def _sleep(self, name: str) -> None:
        """Sleep until the schedule's next step, or a change."""
        wake = wake_ms(self._schedules.get(name), self._positions.get(name))
        if wake is None:
            self._wake_ms.pop(name, None)
        else:
            self._wake_ms[name] = wake
