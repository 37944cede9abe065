"""Pages of pending timers, and single timers with their messages: for `show` and `duewheel serve`.

Both read the mapped files, without a lock, beside the running processes. A page has a bound in
time: a search by key reads the messages of all timers that its other filters select, and may end
with fewer timers than wanted, or none, and a `next` behind the last one that it has read.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import replace

from duewheel.api.requests import TimerFilter
from duewheel.api.timers import TimerList, TimerSummary, TimerWithMessage
from duewheel.client.handle import RecallHandle
from duewheel.config.settings import Settings
from duewheel.errors import InvalidTimer
from duewheel.ops.listed_timers import message_shown, selection, summary_of
from duewheel.ops.open_files import opened
from duewheel.wheel.inspect.listing import Filter, PendingTimer, list_chunks, list_pending
from duewheel.wheel.slots import slot_of

PAGE_S = 0.5
SHOWN_MAX = 100  # timers of one id


def page_of(
    settings: Settings,
    wanted: TimerFilter,
    limit: int,
    page: str | None = None,
    within_s: float = PAGE_S,
) -> TimerList:
    """Returns the first timers that match.

    Args:
        settings: name the data directory.
        wanted: the conditions.
        limit: how many at most.
        page: `next` of the page before.
        within_s: after this time the page ends, whatever it has.

    Raises:
        ConfigError: there is no data directory, or `page` does not parse.
        CorruptFile: a pending timer is damaged.
    """
    end_s = time.monotonic() + within_s
    timers: list[TimerSummary] = []
    with opened(settings) as directory:
        # One more than wanted shows whether there is another page.
        for chunk in list_chunks(directory, selection(settings, wanted, page), limit + 1):
            timers += map(summary_of, chunk.timers)
            if len(timers) > limit:
                return TimerList(timers=timers[:limit], next=timers[limit - 1].page)
            if time.monotonic() > end_s:
                return TimerList(timers=timers, next=chunk.reached)
    return TimerList(timers=timers, next=None)


def by_handle(settings: Settings, handle: str, *, body: bool) -> TimerWithMessage | None:
    """Returns the pending timer that a recall handle names, None without one.

    Args:
        settings: name the data directory.
        handle: from `send`, `schedule` or a list.
        body: whether to return the value and the headers of its message, too.

    Raises:
        InvalidTimer: the handle does not parse.
        ConfigError, CorruptFile: as `page_of`.
    """
    timer = pending_by_handle(settings, handle)
    return None if timer is None else _with_message(timer, body=body)


def selected(settings: Settings, wanted: TimerFilter, *, body: bool) -> Iterator[TimerWithMessage]:
    """Returns the pending timers that match; SHOWN_MAX at most.

    Raises:
        ConfigError, CorruptFile: as `page_of`.
    """
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
    row = summary_of(timer).as_json() | {"partition": timer.target_partition}
    return TimerWithMessage.model_validate(
        row | message_shown(timer.headers, timer.value, body=body)
    )
