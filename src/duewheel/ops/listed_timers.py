"""`duewheel list`: pending timers, from the shard's data directory alone."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence

from duewheel.api.requests import TimerFilter
from duewheel.api.timers import TimerSummary
from duewheel.client.handle import RecallHandle
from duewheel.config.settings import Settings
from duewheel.ops.open_files import opened
from duewheel.wheel.inspect.listing import Filter, PendingTimer, list_pending
from duewheel.wheel.slots import slot_of


def listed(
    settings: Settings, wanted: TimerFilter, limit: int, page: str | None = None
) -> Iterator[TimerSummary]:
    """Lists pending timers, the one that leaves first before the others.

    Args:
        settings: name the data directory.
        wanted: the conditions.
        limit: how many at most.
        page: `page` of the last timer that the caller has; the list continues behind it.

    Raises:
        ConfigError: `page` does not parse.
        CorruptFile: a pending timer is damaged.
    """
    with opened(settings) as directory:
        for timer in list_pending(directory, selection(settings, wanted, page), limit):
            yield summary_of(timer)


def selection(settings: Settings, wanted: TimerFilter, page: str | None = None) -> Filter:
    """Selects pending timers.

    Raises:
        InvalidTimer: a key is given twice, or its base64 does not parse.
    """
    precision_ms = settings.timer.precision_ms
    first, last = (
        None if instant_ms is None else slot_of(instant_ms, precision_ms)
        for instant_ms in (wanted.since_ms, wanted.until_ms)
    )
    wanted_id = None if wanted.id is None else wanted.id.encode(errors="surrogateescape")
    return Filter(wanted.topic, first, last, page, wanted.level, wanted_id, wanted.key_octets)


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


def message_shown(
    headers: Sequence[tuple[str, bytes | None]], value: bytes | None, *, body: bool
) -> dict[str, object]:
    """Shows headers and value of a message; without `body` only the names of the headers."""
    if not body:
        return {"header_names": [name for name, _ in headers]}
    shown = [{"name": name, **octets_shown("value", each)} for name, each in headers]
    return {"headers": shown, **octets_shown("value", value)}


def key_shown(key: bytes | None) -> dict[str, str | None]:
    """Shows a key, under the name `key` or `key_base64`."""
    return octets_shown("key", key)
