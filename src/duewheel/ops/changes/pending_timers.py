"""Changes of pending timers: another due time, firing now, and cancels by filter.

The timers and their messages are read from the mapped files; each change is a record in the timer
topic, like any client's. A timer may leave between the two: the reply says so.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from duewheel.api.changes import BulkCancelled, RescheduledTimer
from duewheel.api.due_time import DueTime, NonNullHeader
from duewheel.api.requests import DueTimeFields, TimerFilter
from duewheel.api.timers import TimerSummary
from duewheel.client import Cancel
from duewheel.client.handle import RecallHandle
from duewheel.client.message_reader import CHANGE_RECURRING
from duewheel.client.request_headers import timer_headers
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError, DuewheelError, InvalidTimer, Unacknowledged
from duewheel.ops.changes.acceptance import require_accepted
from duewheel.ops.changes.producers import (
    ACKNOWLEDGED_S,
    REQUESTS_AT_ONCE,
    KeptProducers,
    answered,
    producer_of,
)
from duewheel.ops.changes.requests import require_due, result_of
from duewheel.ops.files import opened
from duewheel.ops.timers.pending import (
    handle_of,
    pending_by_handle,
    selection,
    source_of,
    summary_of,
)
from duewheel.wheel.inspect.listing import Filter, PendingTimer, list_chunks

LEAVES_SOON_MS = 5_000
SAMPLE = 10


class Unchangeable(ConfigError):
    """The state of a pending timer, or the number of timers, does not permit the change."""


def reschedule_pending(
    settings: Settings,
    handle: str,
    new: DueTimeFields,
    wait_s: float | None,
    producers: KeptProducers | None = None,
) -> RescheduledTimer | None:
    """Replaces a pending timer by one with the same message and another due time.

    Returns:
        As `requests.reschedule`; None if no such timer is pending.

    Raises:
        Unchangeable: it is cancelled.
        ConfigError, KafkaUnavailable, Unacknowledged: as `requests.reschedule`.
    """
    require_due(settings, new)
    timer = _changeable(settings, handle)
    return None if timer is None else _replace(settings, timer, new.due, wait_s, producers)


def fire(
    settings: Settings,
    handle: str,
    wait_s: float | None,
    now_ms: int,
    producers: KeptProducers | None = None,
) -> RescheduledTimer | None:
    """Makes a pending timer due now; returns and raises as `reschedule_pending`.

    Raises:
        Unchangeable: also: it leaves soon by itself, and could be delivered twice.
    """
    timer = _changeable(settings, handle)
    if timer is None:
        return None
    # Its slot may be closed before ingest has the cancel: both timers would be delivered.
    if not timer.rolled and timer.leaves_ms - now_ms < LEAVES_SOON_MS:
        raise Unchangeable("the timer leaves within seconds by itself")
    # A delay of 0 would be past due where a topic refuses that.
    return _replace(settings, timer, DueTime.of(delay="1ms"), wait_s, producers)


def cancel_all(
    settings: Settings,
    wanted: TimerFilter,
    wait_s: float | None,
    producers: KeptProducers | None = None,
    *,
    at_most: int,
    dry_run: bool,
    within_s: float = float(sys.maxsize),
) -> BulkCancelled:
    """Cancels all pending timers that match, or none if they are more than `at_most`.

    Args:
        wanted: at least one condition.
        wait_s: the longest wait for all replies together; None: do not wait.
        at_most: a bound against a filter that selects more than was meant.
        within_s: the longest search.

    Raises:
        Unchangeable: more match; nothing was cancelled.
        ConfigError: the filter selects everything, or the search took too long.
        KafkaUnavailable: no broker answers; nothing was written.
        Unacknowledged: with the number of cancels that are written, and of those in doubt.
    """
    matching = _matching(settings, selection(settings, wanted), at_most, within_s)
    handles = matching.handles
    written, answers = len(handles) if dry_run else 0, dict[str, int]()
    if not dry_run and handles:
        written, answers = _cancel(settings, handles, wait_s, producers)
    return BulkCancelled(
        dry_run=dry_run,
        matched=len(handles),
        unreachable=matching.unreachable,
        written=written,
        answers=answers,
        sample=matching.sample,
    )


def _changeable(settings: Settings, handle: str) -> PendingTimer | None:
    timer = pending_by_handle(settings, handle)
    if timer is not None and timer.cancelled:
        raise Unchangeable("the timer is cancelled")
    return timer


def _replace(
    settings: Settings,
    timer: PendingTimer,
    due: DueTime,
    wait_s: float | None,
    producers: KeptProducers | None,
) -> RescheduledTimer:
    topic, handle = source_of(timer)[0], handle_of(timer)
    if handle is None:
        raise Unchangeable("a dead letter has no due time")
    if timer.recurring:
        raise Unchangeable(f"the timer is {CHANGE_RECURRING}")
    headers = non_null_headers(timer.headers)
    partition = timer.target_partition
    record = timer_headers(timer.target, due, topic, headers=headers, partition=partition)
    require_accepted(settings, topic, timer.key, timer.value, record)
    with producer_of(settings, topic, wait_s, producers) as producer:
        request = producer.reschedule(
            handle,
            topic=timer.target,
            value=timer.value,
            key=timer.key,
            headers=headers,
            partition=partition,
            timer_topic=topic,
            reply=wait_s is not None,
            **due.arguments,
        )
        written, answer = answered(request, wait_s)
        return result_of(RescheduledTimer, written, answer=answer)


def non_null_headers(given: Sequence[tuple[str, bytes | None]]) -> list[NonNullHeader]:
    """The headers of a pending timer's message.

    Raises:
        InvalidTimer: one is null.
    """
    headers = [(name, value) for name, value in given if value is not None]
    if len(headers) < len(given):
        raise InvalidTimer("the timer has a null header, which this client cannot write again")
    return headers


@dataclass(slots=True)
class _Matching:
    """Timers to cancel: their handles, summaries of the first ones, and how many have no handle."""

    handles: list[str] = field(default_factory=list)
    sample: list[TimerSummary] = field(default_factory=list)
    unreachable: int = 0

    def add(self, timer: PendingTimer) -> None:
        if timer.cancelled or timer.due_ms is None:
            return
        handle = handle_of(timer)
        if handle is None:
            self.unreachable += 1
            return
        self.handles.append(handle)
        if len(self.sample) < SAMPLE:
            self.sample.append(summary_of(timer))


def _matching(settings: Settings, wanted: Filter, at_most: int, within_s: float) -> _Matching:
    """Finds the timers to cancel.

    All are found before the first cancel is written: of a filter that selects too many, or takes
    too long, none takes effect.
    """
    if wanted == Filter():
        raise ConfigError("give a filter: without one every pending timer would be cancelled")
    end_s = time.monotonic() + within_s
    matching = _Matching()
    with opened(settings) as directory:
        for chunk in list_chunks(directory, wanted, sys.maxsize):
            for timer in chunk.timers:
                matching.add(timer)
            if len(matching.handles) > at_most:
                raise Unchangeable(f"more than {at_most} timers match: narrow the filter")
            if time.monotonic() > end_s:
                raise ConfigError(f"the search takes longer than {within_s:g} s: narrow it")
    return matching


def _cancel(
    settings: Settings,
    handles: Sequence[str],
    wait_s: float | None,
    producers: KeptProducers | None,
) -> tuple[int, dict[str, int]]:
    """Returns the number of cancels that are written, and their replies, counted."""
    topics = [RecallHandle.decode(handle).timer_topic for handle in handles]
    requests: list[Future[Cancel]] = []
    written: list[Cancel] = []
    awaits = wait_s is not None
    try:
        with producer_of(settings, topics[0], wait_s, producers) as producer:
            for first in range(0, len(handles), REQUESTS_AT_ONCE):
                part = slice(first, first + REQUESTS_AT_ONCE)
                for handle, topic in zip(handles[part], topics[part], strict=True):
                    requests.append(producer.cancel(handle, timer_topic=topic, reply=awaits))
                written += _acknowledged(requests[first:])
            answers = _answers(written, wait_s)
    except DuewheelError as error:
        if not requests:
            raise
        raise _partly(requests, len(handles), error) from error
    return len(written), answers


def _acknowledged(requests: Sequence[Future[Cancel]]) -> list[Cancel]:
    end_s = time.monotonic() + ACKNOWLEDGED_S
    return [each.result(max(0.0, end_s - time.monotonic())) for each in requests]


def _partly(
    requests: Sequence[Future[Cancel]], matched: int, error: DuewheelError
) -> DuewheelError:
    """Makes the error that says how many cancels are written, and how many may be."""
    written = sum(each.done() and each.exception() is None for each in requests)
    in_doubt = len(requests) - written
    text = f"{written} of {matched} cancels are written, {in_doubt} may be: {error}"
    return Unacknowledged(text, matched=matched, written=written, in_doubt=in_doubt)


def _answers(written: Sequence[Cancel], wait_s: float | None) -> dict[str, int]:
    if wait_s is None or not written or written[0].reply is None:
        return {}
    end_s = time.monotonic() + wait_s
    answers: Counter[str] = Counter()
    for cancel in written:
        try:
            answers[cancel.answer(max(0.0, end_s - time.monotonic()))] += 1
        except (TimeoutError, DuewheelError):  # the cancel is written, however the reader fares
            answers["none_in_time"] += 1
    return dict(answers)
