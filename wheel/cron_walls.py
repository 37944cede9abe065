"""Cron expressions: the fields of one as bits, and the wall times that match it.

    field    term{,term}
    term     * | number | number-number, each also with /step
             L, LW (day: the last one, the last workday); 5L, 5#2 (day of week: the last Friday of
             the month, the second one)

A day matches if either day field does; if one of them begins with `*`, both must. These rules are
those of cronsim, a library, and tests/property/test_cron_instants.py compares the two. But cronsim
takes up to 0.3 ms to parse a text of 250 bytes, and 100,000 that differ may be due in one slot:
here each distinct term is parsed once (`_bits`), and a field is the union of its terms.
"""

from __future__ import annotations

from calendar import monthrange
from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import lru_cache

# An expression without a match in so many years has no further instant: 29 February comes again
# within eight.
YEARS_MAX = 9
_FIELDS = ("second", "minute", "hour", "day of month", "month", "day of week")
_DAY, _MONTH, _WEEKDAY = 3, 4, 5
_RANGES = ((0, 59), (0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
_MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_WEEKDAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_NAMES = {
    _MONTH: {name: number for number, name in enumerate(_MONTHS, 1)},
    _WEEKDAY: {name: number for number, name in enumerate(_WEEKDAYS)},
}
_LONGEST = (0, 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)  # of months
# Bits beside those of the numbers. Days of the week have eight bits for each of: every one, the
# first to the fifth of the month, the last.
_LAST_DAY, _LAST_WORKDAY = 1 << 32, 1 << 33
_LAST_DAYS = {"L": _LAST_DAY, "LW": _LAST_WORKDAY}
_LAST = 6
_WEEK = 0b1111111
_SECOND = timedelta(seconds=1)
_month = lru_cache(1 << 12)(monthrange)  # the weekday of its first day, from Monday; and its days


class Walls:
    """The wall times that match an expression.

    >>> next(Walls("30 8 * * MON#2").after(datetime(2027, 3, 1)))
    datetime.datetime(2027, 3, 8, 8, 30)
    """

    def __init__(self, expression: str) -> None:
        """Parses it.

        Raises:
            ValueError: it is none; the text says which field.
        """
        fields = expression.upper().split()
        if len(fields) == 5:
            fields.insert(0, "0")
        if len(fields) != len(_FIELDS):
            raise ValueError("it has neither five fields nor six")
        self._seconds, self._minutes, self._hours, self._days, self._months, weekdays = (
            _field(place, field) for place, field in enumerate(fields)
        )
        self._weekdays = [
            (bits, which) for which in range(_LAST + 1) if (bits := weekdays >> 8 * which & 255)
        ]
        self._both = fields[_DAY].startswith("*") or fields[_WEEKDAY].startswith("*")
        self._first_hour, self._first_minute, self._first_second = (
            _lowest(bits) for bits in (self._hours, self._minutes, self._seconds)
        )
        self._matching = dict[tuple[int, int], int]()
        days = _LAST_DAY | _LAST_WORKDAY | _until(_longest(self._months))
        if self._both and not self._days & days:
            raise ValueError("none of its months has such a day")

    def after(self, wall: datetime) -> Iterator[datetime]:
        """All later ones in their order. Ends if nothing matches in the next years."""
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
        first = self._first_hour, self._first_minute, self._first_second
        return day and day.replace(hour=first[0], minute=first[1], second=first[2])

    def _in_day(self, wall: datetime) -> datetime | None:
        """The first one from this on, in its day, which matches."""
        hour, minute, second = wall.hour, wall.minute, wall.second
        if self._hours >> hour & 1:
            if self._minutes >> minute & 1 and (later := self._seconds >> second):
                return wall.replace(second=second + _lowest(later))
            if later := self._minutes >> minute + 1:
                return wall.replace(minute=minute + 1 + _lowest(later), second=self._first_second)
        if not (later := self._hours >> hour + 1):
            return None
        hour += 1 + _lowest(later)
        return wall.replace(hour=hour, minute=self._first_minute, second=self._first_second)

    def _day_from(self, year: int, month: int, day: int) -> datetime | None:
        """The first day that matches, from one on; `day` may be the one after its month's last."""
        last_year = year + YEARS_MAX
        while year <= last_year:
            if self._months >> month & 1 and (days := self._days_of(year, month) >> day):
                return datetime(year, month, day + _lowest(days))  # noqa: DTZ001
            year, month, day = year + month // 12, month % 12 + 1, 1
        return None

    def _days_of(self, year: int, month: int) -> int:
        """The days of a month that match, as bits. They are kept by the weekday of its first day
        and its length: the calendar has 28 such pairs.
        """
        first, last = kind = _month(year, month)
        found = self._matching.get(kind)
        if found is None:
            days, weekdays = self._days & _until(last), 0
            if self._days & _LAST_DAY:
                days |= 1 << last
            if self._days & _LAST_WORKDAY:
                days |= 1 << last - max(0, (first + last - 1) % 7 - 4)
            for bits, which in self._weekdays:
                each = _weekly(bits, first)
                if which:
                    each &= _WEEK << (last - 6 if which == _LAST else 7 * which - 6)
                weekdays |= each
            weekdays &= _until(last)
            found = days & weekdays if self._both else days | weekdays
            self._matching[kind] = found
        return found


def _lowest(bits: int) -> int:
    """The number of the lowest bit."""
    return (bits & -bits).bit_length() - 1


def _until(day: int) -> int:
    """The days from the first to this one, as bits."""
    return (2 << day) - 2


@lru_cache(1 << 12)
def _longest(months: int) -> int:
    """The most days that one of the months may have."""
    return max(_LONGEST[month] for month in range(1, 13) if months >> month & 1)


@lru_cache(7 * 256)
def _weekly(weekdays: int, first: int) -> int:
    """The days from 1 to 35 with these weekdays, if `first` is that of the first: 0 is Monday."""
    days = ((number - 1 - first) % 7 + 1 for number in range(8) if weekdays >> number & 1)
    return sum(1 << day + 7 * week for day in set(days) for week in range(5))


def _field(place: int, text: str) -> int:
    bits = 0
    for term in text.split(","):
        bits |= _bits(place, term)
    return bits


@lru_cache(1 << 14)
def _bits(place: int, term: str) -> int:
    """The numbers of a term in the field of this place, as bits."""
    try:
        return _of_term(place, term)
    except ValueError as error:
        raise ValueError(f"{term!r} is no {_FIELDS[place]}") from error


def _of_term(place: int, term: str) -> int:
    if place == _WEEKDAY and term.endswith("L"):
        return 1 << 8 * _LAST + _digits(term[:-1], 0, 7)
    if place == _WEEKDAY and "#" in term:
        number, _, which = term.partition("#")
        return 1 << 8 * _digits(which, 1, 5) + _number(place, number)
    numbers, slash, text = term.partition("/")
    step = _digits(text, 1, None) if slash else 1
    if place == _DAY and numbers in _LAST_DAYS:
        return _LAST_DAYS[numbers]  # cronsim takes a step here, too
    low, high = _RANGES[place]
    if numbers != "*":
        first, dash, last = numbers.partition("-")
        low = _number(place, first)
        end = _number(place, last) if dash else low
        if end < low:
            raise ValueError("it falls")
        high = high if slash and end == low else end  # 5/10: from 5 on
    return sum(1 << number for number in range(low, high + 1, step))


def _number(place: int, text: str) -> int:
    named = _NAMES.get(place, {}).get(text)
    return _digits(text, *_RANGES[place]) if named is None else named


def _digits(text: str, low: int, high: int | None) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError("no digits")
    number = int(text)
    if number < low or (high is not None and number > high):
        raise ValueError("out of range")
    return number
