"""The instants of a recurring schedule: a cron expression in a time zone, or an interval.

An interval counts elapsed time from its start; no zone affects it.

cronsim finds the next wall time that matches a cron expression; this module makes instants of wall
times. cronsim can do that, too, but where clocks move by half an hour, or at midnight, it leaves
out instants. Two kinds of expression, as in Debian's cron:

    fixed     neither minute nor hour begins with `*`: a job at some time of the day. Each wall time
              fires once: one that exists twice at its first instant, one that does not exist at the
              end of the gap.
    elapsed   the others, such as `*/15 * * * *`: a job at a steady pace. Each instant whose wall
              time matches fires: twice in an hour that exists twice, not at all in a gap.

All times are whole seconds since the epoch; schedules have milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from typing import Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from duewheel.errors import ConfigError

_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - wall times have no zone
_STEP_S = 6 * 3600  # no zone changes its offset twice within this
_FAR_S = 2 * 86_400  # no two offsets of a zone are so far apart
# An expression without a match in so many years has no further instant: 29 February comes again
# within eight. A search of all 50 that cronsim looks at would take 30 ms.
_YEARS_MAX = 9
_SECOND = timedelta(seconds=1)


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


class _Walls(CronSim):
    """The wall times that match, of a bounded number of years."""

    dt: datetime  # the last one; CronSim begins with it

    def __init__(self, expression: str, wall: datetime) -> None:
        super().__init__(expression, wall)
        self._last_year = wall.year

    def from_wall(self, wall: datetime) -> _Walls:
        """The later wall times. Parses nothing again."""
        walls = copy(self)
        walls.dt = wall
        return walls

    def advance(self) -> None:
        """Raises StopIteration if nothing matches in the next years."""
        self._last_year = self.dt.year + _YEARS_MAX
        super().advance()

    def advance_month(self) -> None:
        """Moves to the first month that matches, at once: cronsim looks at each, and at each day in
        it, which for 29 February takes a quarter of a millisecond.
        """
        if self.dt.year > self._last_year:
            raise StopIteration
        if self.dt.month not in self.months:
            later = min((month for month in self.months if month > self.dt.month), default=0)
            year = self.dt.year + (not later)
            self.dt = datetime(year, later or min(self.months), 1)  # noqa: DTZ001

    def advance_day(self) -> bool:
        """Moves to the first day of the month that matches, or to the next month."""
        if not self.day_and or self.match_day(self.dt.date()):
            return super().advance_day()
        days = {day for day in self.days if day > self.dt.day}
        if min(self.days) < 0:  # the last day, or weekday, of the month
            days.update(range(max(26, self.dt.day + 1), 32))
        first = self.dt.replace(day=1, hour=0, minute=0, second=0)
        following = (first + timedelta(days=32)).replace(day=1)
        in_month = (first + timedelta(days=day - 1) for day in sorted(days))
        fitting = (day for day in in_month if day < following and self.match_day(day))
        self.dt = next(fitting, following)
        return True


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
        try:
            self._zone = ZoneInfo(zone)
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise ConfigError(f'"{zone}" is no time zone: give such as Europe/Berlin') from error
        fields = expression.split()
        minute, hour = fields[-5:-3] if len(fields) in {5, 6} else ("", "")
        self._is_fixed = not (minute.startswith("*") or hour.startswith("*"))
        try:
            self._parsed = _Walls(expression, _EPOCH)
        except (CronSimError, AssertionError, ValueError) as error:
            raise ConfigError(f'"{expression}" is no cron expression: {error}') from error

    def after(self, instant_ms: int) -> Iterator[int]:
        """See Instants."""
        instants = self._fixed if self._is_fixed else self._elapsed
        return (second * 1000 for second in instants(instant_ms // 1000))

    def _walls(self, wall: datetime) -> Iterator[datetime]:
        """The later wall times that match."""
        return self._parsed.from_wall(wall)

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
        while True:
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
                at = instant
            if far is not None:
                after = far  # with the offset of there: nothing matches before, whatever the offset
                continue
            if changed is None:
                return  # no wall time matches any more
            # From here on with the new offset, the moment of the change included.
            now = offset(self._zone, changed)
            if next(self._walls(_wall(changed - 1, now)), None) == _wall(changed, now):
                yield changed
            after = changed


def offset(zone: tzinfo, second: int) -> timedelta:
    """The offset of a zone from UTC at an instant."""
    return datetime.fromtimestamp(second, zone).utcoffset() or timedelta()


def _wall(second: int, at: timedelta) -> datetime:
    return _EPOCH + timedelta(seconds=second) + at


def _instant(wall: datetime, at: timedelta | None) -> int:
    return (wall - _EPOCH - (at or timedelta())) // _SECOND


def _change(zone: tzinfo, after: int, until: int) -> int | None:
    """The first instant in (after, until] with another offset than `after`; None: there is none."""
    before = offset(zone, after)
    low = after
    while low < until:
        high = min(low + _STEP_S, until)
        if offset(zone, high) != before:
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (low, middle) if offset(zone, middle) != before else (middle, high)
            return high
        low = high
    return None
