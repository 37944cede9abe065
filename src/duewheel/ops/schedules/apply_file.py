"""`schedule apply`: makes the schedules of a shard those of a file.

All is read and checked before the first record is written. Each difference is one record, so a
command that is killed has made some of the changes, and the next one makes the others.
"""

from __future__ import annotations

import time
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date
from itertools import chain
from pathlib import Path
from typing import Literal

from duewheel.api.messages import octets_shown
from duewheel.api.schedules import FieldDifference, NewSchedule, ScheduleDifference
from duewheel.config.durations import format_duration_ms
from duewheel.config.instants import utc_text
from duewheel.config.nearest_name import nearest
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError, DuewheelError
from duewheel.kafka.shard_settings import owns
from duewheel.ops.changes.timer_writer import TimerWriter
from duewheel.ops.schedules.changes import await_taken, partition_of, write_record
from duewheel.ops.schedules.listing import READ_PAUSES_S, copies_of, find_schedules
from duewheel.ops.schedules.read_before_change import LogEnds, files_to_change
from duewheel.ops.schedules.schedule_record import ScheduleRecord, requested, without_messages
from duewheel.ops.schedules.steps import BlockingCalls, completed, ends_to_change
from duewheel.schemas import header_names as names
from duewheel.wheel.inspect.listing import PendingTimer

_FIELDS = frozenset(NewSchedule.model_fields)


@dataclass(slots=True)
class _Step:
    """The work on one schedule, and whether ingest has taken its record."""

    name: str
    change: Literal["added", "changed", "unchanged", "removed", "elsewhere"]
    record: ScheduleRecord | None = None
    fields: list[FieldDifference] = field(default_factory=list)
    taken: bool = False

    @property
    def writes(self) -> bool:
        return self.record is not None

    @property
    def stops(self) -> bool:
        return self.change in {"removed", "elsewhere"}


def apply(
    writer: TimerWriter, path: Path, *, prune: bool, dry_run: bool, wait_s: float
) -> list[ScheduleDifference]:
    """Writes the differences between the file and the pending schedules, and waits for ingest.

    Args:
        path: a TOML file with a table for each name; its keys are the fields of NewSchedule.
        prune: also stop those that the file lacks, in the timer topics of the file.

    Raises:
        ConfigError: the file has defects, or no schedule and `prune`; nothing was written.
        RecoveryPending, IngestBehind: as `find_schedules`; nothing was written.
        KafkaUnavailable, Unacknowledged: some of the changes may be written: apply it again.
    """
    settings, tables = writer.settings, _tables(path)
    if prune and not tables:
        # A template that rendered nothing, or a file that was cut off.
        raise ConfigError(
            f"nothing was written; {path} has no schedule, so --prune has no timer topic to stop "
            "schedules in: end them with `duewheel schedule stop`"
        )
    steps = _steps(writer, path, tables, prune=prune)
    done = [] if dry_run else [step for step in steps if step.writes]
    written = []
    for step in done:
        record = step.record
        assert record is not None, "of a step that writes"
        try:
            with writer.producer(record.timer_topic) as producer:
                written.append(write_record(settings, producer, record, stops=step.stops))
        except DuewheelError as error:
            error.reword(f"{error}; written before: {len(written)} of {len(done)} changes")
            raise
    for step, taken in zip(done, await_taken(settings, written, wait_s), strict=True):
        step.taken = taken
    return [
        ScheduleDifference(
            name=step.name,
            change=step.change,
            fields=step.fields,
            applied=step.change != "elsewhere" and (step.taken or not step.writes),
        )
        for step in steps
    ]


def _tables(path: Path) -> dict[str, NewSchedule]:
    """Reads the schedules of the file.

    Raises:
        ConfigError: names all that is wrong in it.
    """
    try:
        parsed = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    found, wrong = dict[str, NewSchedule](), list[str]()
    for name, table in parsed.items():
        try:
            found[name] = _table(table)
        except ConfigError as error:
            wrong.append(f"{name}: {error}")
    _refuse(path, wrong)
    return found


def _table(table: object) -> NewSchedule:
    if not isinstance(table, Mapping):
        raise ConfigError("this is no table of a schedule")
    for key in table:
        if key not in _FIELDS:
            raise ConfigError(f'there is no key "{key}"{nearest(key, _FIELDS)}')
    # TOML has instants of its own.
    return NewSchedule.of(
        {k: v.isoformat() if isinstance(v, date) else v for k, v in table.items()}
    )


def _refuse(path: Path, wrong: list[str]) -> None:
    if wrong:
        text = "".join(f"\n  {each}" for each in wrong)
        raise ConfigError(f"nothing was written; {path} cannot be used:{text}")


def _steps(
    writer: TimerWriter, path: Path, tables: Mapping[str, NewSchedule], *, prune: bool
) -> list[_Step]:
    """Determines all differences. Raises as `apply`."""
    settings, now_ms = writer.settings, writer.clock.now_ms()
    records, wrong = dict[str, ScheduleRecord](), list[str]()
    for name, new in sorted(tables.items()):
        try:
            records[name] = requested(settings, name, new, now_ms, may_have_ended=True)
        except ConfigError as error:
            wrong.append(f"{name}: {error}")
    _refuse(path, wrong)
    wanted = {name: record.timer_topic for name, record in records.items()}
    ends = completed(ends_to_change(BlockingCalls(writer), sorted(set(wanted.values()))))
    timers, others = _read_pending(settings, wanted, ends, prune=prune)
    steps = [_step(writer, n, record, timers.get(n), now_ms) for n, record in records.items()]
    return [*steps, *others]


def _read_pending(
    settings: Settings, wanted: Mapping[str, str], ends: LogEnds, *, prune: bool
) -> tuple[dict[str, PendingTimer], Iterable[_Step]]:
    """Finds the schedules of the file as `find_schedules`, and with `prune` those to stop. Looks
    again after pauses, because some may be on their way; once all of the file are there, only for
    those to stop, whose names it does not have.
    """
    found, others = dict[str, PendingTimer](), dict[tuple[object, ...], _Step]()
    for pause_s in (0.0, *READ_PAUSES_S):
        time.sleep(pause_s)
        missing = {name: topic for name, topic in wanted.items() if name not in found}
        found |= find_schedules(settings, missing, ends)
        if prune:
            others |= _others(settings, wanted, ends)
        elif len(found) == len(wanted):
            break
    return found, others.values()


def _others(
    settings: Settings, wanted: Mapping[str, str], ends: LogEnds
) -> dict[tuple[object, ...], _Step]:
    """The stops of schedules that the file lacks, in the timer topics that it names."""
    steps = dict[tuple[object, ...], _Step]()
    with files_to_change(settings, ends) as directory:
        copies = copies_of(directory, wanted.values())
        for record in chain.from_iterable(map(without_messages, copies)):
            name = record.name.decode(errors="surrogateescape")
            if wanted.get(name) != record.timer_topic:
                place = record.timer_topic, name, record.partition
                steps[place] = _Step(name, "removed", record)
    return steps


def _step(
    writer: TimerWriter,
    name: str,
    record: ScheduleRecord,
    timer: PendingTimer | None,
    now_ms: int,
) -> _Step:
    former = None if timer is None else ScheduleRecord.of(timer)
    fields = _changed(former, record, now_ms)
    # As in the file, it has the pending instant, even where a record of now would have none.
    if record.has_ended(now_ms) and (former is None or fields):
        return _Step(name, "unchanged" if former is None else "removed", former)
    if not _is_ours(writer, record):
        # The shard that has the partition adds it: a copy that stayed here would fire, too.
        return _Step(name, "elsewhere", former)
    if timer is None or former is None:
        return _Step(name, "added", record, fields)
    if not fields:
        return _Step(name, "unchanged")
    if names.PAUSED in former.own:
        record = record.with_own({**record.own, names.PAUSED: former.own[names.PAUSED]})
    return _Step(name, "changed", record.beside(timer), fields)


def _changed(
    former: ScheduleRecord | None, record: ScheduleRecord, now_ms: int
) -> list[FieldDifference]:
    before, after = {} if former is None else _shown(former), _shown(record)
    starts_ms = None if former is None else former.recurrence.starts_ms
    if "starts" not in after and starts_ms is not None and starts_ms <= now_ms:
        del before["starts"]  # it has no effect any more, or was set by a pause
    return _differences(before, after)


def _is_ours(writer: TimerWriter, record: ScheduleRecord) -> bool:
    """Whether the partition of the record's key, or name, is this shard's."""
    if writer.settings.shard.count == 1:
        return True
    with writer.producer(record.timer_topic) as producer:
        partition = record.timer_topic, partition_of(producer, record)
    return owns(writer.settings.shard, partition)


def _shown(record: ScheduleRecord) -> dict[str, str]:
    """The fields that are given, by their meaning, as text."""
    recurrence = record.recurrence
    is_cron = recurrence.cron is not None
    values = {
        "cron": recurrence.cron,
        "zone": recurrence.zone if is_cron else None,
        "every": None if is_cron else format_duration_ms(recurrence.interval_ms),
        "missed": recurrence.missed,
        "starts": None if recurrence.starts_ms is None else utc_text(recurrence.starts_ms),
        "ends": None if recurrence.ends_ms is None else utc_text(recurrence.ends_ms),
        "jitter": format_duration_ms(recurrence.jitter_ms) if recurrence.jitter_ms else None,
        "target": record.target,
        **octets_shown("key", record.key),
        **octets_shown("value", record.value),
    }
    for number, (name, value) in enumerate(record.headers):
        header = f"headers.{number}"
        values |= {f"{header}.name": name, **octets_shown(f"{header}.value", value)}
    return {name: text for name, text in values.items() if text is not None}


def _differences(old: Mapping[str, str], new: Mapping[str, str]) -> list[FieldDifference]:
    return [
        FieldDifference(field=name, old=old.get(name), new=new.get(name))
        for name in {**old, **new}
        if old.get(name) != new.get(name)
    ]
