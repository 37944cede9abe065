"""`duewheel list`: pending timers, from the shard's data directory alone."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from datetime import datetime
from typing import TypeAlias

from duewheel.api.timers import TimerSummary
from duewheel.client.handle import RecallHandle
from duewheel.config.instants import epoch_ms
from duewheel.config.settings import Settings
from duewheel.ops.open_files import opened
from duewheel.wheel.inspect.listing import Filter, PendingTimer, list_pending
from duewheel.wheel.slots import slot_of

Selection: TypeAlias = Filter  # of pending timers, for commands


def listed(settings: Settings, wanted: Selection, limit: int) -> Iterator[TimerSummary]:
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
            yield summary_of(timer)


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
) -> Selection:
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


def _slot(settings: Settings, instant: datetime | int | None) -> int | None:
    return None if instant is None else slot_of(epoch_ms(instant), settings.timer.precision_ms)


def summary_of(timer: PendingTimer) -> TimerSummary:
    """Returns a pending timer without its message."""
    return TimerSummary(
        id=timer.id.decode(errors="backslashreplace"),
        source=timer.source,
        due_ms=timer.due_ms,
        leaves_ms=timer.leaves_ms,
        topic=timer.target,
        level=timer.level or None,
        **key_shown(timer.key),
        value_bytes=timer.value_bytes,
        rolled=timer.rolled,
        cancelled=timer.cancelled,
        page=timer.place,
        handle=handle_of(timer),
    )


def handle_of(timer: PendingTimer) -> str | None:
    """Returns the recall handle; None for a dead letter, and for an id that is no text."""
    if timer.due_ms is None:
        return None
    topic, partition, offset = source_of(timer)
    try:
        timer_id = timer.id.decode()
    except UnicodeDecodeError:
        return None
    return RecallHandle(topic, partition, offset, timer.due_ms, timer_id).encode()


def source_of(timer: PendingTimer) -> tuple[str, int, int]:
    """Returns the timer topic, the partition and the offset of a timer's first copy."""
    place, _, offset = timer.source.rpartition("@")
    topic, _, partition = place.rpartition("-")
    return topic, int(partition), int(offset)


def octets_shown(name: str, octets: bytes | None) -> dict[str, str | None]:
    """Shows bytes as text, or in base64 under the name `<name>_base64` if they are no UTF-8."""
    try:
        return {name: None if octets is None else octets.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(octets or b"").decode()}


def key_shown(key: bytes | None) -> dict[str, str | None]:
    """Shows a key, under the name `key` or `key_base64`."""
    return octets_shown("key", key)
