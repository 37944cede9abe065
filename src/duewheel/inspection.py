"""`duewheel stats`, `list`, `pause` and `resume`: they need no more than a shard's data directory,
whether its processes run or not.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Literal

from duewheel.checkpoints.state import DEQUEUE, INGEST
from duewheel.clock import Clock
from duewheel.config import Settings
from duewheel.dequeue_metrics import look
from duewheel.errors import ConfigError
from duewheel.wheel.data_directory import DataDirectory
from duewheel.wheel.layout import slot_of
from duewheel.wheel.listing import Filter, PendingTimer, list_pending
from duewheel.wheel.pending import PendingTimers

Process = Literal["ingest", "dequeue"]
_PROCESSES: dict[Process, int] = {"ingest": INGEST, "dequeue": DEQUEUE}


@contextmanager
def opened(settings: Settings) -> Iterator[DataDirectory]:
    """The shard's data directory, beside the processes that may work in it.

    Raises:
        ConfigError: there is none yet.
    """
    path = settings.storage.data_dir
    try:
        directory = DataDirectory(path, settings.wheel)
    except FileNotFoundError as error:
        raise ConfigError(
            f"there is no data directory {path}: `duewheel init` or `duewheel run` makes it"
        ) from error
    try:
        yield directory
    finally:
        directory.close()


def stats(settings: Settings, clock: Clock) -> dict[str, Any]:
    """How many timers are pending, by topic, and by the seconds within which they leave.

    Returns:
        role: "owner" or "standby"; pending; by_topic: {topic: pending}; within_s: {seconds:
        pending}; oldest_ms: end of the first slot with timers, None if there is none; slot_max:
        most timers of one slot.
    """
    with opened(settings) as directory:
        pending, within = look(PendingTimers(directory), directory, clock.now_ms())
        role = "standby" if directory.state.standby else "owner"
    oldest = pending.oldest_slot
    return {
        "role": role,
        "pending": pending.total,
        "by_topic": dict(sorted(pending.by_topic.items())),
        "within_s": within,
        "oldest_ms": None if oldest is None else oldest * settings.timer.precision_ms,
        "slot_max": pending.slot_max,
    }


def listed(
    settings: Settings,
    *,
    topic: str | None,
    since: datetime | int | None,
    until: datetime | int | None,
    limit: int,
    page: str | None,
) -> Iterator[dict[str, Any]]:
    """Pending timers, the one that leaves first before the others.

    Args:
        settings: name the data directory.
        topic: only timers with this target.
        since, until: only timers that leave in the slots of these instants or between them.
        limit: how many at most.
        page: `page` of the last timer seen.

    Raises:
        ConfigError: `page` is none, or an instant has no zone.
        CorruptFile: a pending timer is damaged.
    """
    wanted = Filter(topic, _slot(settings, since), _slot(settings, until), page)
    with opened(settings) as directory:
        for timer in list_pending(directory, wanted, limit):
            yield _row(timer)


def pause(settings: Settings, process: Process, *, on: bool) -> dict[str, Any]:
    """Pause a process or let it go on, now or whenever it is started."""
    with opened(settings) as directory:
        directory.state.pause(_PROCESSES[process], on=on)
    return {"process": process, "paused": on}


def _slot(settings: Settings, instant: datetime | int | None) -> int | None:
    if isinstance(instant, datetime):
        if instant.tzinfo is None:
            raise ConfigError(f"{instant}: a time without a zone could be meant anywhere")
        instant = round(instant.timestamp() * 1000)
    return None if instant is None else slot_of(instant, settings.timer.precision_ms)


def _row(timer: PendingTimer) -> dict[str, Any]:
    return {
        "id": timer.id.decode(errors="backslashreplace"),
        "source": timer.source,
        "due_ms": timer.due_ms,
        "leaves_ms": timer.leaves_ms,
        "topic": timer.target,
        **key_shown(timer.key),
        "value_bytes": timer.value_bytes,
        "rolled": timer.rolled,
        "page": timer.place,
    }


def key_shown(key: bytes | None) -> dict[str, str | None]:
    """As text, or if it is none in base 64 under a name that says so."""
    try:
        return {"key": None if key is None else key.decode()}
    except UnicodeDecodeError:
        return {"key_base64": base64.b64encode(key or b"").decode()}
