"""`duewheel cancel-matching`: cancels all pending timers that a filter selects.

They are found in the mapped files, all before the first cancel is written: of a filter that selects
too many, or takes too long, none takes effect. Each is cancelled by its handle, with a record in
its timer topic, like any client's.

- A recurring timer stays, and is counted: a cancel would end its schedule for good.
- While the shard recovers, those that were read so far are cancelled, because they may be due soon.
  The result has `recovering`; repeated afterwards, the call finds the others.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

from duewheel.api.changes import BulkCancelled
from duewheel.api.requests import TimerFilter
from duewheel.api.timers import TimerSummary
from duewheel.client import Answer, Cancel
from duewheel.config.settings import Settings
from duewheel.deadline import Deadline
from duewheel.errors import ConfigError, Conflict, DuewheelError, TooMuch, Unacknowledged
from duewheel.ops.changes.producer_pool import ACKNOWLEDGED_S
from duewheel.ops.changes.timer_writer import REQUESTS_AT_ONCE, TimerWriter
from duewheel.ops.changes.written import WrittenChange, answer_so_far
from duewheel.ops.files import open_files
from duewheel.ops.timers.pending import (
    ShardFields,
    handle_of,
    selection,
    shard_fields,
    source_of,
    summary_of,
)
from duewheel.schemas.topic_scope import ALL_TOPICS, TopicScope
from duewheel.wheel.inspect.listing import Filter, PendingTimer, list_chunks

SAMPLE = 10


@dataclass(slots=True)
class Matching:
    """Timers to cancel: the fields of their shard, timer topics and handles, summaries of the
    first ones, how many of them roll, and how many others are recurring or have no handle.
    """

    of_shard: ShardFields
    named: list[tuple[str, str]] = field(default_factory=list)
    sample: list[TimerSummary] = field(default_factory=list)
    rolling: int = 0
    recurring: int = 0
    unreachable: int = 0

    def add(self, timer: PendingTimer) -> None:
        """Adds a timer that is not cancelled, unless it is recurring, or a dead letter."""
        if timer.due_ms is None:
            return
        if timer.recurring:
            self.recurring += 1
            return
        handle = handle_of(timer)
        if handle is None:
            self.unreachable += 1
            return
        self.named.append((source_of(timer)[0], handle))
        self.rolling += timer.rolled
        if len(self.sample) < SAMPLE:
            self.sample.append(summary_of(timer))

    def result(
        self, *, dry_run: bool = False, answers: Mapping[str, int] | None = None
    ) -> BulkCancelled:
        """Makes the result of a cancel of all of them, or of a dry run."""
        return BulkCancelled(
            **self.of_shard,
            dry_run=dry_run,
            matched=len(self.named),
            rolling=self.rolling,
            recurring=self.recurring,
            unreachable=self.unreachable,
            written=len(self.named),
            answers=dict(answers or {}),
            sample=self.sample,
        )


def find_matching(
    settings: Settings,
    wanted: TimerFilter,
    *,
    at_most: int,
    within_s: float = math.inf,
    scope: TopicScope = ALL_TOPICS,
) -> Matching:
    """Finds the pending timers that match.

    Args:
        wanted: at least one condition.
        at_most: a bound against a filter that selects more than was meant.
        within_s: the longest search.
        scope: no condition: only timers of these timer topics are found, or of the one of them that
            `wanted` names.

    Raises:
        Conflict: more match.
        ConfigError: the filter selects everything, or its timer topic is none.
        TooMuch: the search took too long.
    """
    if selection(settings, wanted) == Filter():
        raise ConfigError("give a filter: without one every pending timer would be cancelled")
    chosen = replace(selection(settings, wanted, scope=scope), live=True)
    deadline = Deadline(within_s)
    with open_files(settings) as directory:
        matching = Matching(shard_fields(settings, directory))
        for chunk in list_chunks(directory, chosen, sys.maxsize):
            for timer in chunk.timers:
                matching.add(timer)
            if len(matching.named) > at_most:
                raise Conflict(f"more than {at_most} timers match: narrow the filter")
            if deadline.is_over:
                raise TooMuch(f"the search takes longer than {within_s:g} s: narrow the filter")
    return matching


def cancel_all(
    writer: TimerWriter, matching: Matching, *, reply: bool
) -> WrittenChange[BulkCancelled]:
    """Writes a cancel for each of them; `reply` as for `requests.cancel`.

    Raises:
        KafkaUnavailable: no broker answers; nothing was written.
        Unacknowledged: with the number of cancels that are written, and of those in doubt.
    """
    named = matching.named
    written = _cancel(writer, named, reply=reply) if named else []
    replies = [each.reply for each in written if each.reply is not None]
    return WrittenChange(replies, lambda: matching.result(answers=_counted(replies)))


def _cancel(writer: TimerWriter, named: Sequence[tuple[str, str]], *, reply: bool) -> list[Cancel]:
    requests: list[Future[Cancel]] = []
    written: list[Cancel] = []
    try:
        with writer.producer(named[0][0]) as producer:
            for first in range(0, len(named), REQUESTS_AT_ONCE):
                for topic, handle in named[first : first + REQUESTS_AT_ONCE]:
                    requests.append(producer.cancel(handle, timer_topic=topic, reply=reply))
                written += _acknowledged(requests[first:])
    except DuewheelError as error:
        if not requests:
            raise
        raise _partly(requests, len(named), error) from error
    return written


def _acknowledged(requests: Sequence[Future[Cancel]]) -> list[Cancel]:
    deadline = Deadline(ACKNOWLEDGED_S)
    return [each.result(deadline.remaining_s()) for each in requests]


def _partly(
    requests: Sequence[Future[Cancel]], matched: int, error: DuewheelError
) -> DuewheelError:
    """Makes the error that says how many cancels are written, and how many may be."""
    written = sum(each.done() and each.exception() is None for each in requests)
    in_doubt = len(requests) - written
    text = (
        f"{written} of {matched} cancels are written, {in_doubt} may be: {error}. Repeat it: "
        "cancelled ones are left out"
    )
    return Unacknowledged(text, matched=matched, written=written, in_doubt=in_doubt)


def _counted(replies: Sequence[Future[Answer]]) -> Counter[str]:
    """Counts replies by kind; one that cannot be read may as well be still to come."""
    return Counter(answer_so_far(reply) or "none_in_time" for reply in replies)
