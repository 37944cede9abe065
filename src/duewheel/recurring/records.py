"""The records of the schedules topic, as their readers see them.

schedule/NAME    a schedule; commands write it
position/NAME    the position of its firings; the scheduler writes it
owner            the scheduler's heartbeat; no value after a clean stop
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import structlog

from duewheel.checkpoints.json_fields import MISSHAPEN
from duewheel.config.settings import Settings
from duewheel.config.values import as_millis
from duewheel.errors import ConfigError
from duewheel.kafka.topic_follower import KeyedRecord
from duewheel.recurring.schedule import POSITION_PREFIX, SCHEDULE_PREFIX, FiringPosition, Schedule
from duewheel.recurring.scheduler import Table

OWNER_KEY = b"owner"

SchedulerState = Literal["running", "silent", "none"]

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SchedulerBeat:
    """The newest one of the schedulers.

    Attributes:
        at_ms: by the brokers' clock; None: none runs, or each has ended by itself.
        silence_ms: after which a standby takes over.
    """

    at_ms: int | None
    silence_ms: int

    def state(self, now_ms: int) -> SchedulerState:
        """Whether a scheduler runs; silent: the last one was killed, or does not reach Kafka."""
        if self.at_ms is None:
            return "none"
        return "running" if now_ms - self.at_ms <= self.silence_ms else "silent"


def schedules_topic(settings: Settings) -> str:
    """The topic of the schedules.

    Raises:
        ConfigError: the settings name none.
    """
    if settings.timer.schedules_topic is None:
        raise ConfigError("there are no schedules: timer.schedules_topic names no topic")
    return settings.timer.schedules_topic


def transactional_id(settings: Settings) -> str:
    """The id under which firings are written: the last instance to open it is the scheduler."""
    return f"{settings.app.id}.recur"


def name_of(key: bytes, prefix: bytes) -> str | None:
    """The name of the schedule in a record's key; None: the key is of another kind."""
    return key.removeprefix(prefix).decode(errors="replace") if key.startswith(prefix) else None


def read_schedule(name: str, value: bytes, at_ms: int) -> Schedule | None:
    """A schedule; None, and an error in the log, if it cannot be read."""
    try:
        return Schedule.decode(name, value, at_ms)
    except ConfigError as error:
        log.error("a schedule cannot be read: it does not fire", reason=str(error))  # noqa: TRY400
        return None


def read_table(records: Iterable[KeyedRecord]) -> Table:
    """The newest records of each schedule. One whose position cannot be read does not fire: which
    instants are written is unknown.
    """
    newest = {record.key: record for record in records}
    schedules: dict[str, Schedule | None] = {}
    positions: dict[str, FiringPosition] = {}
    unknown = list[str]()
    for key, record in newest.items():
        if record.value is None:
            continue
        if (name := name_of(key, SCHEDULE_PREFIX)) is not None:
            schedules[name] = read_schedule(name, record.value, record.timestamp_ms)
        elif (name := name_of(key, POSITION_PREFIX)) is not None:
            try:
                positions[name] = FiringPosition.decode(name, record.value)
            except ConfigError as error:
                log.error("a schedule does not fire", reason=str(error))  # noqa: TRY400
                unknown.append(name)
    return Table(schedules | {name: None for name in unknown if name in schedules}, positions)


def read_changes(records: Iterable[KeyedRecord]) -> Iterator[tuple[str, Schedule | None, bool]]:
    """The changes of schedules among these, as Store.changes (scheduler.py) has them."""
    for record in records:
        name = name_of(record.key, SCHEDULE_PREFIX)
        if name is None:
            continue
        if record.value is None:
            yield name, None, True
        else:
            schedule = read_schedule(name, record.value, record.timestamp_ms)
            yield name, schedule, schedule is not None


def owner_of(value: bytes | None) -> str | None:
    """The instance in an owner record; None after a clean stop, or if no scheduler has written the
    record: the transactional id alone then decides who may write.
    """
    if not value:
        return None
    try:
        owner = json.loads(value)["owner"]
    except MISSHAPEN:
        owner = None
    if isinstance(owner, str):
        return owner
    log.error("the record of key `owner` is ignored: no scheduler has written it")
    return None


def read_heartbeat(settings: Settings, records: Iterable[KeyedRecord]) -> SchedulerBeat:
    """The newest heartbeat among these."""
    owners = [record for record in records if record.key == OWNER_KEY]
    at_ms = owners[-1].timestamp_ms if owners and owner_of(owners[-1].value) else None
    return SchedulerBeat(at_ms, as_millis(settings.shard.take_over_after))
