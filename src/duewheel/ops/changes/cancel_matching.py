"""`duewheel cancel-matching`: cancels all pending timers that a filter selects.

They are found in the mapped files, all before the first cancel is written: of a filter that selects
too many, or takes too long, none takes effect. Each is cancelled by its handle, with a record in
its timer topic, like any client's.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from duewheel.api.changes import BulkCancelled
from duewheel.api.requests import TimerFilter
from duewheel.api.timers import TimerSummary
from duewheel.client import Cancel
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError, DuewheelError, Unacknowledged
from duewheel.ops.changes.pending_timers import Conflict
from duewheel.ops.changes.timer_writer import ACKNOWLEDGED_S, REQUESTS_AT_ONCE, TimerWriter
from duewheel.ops.files import open_files
from duewheel.ops.timers.pending import handle_of, selection, source_of, summary_of
from duewheel.wheel.inspect.listing import Filter, PendingTimer, list_chunks

SAMPLE = 10


def cancel_all(
    writer: TimerWriter,
    wanted: TimerFilter,
    wait_s: float,
    *,
    at_most: int,
    dry_run: bool,
    within_s: float = float(sys.maxsize),
) -> BulkCancelled:
    """Cancels all pending timers that match, or none if they are more than `at_most`.

    Args:
        wanted: at least one condition.
        wait_s: the longest wait for all replies together; 0: do not wait.
        at_most: a bound against a filter that selects more than was meant.
        within_s: the longest search.

    Raises:
        Conflict: more match; nothing was cancelled.
        ConfigError: the filter selects everything, or the search took too long.
        KafkaUnavailable: no broker answers; nothing was written.
        Unacknowledged: with the number of cancels that are written, and of those in doubt.
    """
    settings = writer.settings
    matching = _matching(settings, selection(settings, wanted), at_most, within_s)
    named = matching.named
    written, answers = len(named) if dry_run else 0, dict[str, int]()
    if not dry_run and named:
        written, answers = _cancel(writer, named, wait_s)
    return BulkCancelled(
        dry_run=dry_run,
        matched=len(named),
        unreachable=matching.unreachable,
        written=written,
        answers=answers,
        sample=matching.sample,
    )


@dataclass(slots=True)
class _Matching:
    """Timers to cancel: their timer topics and handles, summaries of the first ones, and how many
    have no handle.
    """

    named: list[tuple[str, str]] = field(default_factory=list)
    sample: list[TimerSummary] = field(default_factory=list)
    unreachable: int = 0

    def add(self, timer: PendingTimer) -> None:
        if timer.cancelled or timer.due_ms is None:
            return
        handle = handle_of(timer)
        if handle is None:
            self.unreachable += 1
            return
        self.named.append((source_of(timer)[0], handle))
        if len(self.sample) < SAMPLE:
            self.sample.append(summary_of(timer))


def _matching(settings: Settings, wanted: Filter, at_most: int, within_s: float) -> _Matching:
    """Finds the timers to cancel. Raises as `cancel_all`."""
    if wanted == Filter():
        raise ConfigError("give a filter: without one every pending timer would be cancelled")
    end_s = time.monotonic() + within_s
    matching = _Matching()
    with open_files(settings) as directory:
        for chunk in list_chunks(directory, wanted, sys.maxsize):
            for timer in chunk.timers:
                matching.add(timer)
            if len(matching.named) > at_most:
                raise Conflict(f"more than {at_most} timers match: narrow the filter")
            if time.monotonic() > end_s:
                raise ConfigError(f"the search takes longer than {within_s:g} s: narrow it")
    return matching


def _cancel(
    writer: TimerWriter, named: Sequence[tuple[str, str]], wait_s: float
) -> tuple[int, dict[str, int]]:
    """Returns the number of cancels that are written, and their replies, counted."""
    requests: list[Future[Cancel]] = []
    written: list[Cancel] = []
    awaits = wait_s > 0
    try:
        with writer.producer(named[0][0]) as producer:
            for first in range(0, len(named), REQUESTS_AT_ONCE):
                for topic, handle in named[first : first + REQUESTS_AT_ONCE]:
                    requests.append(producer.cancel(handle, timer_topic=topic, reply=awaits))
                written += _acknowledged(requests[first:])
            answers = _answers(written, wait_s)
    except DuewheelError as error:
        if not requests:
            raise
        raise _partly(requests, len(named), error) from error
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


def _answers(written: Sequence[Cancel], wait_s: float) -> dict[str, int]:
    if not wait_s or not written or written[0].reply is None:
        return {}
    end_s = time.monotonic() + wait_s
    answers: Counter[str] = Counter()
    for cancel in written:
        try:
            answers[cancel.answer(max(0.0, end_s - time.monotonic()))] += 1
        except (TimeoutError, DuewheelError):  # the cancel is written, however the reader fares
            answers["none_in_time"] += 1
    return dict(answers)
