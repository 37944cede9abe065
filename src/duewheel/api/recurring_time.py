"""The instants of a recurring timer as request headers. Imports nothing heavy: the client has it.

Contradictions and short intervals are refused here. Whether expression and zone have an instant is
found by `ops.schedules`, and by the service when the timer was to fire first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypedDict

from duewheel.api.due_time import NonNullHeader, instant_ms, span_ms
from duewheel.errors import InvalidTimer
from duewheel.schemas import header_names as names

Missed = names.Missed


class RecurringArguments(TypedDict, total=False):
    """The arguments of `DelayProducer.schedule` that make a timer a recurring one.

    Attributes:
        cron: an expression of five fields, or of six with seconds first; or `every` in its place.
        zone: of the expression, such as Europe/Berlin; by default UTC.
        every: an interval of elapsed time, at least 1 s: a timedelta, or text such as "90s".
        missed: which instants fire that are late by more than a minute; by default "skip".
        starts, ends: no instant is earlier or later: a datetime with a zone, or epoch ms. An
            interval counts from `starts`, by default from the record's timestamp.
        jitter: moves all instants by the same time, up to this, by the id.
    """

    cron: str | None
    zone: str | None
    every: timedelta | str | None
    missed: Missed | None
    starts: datetime | int | None
    ends: datetime | int | None
    jitter: timedelta | str | None


@dataclass(frozen=True, slots=True)
class RecurringTime:
    """A request for recurring instants.

    >>> RecurringTime.of(every="90s", missed="one").headers
    [('TIMER_EVERY', b'90000'), ('TIMER_MISSED', b'one')]
    """

    headers: list[NonNullHeader]

    @classmethod
    def of(
        cls,
        cron: str | None = None,
        zone: str | None = None,
        every: timedelta | str | None = None,
        missed: Missed | None = None,
        starts: datetime | int | None = None,
        ends: datetime | int | None = None,
        jitter: timedelta | str | None = None,
    ) -> RecurringTime:
        """Makes it of RecurringArguments.

        >>> RecurringTime.of(cron="0 8 * * *", every="1d")
        Traceback (most recent call last):
        duewheel.errors.InvalidTimer: give either cron or every

        Raises:
            InvalidTimer: they contradict each other, or one does not parse.
        """
        if (cron is None) == (every is None):
            raise InvalidTimer("give either cron or every")
        if zone is not None and cron is None:
            raise InvalidTimer("zone belongs to cron: an interval is elapsed time")
        if missed is not None and missed not in names.MISSED_WORDS:
            raise InvalidTimer(f"missed {missed!r} is none of {', '.join(names.MISSED_WORDS)}")
        every_ms = None if every is None else span_ms(every, "every")
        if every_ms is not None and every_ms < names.INTERVAL_MS_MIN:
            raise InvalidTimer(f"every {every!r} is below a second")
        values = {
            names.CRON: None if cron is None else " ".join(cron.split()),
            names.ZONE: zone,
            names.EVERY: every_ms,
            names.MISSED: missed,
            names.STARTS_MS: None if starts is None else instant_ms(starts, "starts"),
            names.ENDS_MS: None if ends is None else instant_ms(ends, "ends"),
            names.JITTER_MS: None if jitter is None else span_ms(jitter, "jitter"),
        }
        return cls([(name, str(v).encode()) for name, v in values.items() if v is not None])

    def due_ms(self, timestamp_ms: int, _: Sequence[int]) -> int:
        """When the record itself is due, at its timestamp: then its first copy is written."""
        return timestamp_ms


def require_name(id: str | None) -> str:
    """The name of a recurring timer, which is its id.

    Raises:
        InvalidTimer: it has none, or a longer one than ingest accepts.
    """
    if not isinstance(id, str):
        raise InvalidTimer("a recurring timer needs an id: its name")
    if len(id.encode(errors="replace")) > names.RECURRING_ID_BYTES_MAX:
        longest = names.RECURRING_ID_BYTES_MAX
        raise InvalidTimer(f"the id of a recurring timer has {longest} bytes at most")
    return id
