"""Pending timers, from the mapped files of a shard: lists, pages, and single ones with messages.

Takes no lock: the shard's processes may run meanwhile. A page has a bound in time: a search by key
reads the messages of all timers that its other filters select, and may end with fewer timers than
wanted, or none, and a `next` after the last one that it has read.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace

from duewheel.api.messages import octets_shown, start_of
from duewheel.api.requests import TimerFilter, TimerQuery
from duewheel.api.timers import TimerList, TimerSummary, TimerWithMessage
from duewheel.client.handle import RecallHandle
from duewheel.config.settings import Settings
from duewheel.errors import InvalidTimer
from duewheel.ops.files import opened
from duewheel.ops.pages import page_of_parts
from duewheel.wheel.inspect.listing import Filter, PendingTimer, list_chunks, list_pending
from duewheel.wheel.slots import slot_of

PAGE_S = 0.5
SHOWN_MAX = 100  # timers of one id


def listed(
    settings: Settings, wanted: TimerFilter, limit: int, page: str | None = None
) -> Iterator[TimerSummary]:
    """Yields timers in the order in which they leave, `limit` at most; `page` is that of the last
    timer that the caller has.

    Raises:
        ConfigError: `page` does not parse.
        CorruptFile: a pending timer is damaged.
    """
    with opened(settings) as directory:
        for timer in list_pending(directory, selection(settings, wanted, page), limit):
            yield summary_of(timer)


def page_of(settings: Settings, wanted: TimerQuery, within_s: float = PAGE_S) -> TimerList:
    """Returns a page of the timers that match; after `within_s` it ends, with the timers so far.

    Raises:
        ConfigError: there is no data directory, or `page` does not parse.
        CorruptFile: a pending timer is damaged.
    """
    limit = wanted.limit
    with opened(settings) as directory:
        chunks = list_chunks(directory, selection(settings, wanted, wanted.page), limit + 1)
        parts = (([summary_of(timer) for timer in each.timers], each.reached) for each in chunks)
        timers, following = page_of_parts(parts, limit, within_s, lambda row: row.page)
    return TimerList(timers=timers, next=following)


def by_handle(settings: Settings, handle: str, *, body: bool) -> TimerWithMessage | None:
    """Returns the timer of `pending_by_handle` with its message; None without one."""
    timer = pending_by_handle(settings, handle)
    return None if timer is None else _with_message(timer, body=body)


def selected(settings: Settings, wanted: TimerFilter, *, body: bool) -> Iterator[TimerWithMessage]:
    """Yields the timers that match, SHOWN_MAX at most. Raises as `page_of`."""
    with opened(settings) as directory:
        for timer in list_pending(directory, selection(settings, wanted), SHOWN_MAX):
            yield _with_message(timer, body=body)


def pending_by_handle(settings: Settings, handle: str) -> PendingTimer | None:
    """Returns the pending timer that a recall handle names, None without one.

    Raises:
        InvalidTimer: the handle does not parse.
        ConfigError, CorruptFile: as `page_of`.
    """
    named = RecallHandle.decode(handle)
    if named.timer_topic not in settings.timer_topics:
        raise InvalidTimer(
            f'the recall handle names "{named.timer_topic}", which is no timer topic'
        )
    with opened(settings) as directory:
        by_offset = Filter(
            timer_id=named.id.encode(errors="surrogateescape"), first_offset=named.offset
        )
        slot = slot_of(named.due_ms, settings.timer.precision_ms)
        # Most are in the slot of their due time: others of their id, perhaps all timers, need not
        # be searched.
        for wanted in (replace(by_offset, first_slot=slot, last_slot=slot), by_offset):
            for timer in list_pending(directory, wanted, sys.maxsize):
                if timer.source == named.place:
                    return timer
        return None


def _with_message(timer: PendingTimer, *, body: bool) -> TimerWithMessage:
    summary, partition = summary_of(timer, whole=True), timer.target_partition
    return TimerWithMessage.of(summary, timer.headers, timer.value, body=body, partition=partition)


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
    tag = None if wanted.tag is None else wanted.tag.encode()
    return Filter(wanted.topic, first, last, page, wanted.level, wanted_id, wanted.key_octets, tag)


def summary_of(timer: PendingTimer, *, whole: bool = False) -> TimerSummary:
    """Returns a pending timer without its message; `whole`: with all of a long key."""
    key = timer.key if whole or timer.key is None else start_of(timer.key)
    return TimerSummary(
        id=timer.id.decode(errors="backslashreplace"),
        source=timer.source,
        due_ms=timer.due_ms,
        leaves_ms=timer.leaves_ms,
        topic=timer.target,
        level=timer.level or None,
        **octets_shown("key", key),
        key_bytes=None if key == timer.key else len(timer.key or b""),
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
