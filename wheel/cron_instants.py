"""The instants of a recurring schedule: a cron expression in a time zone, or an interval.

An interval counts elapsed time from its start; no zone affects it.

cronsim parses a cron expression; this module finds the wall times that match, and makes instants
of them. cronsim can do both, too, but its search takes up to 4 ms, and where clocks move by half an
hour, or at midnight, it leaves out instants. Two kinds of expression, as in Debian's cron:

    fixed     neither minute nor hour begins with `*`: a job at some time of the day. Each wall time
              fires once: one that exists twice at its first instant, one that does not exist at the
              end of the gap.
    elapsed   the others, such as `*/15 * * * *`: a job at a steady pace. Each instant whose wall
              time matches fires: twice in an hour that exists twice, not at all in a gap.

All times are whole seconds since the epoch; schedules have milliseconds.
"""

from __future__ import annotations

from bisect import bisect_left
from calendar import monthrange
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from cronsim import CronSim, CronSimError

from duewheel.errors import ConfigError

_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - wall times have no zone
_STEP_S = 6 * 3600  # no zone changes its offset twice within this
_SPAN_S = 8 * _STEP_S
_YEAR_S = 366 * 86_400
_FAR_S = 2 * 86_400  # no two offsets of a zone are so far apart
# An expression without a match in so many years has no further instant: 29 February comes again
# within eight.
YEARS_MAX = 9
_SECOND = timedelta(seconds=1)
_WEEKLY = sum(1 << 7 * week for week in range(5))
_month = lru_cache(1 << 12)(monthrange)  # the weekday of its first day, from Monday; and its days
_zones = lru_cache(1)(available_timezones)


@lru_cache(1 << 10)  # more than there are; ZoneInfo keeps some eight itself
def time_zone(name: str) -> ZoneInfo:
    """Returns the zone with this name.

    Raises:
        ConfigError: there is none.
    """
    try:
        # A producer's names would otherwise be looked for in some ten folders each.
        if name.removeprefix("posix/").removeprefix("right/") not in _zones():
            raise ZoneInfoNotFoundError(name)
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ConfigError(f'"{name}" is no time zone: give such as Europe/Berlin') from error


class Instants(Protocol):
    """When a schedule fires."""

    def after(self, instant_ms: int) -> Iterator[int]:
        """All later instants in their order, in epoch ms."""
        ...


@dataclass(frozen=True, slots=True)
class Every:
    """An interval.

    >>> next(Every(60_000, start_ms=5).after(60_005))
    120005

    Attributes:
        interval_ms: elapsed time between two instants.
        start_ms: the instants are this and whole intervals; there is none before it.
    """

    interval_ms: int
    start_ms: int

    def after(self, instant_ms: int) -> Iterator[int]:
        """See Instants."""
        number = max(0, (instant_ms - self.start_ms) // self.interval_ms + 1)
        while True:
            yield self.start_ms + number * self.interval_ms
            number += 1


class Walls:
    """The wall times that match an expression, the same as cronsim's."""

    def __init__(self, expression: str) -> None:
        parsed = CronSim(expression, _EPOCH)
        self._hours, self._minutes, self._seconds = (
            sorted(each) for each in (parsed.hours, parsed.minutes, parsed.seconds)
        )
        self._months, self._weekdays, self._both = parsed.months, parsed.weekdays, parsed.day_and
        self._days = sum(1 << day for day in parsed.days if day > 0)
        self._last_day = CronSim.LAST in parsed.days
        self._last_workday = CronSim.LAST_WEEKDAY in parsed.days
        self._matching = dict[tuple[int, int], int]()

    def after(self, wall: datetime) -> Iterator[datetime]:
        """Ends if nothing matches in the next years."""
        while (found := self._from(wall + _SECOND)) is not None:
            yield found
            wall = found

    def _from(self, wall: datetime) -> datetime | None:
        """The first one from this on."""
        day = self._day_from(wall.year, wall.month, wall.day)
        if day is not None and day <= wall:
            if (found := self._in_day(wall)) is not None:
                return found
            day = self._day_from(wall.year, wall.month, wall.day + 1)
        hour, minute, second = self._hours[0], self._minutes[0], self._seconds[0]
        return day and day.replace(hour=hour, minute=minute, second=second)

    def _in_day(self, wall: datetime) -> datetime | None:
        """The first one from this on, in its day, which matches."""
        hour, minute, second = wall.hour, wall.minute, wall.second
        if hour in self._hours:
            if minute in self._minutes and (later := _at_least(self._seconds, second)) is not None:
                return wall.replace(second=later)
            if (later := _at_least(self._minutes, minute + 1)) is not None:
                return wall.replace(minute=later, second=self._seconds[0])
        if (later := _at_least(self._hours, hour + 1)) is None:
            return None
        return wall.replace(hour=later, minute=self._minutes[0], second=self._seconds[0])

    def _day_from(self, year: int, month: int, day: int) -> datetime | None:
        """The first day that matches, from one on; `day` may be the one after its month's last."""
        last_year = year + YEARS_MAX
        while year <= last_year:
            if month in self._months and (days := self._days_of(year, month) >> day << day):
                return datetime(year, month, (days & -days).bit_length() - 1)  # noqa: DTZ001
            year, month, day = year + month // 12, month % 12 + 1, 1
        return None

    def _days_of(self, year: int, month: int) -> int:
        """The days of a month that match, as bits. They are kept by the weekday of its first day
        and its length: the calendar has 28 such pairs.
        """
        first, last = kind = _month(year, month)
        found = self._matching.get(kind)
        if found is None:
            whole = (2 << last) - 2
            days = self._days | self._last_day << last
            days |= self._last_workday << last - max(0, (first + last - 1) % 7 - 4)
            weekdays = 0
            for weekday in self._weekdays:
                number, which = weekday if isinstance(weekday, tuple) else (weekday, 0)
                each = _WEEKLY << (number - 1 - first) % 7 + 1 & whole
                if which == CronSim.LAST:
                    each = 1 << each.bit_length() - 1
                elif which:
                    each &= 0b1111111 << 7 * which - 6
                weekdays |= each
            found = whole & (days & weekdays if self._both else days | weekdays)
            self._matching[kind] = found
        return found


def _at_least(values: list[int], low: int) -> int | None:
    """The first of the rising values from `low` on."""
    at = bisect_left(values, low)
    return values[at] if at < len(values) else None


class Cron:
    """A cron expression of five fields, or of six with the seconds first.

    >>> berlin = Cron("30 2 * * *", "Europe/Berlin")
    >>> next(berlin.after(1_806_192_000_000))  # 2027-03-28, 01:00; there is no 02:30: at 03:00
    1806195600000
    """

    def __init__(self, expression: str, zone: str) -> None:
        """Parses them.

        Raises:
            ConfigError: one of them does not parse.
        """
        self._zone = time_zone(zone)
        fields = expression.split()
        minute, hour = fields[-5:-3] if len(fields) in {5, 6} else ("", "")
        self._is_fixed = not (minute.startswith("*") or hour.startswith("*"))
        try:
            self._walls = Walls(expression).after
        except (CronSimError, AssertionError, ValueError) as error:
            text = f"is no cron expression: {error}"
            # cronsim has the same error for 30 February and for the 32nd of any month.
            if "day-of-month" in str(error) and _is_expression([*fields[:-2], "*", fields[-1]]):
                text = "has no instant: none of its months has such a day"
            raise ConfigError(f'"{expression}" {text}') from error

    def after(self, instant_ms: int) -> Iterator[int]:
        """See Instants."""
        instants = self._fixed if self._is_fixed else self._elapsed
        return (second * 1000 for second in instants(instant_ms // 1000))

    def _fixed(self, after: int) -> Iterator[int]:
        for wall in self._walls(_wall(after, offset(self._zone, after))):
            first, second = (
                _instant(wall, wall.replace(tzinfo=self._zone, fold=fold).utcoffset())
                for fold in (0, 1)
            )
            # In a gap the offset before it gives the later instant.
            instant = first if first <= second else _change(self._zone, second, first) or first
            if instant > after:
                yield instant
                after = instant

    def _elapsed(self, after: int) -> Iterator[int]:
        last = after
        # Wall times in a gap of every year are no match: otherwise the search would go on to
        # the end of the calendar, 0.3 s of dequeue for a producer's record of 85 bytes.
        while after - last <= (YEARS_MAX + 1) * _YEAR_S:
            now = offset(self._zone, after)
            at, changed, far = after, None, None
            for wall in self._walls(_wall(after, now)):
                instant = _instant(wall, now)
                is_far = instant - at > 2 * _FAR_S
                changed = _change(self._zone, at, at + _FAR_S if is_far else instant)
                if changed is not None:
                    break
                if is_far:
                    far = instant - _FAR_S
                    break
                yield instant
                at = last = instant
            if far is not None:
                after = far  # with the offset of there: nothing matches before, whatever the offset
                continue
            if changed is None:
                return  # no wall time matches any more
            # From here on with the new offset, the moment of the change included.
            now = offset(self._zone, changed)
            if next(self._walls(_wall(changed - 1, now)), None) == _wall(changed, now):
                yield changed
                last = changed
            after = changed


def _is_expression(fields: list[str]) -> bool:
    try:
        CronSim(" ".join(fields), _EPOCH)
    except (CronSimError, AssertionError, ValueError):
        return False
    return True


def offset(zone: tzinfo, second: int) -> timedelta:
    """The offset of a zone from UTC at an instant."""
    return datetime.fromtimestamp(second, zone).utcoffset() or timedelta()


def _wall(second: int, at: timedelta) -> datetime:
    return _EPOCH + timedelta(seconds=second) + at


def _instant(wall: datetime, at: timedelta | None) -> int:
    return (wall - _EPOCH - (at or timedelta())) // _SECOND


def _change(zone: tzinfo, after: int, until: int) -> int | None:
    """The first instant in (after, until] with another offset than `after`; None: there is none."""
    for span in range(after // _SPAN_S, until // _SPAN_S + 1):
        for instant in _changes(zone, span):
            if after < instant <= until:
                return instant
    return None


@lru_cache(1 << 14)
def _changes(zone: tzinfo, span: int) -> list[int]:
    """The instants of a span from which a zone has another offset than a second before. Kept, as an
    expression may look at two changes of each year, and 100,000 expressions may be due together.
    """
    found = []
    for low in range(span * _SPAN_S - 1, (span + 1) * _SPAN_S - 1, _STEP_S):
        before, high = offset(zone, low), low + _STEP_S
        if offset(zone, high) != before:
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (low, middle) if offset(zone, middle) != before else (middle, high)
            found.append(high)
    return found
