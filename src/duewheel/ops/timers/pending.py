"""Pending timers, from the mapped files of a shard: lists, pages, and single ones with messages.

Takes no lock: the shard's processes may run meanwhile. A page has a bound in time: a search by key
reads the messages of all timers that its other filters select, and may end with fewer timers than
wanted, or none, and a `next` after the last one that it has read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TypedDict

from duewheel.api.limits import tag_octets
from duewheel.api.messages import KEY_SHOWN_BYTES, LONG_KEY_BYTES, octets_shown, start_of
from duewheel.api.requests import TimerFilter, TimerQuery
from duewheel.api.timers import TimerList, TimerSummary, TimerWithMessage
from duewheel.client.handle import RecallHandle
from duewheel.config.settings import Settings
from duewheel.deadline import Deadline
from duewheel.errors import TooMuch
from duewheel.ops.files import is_recovering, open_files
from duewheel.ops.named_timer_topic import decoded_handle, narrowed
from duewheel.ops.pages import page_of_parts
from duewheel.registry.values import decoded_fields
from duewheel.schemas.partition_names import record_named
from duewheel.schemas.topic_scope import ALL_TOPICS, TopicScope
from duewheel.wheel.inspect.listing import (
    CANDIDATES_MAX,
    Filter,
    PendingTimer,
    list_chunks,
    list_pending,
)
from duewheel.wheel.slots import closable_slot, slot_of
from duewheel.wheel.storage.data_directory import DataDirectory

PAGE_S = 0.5
SEARCH_S = 10.0  # a producer may have written millions of timers with the id of a handle


class ShardFields(TypedDict):
    """The fields of `OfShard` (api/timers.py)."""

    shard: int
    shards: int
    recovering: bool


def shard_fields(settings: Settings, directory: DataDirectory) -> ShardFields:
    """The fields of a result that is read from the directory afterwards: a recovery that ends
    between has not read all timers, and `recovering` must still say so.
    """
    shard, recovering = settings.shard, is_recovering(directory.state)
    return ShardFields(shard=shard.index, shards=shard.count, recovering=recovering)


def list_timers(
    settings: Settings, wanted: TimerFilter, limit: int, page: str | None = None
) -> Iterator[TimerSummary]:
    """Yields timers in the order in which they leave, `limit` at most; `page` is that of the last
    timer that the caller has.

    Raises:
        ConfigError: `page` does not parse.
        CorruptFile: a pending timer is damaged.
    """
    with open_files(settings) as directory:
        for timer in list_pending(directory, selection(settings, wanted, page), limit):
            yield summary_of(timer)


def page_of(
    settings: Settings,
    wanted: TimerQuery,
    within_s: float = PAGE_S,
    *,
    scope: TopicScope = ALL_TOPICS,
) -> TimerList:
    """A page of the timers that match, of the timer topics in `scope`; after `within_s` it ends,
    with the timers so far.

    Raises:
        ConfigError: there is no data directory, `page` does not parse, or there is no such timer
            topic.
        CorruptFile: a pending timer is damaged.
    """
    limit = wanted.limit
    chosen = selection(settings, wanted, wanted.page, scope)
    with open_files(settings) as directory:
        of_shard = shard_fields(settings, directory)
        chunks = list_chunks(directory, chosen, limit + 1)
        parts = (([summary_of(timer) for timer in each.timers], each.reached) for each in chunks)
        timers, following = page_of_parts(parts, limit, within_s, lambda row: row.page)
    return TimerList(**of_shard, timers=timers, next=following)


def by_handle(settings: Settings, handle: str, *, body: bool) -> TimerWithMessage | None:
    """The timer of `pending_by_handle` with its message; None without one."""
    timer = pending_by_handle(settings, handle)
    return None if timer is None else _with_message(settings, timer, body=body)


def matching_timers(
    settings: Settings, wanted: TimerFilter, limit: int, *, body: bool
) -> Iterator[TimerWithMessage]:
    """Yields the timers that match, `limit` at most. Raises as `page_of`."""
    with open_files(settings) as directory:
        for timer in list_pending(directory, selection(settings, wanted), limit):
            yield _with_message(settings, timer, body=body)


def pending_by_handle(
    settings: Settings, handle: str, within_s: float = SEARCH_S
) -> PendingTimer | None:
    """The pending timer that a recall handle names, None without one.

    Raises:
        InvalidTimer: the handle does not parse.
        TooMuch: the timers of its id cannot be read within `within_s`.
        ConfigError, CorruptFile: as `page_of`.
    """
    named = decoded_handle(settings, handle)
    with open_files(settings) as directory:
        by_offset = Filter(
            timer_id=named.id.encode(),
            first_offset=named.offset,
            timer_topics=TopicScope((named.timer_topic,)),
        )
        slot = slot_of(named.due_ms, settings.timer.precision_ms)
        # Most are in the slot of their due time: others of their id, perhaps all timers, need not
        # be searched.
        deadline = Deadline(within_s)
        searches = (replace(by_offset, first_slot=slot, last_slot=slot), by_offset)
        for chunk in chain.from_iterable(
            list_chunks(directory, wanted, CANDIDATES_MAX) for wanted in searches
        ):
            for timer in chunk.timers:
                if timer.source == named.place:
                    return timer
            if deadline.is_over:
                raise TooMuch(
                    f"too many timers have the id {named.id!r} in {named.timer_topic}: the search "
                    f"ended after {within_s:g} s. A list by this id has them all, in pages"
                )
        return None


def _with_message(settings: Settings, timer: PendingTimer, *, body: bool) -> TimerWithMessage:
    summary, value = summary_of(timer, LONG_KEY_BYTES), timer.value
    decode = partial(decoded_fields, settings, source_of(timer)[0], timer.each_header(), value)
    message = timer.each_header(), timer.header_count, value
    partition = timer.target_partition
    return TimerWithMessage.of(summary, *message, body=body, decode=decode, partition=partition)


def selection(
    settings: Settings,
    wanted: TimerFilter,
    page: str | None = None,
    scope: TopicScope = ALL_TOPICS,
) -> Filter:
    """Selects pending timers of the timer topics in `scope`.

    Raises:
        ConfigError: there is no such timer topic.
        InvalidTimer: a key is given twice, or its base64 does not parse; the tag is none.
    """
    precision_ms, since_ms, until_ms = settings.timer.precision_ms, wanted.since_ms, wanted.until_ms
    # A timer leaves at the end of its slot.
    first = None if since_ms is None else slot_of(since_ms, precision_ms)
    last = None if until_ms is None else closable_slot(until_ms, precision_ms)
    wanted_id = None if wanted.id is None else wanted.id.encode()
    tag = None if wanted.tag is None else tag_octets(wanted.tag)
    return Filter(
        topic=wanted.topic,
        first_slot=first,
        last_slot=last,
        after=page,
        level=wanted.level,
        timer_id=wanted_id,
        key=wanted.key_octets,
        tag=tag,
        timer_topics=narrowed(settings, scope, wanted.timer_topic),
    )


def summary_of(timer: PendingTimer, key_max: int = KEY_SHOWN_BYTES) -> TimerSummary:
    """A pending timer without its message, with `key_max` bytes of its key at most."""
    key, key_bytes = start_of(timer.key, key_max)
    return TimerSummary(
        id=timer.id.decode(errors="backslashreplace"),
        source=timer.source,
        due_ms=timer.due_ms,
        leaves_ms=timer.leaves_ms,
        topic=timer.target,
        level=timer.level or None,
        **octets_shown("key", key),
        key_bytes=key_bytes,
        value_bytes=timer.value_bytes,
        rolled=timer.rolled,
        cancelled=timer.cancelled,
        paused=timer.paused,
        page=timer.place,
        handle=handle_of(timer),
    )


def handle_of(timer: PendingTimer) -> str | None:
    """The recall handle; None for a dead letter, and for an id that is no text."""
    if timer.due_ms is None:
        return None
    topic, partition, offset = source_of(timer)
    try:
        timer_id = timer.id.decode()
    except UnicodeDecodeError:
        return None
    return RecallHandle(topic, partition, offset, timer.due_ms, timer_id).encode()


def source_of(timer: PendingTimer) -> tuple[str, int, int]:
    """The timer topic, the partition and the offset of a timer's first copy."""
    partition, offset = record_named(timer.source)
    return *partition, offset
