"""The due time of a timer as a request header. Imports nothing heavy: the client has it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypedDict, TypeGuard

from duewheel.config.durations import about, parse_duration_ms
from duewheel.config.instants import ms_up
from duewheel.errors import InvalidTimer
from duewheel.schemas.header_names import NAME_OF, Request

NonNullHeader = tuple[str, bytes]

MAX_DELAY = timedelta(days=40)  # the service's default of timer.max_delay


class DueTimeArguments(TypedDict, total=False):
    """One of the three arguments of `DelayProducer.schedule`."""

    deliver_at: int
    delay: timedelta
    level: int


@dataclass(frozen=True, slots=True)
class DueTime:
    """A request for a due time: epoch ms, a delay in ms, or a level.

    >>> DueTime.of(delay="1h30m").headers
    [('TIMER_DELAY_MS', b'5400000')]
    >>> DueTime.of(deliver_at=datetime.fromisoformat("2027-01-15T08:00Z")).headers
    [('TIMER_DELIVER_MS', b'1800000000000')]
    """

    request: Request
    number: int

    @classmethod
    def of(
        cls,
        deliver_at: datetime | int | None = None,
        delay: timedelta | str | None = None,
        level: int | None = None,
    ) -> DueTime:
        """Makes it of exactly one of the three arguments of `DelayProducer.schedule`.

        >>> DueTime.of(delay="1h", level=3)
        Traceback (most recent call last):
        duewheel.errors.InvalidTimer: give exactly one of deliver_at, delay and level

        Raises:
            InvalidTimer: none or several arguments are given, or one does not parse.
        """
        if [deliver_at, delay, level].count(None) != 2:
            raise InvalidTimer("give exactly one of deliver_at, delay and level")
        if deliver_at is not None:
            return cls(Request.DELIVER_AT, instant_ms(deliver_at))
        if delay is not None:
            return cls(Request.DELAY_MS, span_ms(delay, "delay"))
        if not whole(level) or level < 1:
            raise InvalidTimer(f"level {level!r} is not a whole number from 1 up")
        return cls(Request.LEVEL, level)

    @property
    def headers(self) -> list[NonNullHeader]:
        """The request header."""
        return [(NAME_OF[self.request], b"%d" % self.number)]

    @property
    def arguments(self) -> DueTimeArguments:
        """The arguments of `of` that make it again."""
        if self.request is Request.DELIVER_AT:
            return {"deliver_at": self.number}
        if self.request is Request.DELAY_MS:
            return {"delay": timedelta(milliseconds=self.number)}
        return {"level": self.number}

    def require_within(
        self,
        levels_ms: Sequence[int],
        max_delay_ms: int,
        now_ms: int,
        window: timedelta | str | None = None,
    ) -> None:
        """Refuses a request that ingest would refuse, or read as another one.

        >>> DueTime.of(delay="41d").require_within([1_000], 3_456_000_000, 0)
        Traceback (most recent call last):
        duewheel.errors.InvalidTimer: due in 41d, the longest delay (timer.max_delay) is 40d

        Args:
            levels_ms: `timer.levels`.
            max_delay_ms: `timer.max_delay`.
            now_ms: now, by this host's clock.
            window: after the due time.

        Raises:
            InvalidTimer: with the maximum.
        """
        if self.request is Request.LEVEL:
            if self.number > len(levels_ms):
                raise InvalidTimer(
                    f"there is no level {self.number}: the last of timer.levels is {len(levels_ms)}"
                )
            if window is None:
                return
        delay_ms = self.due_ms(now_ms, levels_ms) - now_ms
        if window is not None:
            delay_ms += span_ms(window, "window")
        if delay_ms > max_delay_ms:
            longest = f"the longest delay (timer.max_delay) is {about(max_delay_ms)}"
            at_the_latest = "" if window is None else " at the latest"
            raise InvalidTimer(f"due in {about(delay_ms)}{at_the_latest}, {longest}")

    def due_ms(self, timestamp_ms: int, levels_ms: Sequence[int]) -> int:
        """Computes when a record with this header and timestamp is due, in epoch ms.

        >>> levels_ms = [1_000, 5_000]
        >>> DueTime.of(delay="2s").due_ms(1_800_000_000_000, levels_ms)
        1800000002000
        >>> DueTime.of(level=7).due_ms(1_800_000_000_000, levels_ms)  # above the highest level
        1800000005000
        """
        if self.request is Request.DELIVER_AT:
            return self.number
        if self.request is Request.DELAY_MS:
            return timestamp_ms + self.number
        return timestamp_ms + levels_ms[min(self.number, len(levels_ms)) - 1]


# A delay of 0 would be past due where a topic refuses that.
DUE_NOW = DueTime(Request.DELAY_MS, 1)


def window_headers(window: timedelta | str | None) -> list[NonNullHeader]:
    """Makes the request header that spreads a timer over a window after its due time.

    Returns:
        One header; none if `window` is None.

    Raises:
        InvalidTimer: the window does not parse, or is below 0.
    """
    if window is None:
        return []
    window_ms = span_ms(window, "window")
    if window_ms < 0:
        raise InvalidTimer(f"window {window!r} is below 0")
    return [(NAME_OF[Request.WINDOW_MS], b"%d" % window_ms)]


def whole(number: object) -> TypeGuard[int]:
    """Returns whether a value is an int; True and False are not."""
    return isinstance(number, int) and not isinstance(number, bool)


def instant_ms(instant: datetime | int, name: str = "deliver_at") -> int:
    """Converts to epoch ms.

    Raises:
        InvalidTimer: it has no zone, or is neither; `name` is the argument.
    """
    if whole(instant):
        return instant
    if not isinstance(instant, datetime):
        raise InvalidTimer(f"{name} {instant!r} is neither a datetime nor epoch ms")
    if instant.utcoffset() is None:
        raise InvalidTimer(f"{name} {instant.isoformat()} has no zone: it could be any hour")
    return ms_up(instant)


def span_ms(span: timedelta | str, name: str) -> int:
    """Converts to milliseconds, rounded up.

    Raises:
        InvalidTimer: it has no unit, or does not parse; `name` is the argument.
    """
    if isinstance(span, timedelta):
        return ms_up(span)
    if not isinstance(span, str):
        raise InvalidTimer(f'{name} {span!r} has no unit: give a timedelta, or text such as "15m"')
    try:
        return parse_duration_ms(span)
    except ValueError as error:
        raise InvalidTimer(f"{name}: {error}") from error
