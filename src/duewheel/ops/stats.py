"""`duewheel stats`, `list`, `pause` and `resume`.

These commands need only a shard's data directory. They take no lock, so the shard's processes may
run meanwhile.
"""

from __future__ import annotations

import base64
import errno
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Literal

from duewheel.checkpoints.fs import HOST_FS, READING_FS, FileSystem
from duewheel.checkpoints.role import Role
from duewheel.checkpoints.state_file import State
from duewheel.clock import Clock
from duewheel.config.durations import format_duration_ms
from duewheel.config.instants import epoch_ms
from duewheel.config.settings import Settings
from duewheel.errors import (
    ConfigError,
    CorruptFile,
    DuewheelError,
    NoDataDirectory,
    RecoveryPending,
)
from duewheel.runtime.dequeue_metrics import count_pending
from duewheel.wheel.inspect.listing import Filter, PendingTimer, list_pending
from duewheel.wheel.inspect.pending_counts import PendingTimers
from duewheel.wheel.slots import slot_of
from duewheel.wheel.storage.data_directory import DataDirectory

Process = Literal["ingest", "dequeue"]
_PROCESSES: dict[Process, Role] = {"ingest": Role.INGEST, "dequeue": Role.DEQUEUE}


class Unreadable(DuewheelError):
    """The data directory is damaged, not of these settings, or not for this user."""


@contextmanager
def opened(settings: Settings, fs: FileSystem = READING_FS) -> Iterator[DataDirectory]:
    """Opens the shard's data directory, in which its processes may run; by default only to read it.

    Raises:
        NoDataDirectory: it does not exist yet.
    """
    directory = open_directory(settings, fs)
    try:
        yield directory
    finally:
        directory.close()


def open_directory(settings: Settings, fs: FileSystem = READING_FS) -> DataDirectory:
    """Opens the directory as `opened`; the caller closes it.

    Raises:
        NoDataDirectory: it does not exist yet.
    """
    path = settings.storage.data_dir
    try:
        return DataDirectory(path, settings.wheel, fs)
    except FileNotFoundError as error:
        raise settings.no_data_dir() from error


def open_state(settings: Settings) -> State:
    """Maps the directory's `state` to read it; the caller releases it.

    Raises:
        NoDataDirectory: it does not exist yet.
    """
    path = settings.storage.data_dir
    try:
        return State.open(path, READING_FS)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise settings.no_data_dir() from error


def files_identity(settings: Settings) -> tuple[str, int, int]:
    """Returns what changes with the files: the directory's name, its last recovery, and the inode
    of `state`, as a restored copy has the same name.

    Raises:
        NoDataDirectory: there is none.
        Unreadable: it is not of these settings, or not for this user.
        RecoveryPending: files may be cut at any moment.
    """
    try:
        with open_state(settings) as state:
            if state.needs_recovery:
                raise RecoveryPending("the files are being recovered: try again")
            state.require(settings.wheel.precision_ms, settings.wheel.slots)
            return state.uuid, state.recovered, state.path.stat().st_ino
    except FileNotFoundError as error:
        raise settings.no_data_dir() from error
    except NoDataDirectory:
        raise
    except (ConfigError, CorruptFile, OSError) as error:
        raise Unreadable(f"{settings.storage.data_dir} cannot be read: {error}") from error


def stats(settings: Settings, clock: Clock) -> dict[str, Any]:
    """Counts pending timers by topic, by level, and by the seconds until they leave.

    Returns:
        role: "owner" or "standby"; pending; by_topic: {topic: pending}; by_level: {level: pending};
        within_s: {seconds: pending}; oldest_ms: end of the first slot with timers, None without a
        timer; slot_max: the most timers of one slot; beyond_ring: how many leave so late that their
        slots have no entry in the ring yet; rolls: how many leave to be rolled, in total and within
        an hour, and of that hour the mean and the most per second.
    """
    with opened(settings) as directory:
        return stats_of(settings, directory, PendingTimers(directory), clock.now_ms())


def stats_of(
    settings: Settings, directory: DataDirectory, timers: PendingTimers, now_ms: int
) -> dict[str, Any]:
    """Counts as `stats`, with counts that are kept."""
    pending, within = count_pending(timers, directory, now_ms)
    oldest = pending.oldest_slot
    return {
        "role": "standby" if directory.state.standby else "owner",
        "pending": pending.total,
        "by_topic": dict(sorted(pending.by_topic.items())),
        "by_level": {str(level): count for level, count in pending.by_level.items()},
        "within_s": within,
        "oldest_ms": None if oldest is None else oldest * settings.timer.precision_ms,
        "slot_max": pending.slot_max,
        "beyond_ring": pending.beyond_ring,
        "rolls": {
            "pending": pending.rolls,
            "next_hour": pending.rolls_ahead,
            "per_second": round(pending.rolls_ahead / 3_600, 3),
            "per_second_max": pending.rolls_per_second,
        },
    }


def levels(settings: Settings, clock: Clock) -> Iterator[dict[str, Any]]:
    """Reports of each delay level how many timers are pending, and how far it is delivered.

    Yields:
        level; delay: by the present settings, None for a level that they no longer have; pending;
        delivered_ms: every timer of the level due by then is out, None before the first start;
        next_due_ms, next: due time and source of its next timer, None without one.
    """
    delays = dict(enumerate(settings.timer.levels_ms, 1))
    precision_ms = settings.timer.precision_ms
    with opened(settings) as directory:
        pending, _ = count_pending(PendingTimers(directory), directory, clock.now_ms())
        delivered = pending.delivered_slot
        for level in sorted(delays.keys() | pending.by_level.keys()):
            following = _next_of(directory, level, pending.next_slot.get(level))
            yield {
                "level": level,
                "delay": format_duration_ms(delays[level]) if level in delays else None,
                "pending": pending.by_level.get(level, 0),
                "delivered_ms": delivered * precision_ms if delivered >= 0 else None,
                "next_due_ms": None if following is None else following.due_ms,
                "next": None if following is None else following.source,
            }


def _next_of(directory: DataDirectory, level: int, slot: int | None) -> PendingTimer | None:
    if slot is None:
        return None
    return next(list_pending(directory, Filter(level=level, first_slot=slot), 1), None)


def listed(settings: Settings, wanted: Filter, limit: int) -> Iterator[dict[str, Any]]:
    """Lists pending timers, the one that leaves first before the others.

    Args:
        settings: name the data directory.
        wanted: of `selection`.
        limit: how many at most.

    Raises:
        ConfigError: the place of `wanted` does not parse.
        CorruptFile: a pending timer is damaged.
    """
    with opened(settings) as directory:
        for timer in list_pending(directory, wanted, limit):
            yield timer_row(timer)


def selection(
    settings: Settings,
    *,
    topic: str | None = None,
    level: int | None = None,
    timer_id: str | None = None,
    key: bytes | None = None,
    since: datetime | int | None = None,
    until: datetime | int | None = None,
    page: str | None = None,
) -> Filter:
    """Selects pending timers.

    Args:
        settings: have the precision.
        topic: only timers with this target.
        level: only timers requested with this delay level.
        timer_id: only timers with this id, in any partition.
        key: only timers with this key; reads the messages of all that the rest selects.
        since, until: only timers that leave in the slots of these instants or between them.
        page: `page` of the last timer that the caller has; a list continues behind it.

    Raises:
        ConfigError: an instant has no zone.
    """
    first, last = _slot(settings, since), _slot(settings, until)
    wanted_id = None if timer_id is None else timer_id.encode(errors="surrogateescape")
    return Filter(topic, first, last, page, level, wanted_id, key)


def pause(settings: Settings, process: Process, *, on: bool) -> dict[str, Any]:
    """Pauses or resumes a process, now and across its restarts.

    Raises:
        ConfigError: the data directory cannot be written here.
    """
    try:
        with opened(settings, HOST_FS) as directory:
            directory.state.live.pause(_PROCESSES[process], on=on)
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES):
            raise
        path = settings.storage.data_dir
        raise ConfigError(f"{path} cannot be written here, as a pause must: {error}") from error
    return {"process": process, "paused": on}


def _slot(settings: Settings, instant: datetime | int | None) -> int | None:
    return None if instant is None else slot_of(epoch_ms(instant), settings.timer.precision_ms)


def timer_row(timer: PendingTimer) -> dict[str, Any]:
    """Returns a pending timer as an object ready for JSON."""
    return {
        "id": timer.id.decode(errors="backslashreplace"),
        "source": timer.source,
        "due_ms": timer.due_ms,
        "leaves_ms": timer.leaves_ms,
        "topic": timer.target,
        "level": timer.level or None,
        **key_shown(timer.key),
        "value_bytes": timer.value_bytes,
        "rolled": timer.rolled,
        "cancelled": timer.cancelled,
        "page": timer.place,
    }


def octets_shown(name: str, octets: bytes | None) -> dict[str, str | None]:
    """Shows bytes as text, or in base64 under the name `<name>_base64` if they are no UTF-8."""
    try:
        return {name: None if octets is None else octets.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(octets or b"").decode()}


def key_shown(key: bytes | None) -> dict[str, str | None]:
    """Shows a key, under the name `key` or `key_base64`."""
    return octets_shown("key", key)
