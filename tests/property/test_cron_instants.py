"""Cron instants against a reference that looks at every minute, around the changes of clocks."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim, CronSimError
from hypothesis import given
from hypothesis import strategies as st

from duewheel.wheel import cron_instants as cron
from duewheel.wheel.cron_instants import YEARS_MAX, Cron, Every, Walls, offset

# By an hour; by half of one; at midnight; a day that was left out; none for decades; none at all.
ZONES = (
    *("Europe/Berlin", "America/New_York", "Africa/Casablanca", "America/St_Johns"),
    *("Australia/Lord_Howe", "America/Sao_Paulo", "Africa/Cairo", "Asia/Beirut"),
    *("America/Havana", "Pacific/Apia", "Asia/Kolkata", "UTC"),
)
DAY_S = 86_400
SPAN_S = 3 * DAY_S
MINUTE = timedelta(minutes=1)


def numbers(field: str, low: int, high: int) -> set[int]:
    found: set[int] = set()
    for term in field.split(","):
        base, _, step = term.partition("/")
        first, _, last = base.partition("-")
        if base == "*":
            first, last = str(low), str(high)
        found.update(range(int(first), int(last or first) + 1, int(step or 1)))
    return found


def matcher(expression: str) -> Callable[[datetime], bool]:
    minute, hour, day, month, weekday = expression.split()
    days, weekdays = numbers(day, 1, 31), {n % 7 for n in numbers(weekday, 0, 7)}
    both = day.startswith("*") or weekday.startswith("*")

    def matches(wall: datetime) -> bool:
        if wall.minute not in numbers(minute, 0, 59) or wall.hour not in numbers(hour, 0, 23):
            return False
        if wall.month not in numbers(month, 1, 12):
            return False
        by_day, by_weekday = wall.day in days, wall.isoweekday() % 7 in weekdays
        return by_day and by_weekday if both else by_day or by_weekday

    return matches


def reference(expression: str, zone: str, after: int, until: int) -> list[int]:
    """Minute by minute: what a clock on the wall shows, and what it has never shown or shown
    before.
    """
    matches, tz = matcher(expression), ZoneInfo(zone)
    minute, hour = expression.split()[:2]
    is_fixed = not (minute.startswith("*") or hour.startswith("*"))
    found = []
    shown = datetime.fromtimestamp(after - 2 * DAY_S - 60, tz).replace(tzinfo=None)
    for second in range(after - 2 * DAY_S, until, 60):
        here = datetime.fromtimestamp(second, tz)
        wall = here.replace(tzinfo=None, fold=0)
        fires = matches(wall)
        if is_fixed:
            fires = fires and not here.fold
            while (shown := shown + MINUTE) < wall:
                fires = fires or matches(shown)
        shown = wall
        if fires and second > after:
            found.append(second)
    return found


def changes(zone: str, year: int) -> list[int]:
    """The hours of a year at whose end the offset has changed."""
    tz, start = ZoneInfo(zone), int(datetime(year, 1, 1, tzinfo=UTC).timestamp())
    hours = [start + 3600 * n for n in range(366 * 24)]
    return [a for a, b in itertools.pairwise(hours) if offset(tz, a) != offset(tz, b)]


def expressions(chance: random.Random) -> Iterator[str]:
    def field(low: int, high: int, star: float) -> str:
        if chance.random() < star:
            return chance.choice(["*", "*", f"*/{chance.randint(2, 20)}"])
        first, last = sorted(chance.sample(range(low, high + 1), 2))
        return chance.choice(
            [f"{first}", f"{first}-{last}", f"{first},{last}", f"{first}-{last}/2"]
        )

    while True:
        hour = chance.choice(["*", "0", "1", "2", "3", "23", "0-3", "1,2", field(0, 23, 0.3)])
        rest = f"{field(1, 31, 0.9)} {field(1, 12, 0.9)} {field(0, 6, 0.9)}"
        yield f"{field(0, 59, 0.5)} {hour} {rest}"


def taken(expression: str, zone: str, after: int, until: int) -> list[int]:
    instants = (at // 1000 for at in Cron(expression, zone).after(after * 1000))
    return list(itertools.takewhile(lambda at: at < until, instants))


@pytest.mark.parametrize("zone", ZONES)
def test_as_the_clock_on_the_wall_shows(zone: str) -> None:
    chance = random.Random(zone)
    for expression in itertools.islice(expressions(chance), 12):
        near = changes(zone, chance.randint(2008, 2026)) or [1_800_000_000]
        after = chance.choice(near) // 60 * 60 - chance.randint(0, 2 * 1440) * 60
        wanted = reference(expression, zone, after, after + SPAN_S)
        assert taken(expression, zone, after, after + SPAN_S) == wanted, (expression, after)


@pytest.mark.parametrize("zone", ZONES)
def test_the_instants_are_the_same_from_any_moment(zone: str) -> None:
    """The scheduler asks again and again: what comes next must not depend on when it asks."""
    chance = random.Random(f"any moment in {zone}")
    for expression in itertools.islice(expressions(chance), 12):
        begin = (changes(zone, chance.randint(2008, 2026)) or [1_800_000_000])[-1] - DAY_S
        known = taken(expression, zone, begin, begin + SPAN_S)
        after = begin + chance.randint(0, 2 * DAY_S)
        later = [at for at in known if at > after]
        assert taken(expression, zone, after, begin + SPAN_S) == later, (expression, after)


def fields(low: int, high: int, *more: str) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    pair = st.tuples(number, number).map(sorted)
    term = st.one_of(
        *(number.map(str), pair.map("{0[0]}-{0[1]}".format), st.sampled_from(["*", *more])),
        st.tuples(number, st.integers(1, 31)).map("{0[0]}/{0[1]}".format),
        st.integers(1, 31).map("*/{}".format),
    )
    return st.just("*") | st.lists(term, min_size=1, max_size=3).map(",".join)


WEEKDAYS = fields(0, 7, "1#5", "7#1", "0#3", "5L", "0L", "MON", "SUN#5")


@given(
    st.tuples(
        *(fields(0, 59), fields(0, 59), fields(0, 23)),
        *(fields(1, 31, "L", "LW"), fields(1, 12, "FEB"), WEEKDAYS),
    ).map(" ".join),
    st.integers(0, 4 * 10**9).map(lambda second: datetime(1970, 1, 1) + timedelta(seconds=second)),  # noqa: DTZ001
)
def test_wall_times_are_those_of_cronsim(expression: str, wall: datetime) -> None:
    try:
        known = CronSim(expression, wall)
    except CronSimError:
        with pytest.raises(CronSimError):
            Walls(expression)
        return
    found = Walls(expression).after(wall)
    for wanted in itertools.islice(known, 4):
        if wanted.year > (wall + timedelta(seconds=1)).year + YEARS_MAX:
            assert next(found, None) is None, "cronsim looks at 50 years"
            break
        assert next(found) == wanted
        wall = wanted


@given(st.integers(1_000, 10**9), st.integers(0, 10**12), st.integers(0, 2 * 10**12))
def test_an_interval_has_no_gap_and_no_overlap(every: int, start: int, after: int) -> None:
    first, second = itertools.islice(Every(every, start).after(after), 2)
    assert second - first == every and (first - start) % every == 0
    assert first > after and (first - every <= after or first == start)


def test_seconds() -> None:
    """Six fields have the same rules: this wall time exists twice, and fires once."""
    begin = int(datetime(2027, 10, 30, 12, tzinfo=UTC).timestamp())
    known = taken("15 30 2 * * *", "Europe/Berlin", begin, begin + DAY_S)
    assert [str(datetime.fromtimestamp(at, UTC)) for at in known] == ["2027-10-31 00:30:15+00:00"]


def test_the_search_of_a_steady_pace_goes_as_far_as_that_of_a_fixed_time() -> None:
    """29 February that is a Sunday: nine years ahead, and some weeks."""
    after_ms = int(datetime(2023, 1, 2, tzinfo=UTC).timestamp() * 1000)
    wanted_ms = int(datetime(2032, 2, 29, tzinfo=UTC).timestamp() * 1000)
    for expression in ("0 */12 29 2 */7", "0 0 29 2 */7"):
        assert next(Cron(expression, "UTC").after(after_ms)) == wanted_ms


@pytest.mark.parametrize(
    ("expression", "zone"),
    [("* 2 * 3 7L", "Europe/Berlin"), ("* 2 * 3 SUN#2", "America/New_York")],
)
def test_wall_times_that_lie_in_a_gap_every_year_end_the_search(
    monkeypatch: pytest.MonkeyPatch, expression: str, zone: str
) -> None:
    """It went on to the year 9999: a third of a second for any such text of a producer."""
    looked_up: list[int] = []

    def counted(at: ZoneInfo, second: int) -> timedelta:
        looked_up.append(second)
        return offset(at, second)

    monkeypatch.setattr(cron, "offset", counted)
    assert list(Cron(expression, zone).after(1_800_000_000_000)) == []
    assert max(looked_up) - min(looked_up) <= (YEARS_MAX + 2) * 366 * 86_400


def test_the_changes_of_a_zone_are_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these looks at the clock changes of nine years: that took half a millisecond."""
    looked_up: list[int] = []

    def counted(at: ZoneInfo, second: int) -> timedelta:
        looked_up.append(second)
        return offset(at, second)

    monkeypatch.setattr(cron, "offset", counted)
    for minute in range(60):
        assert list(Cron(f"{minute},7 * 2 * 3 7L", "Europe/Paris").after(1_800_000_000_000)) == []
    assert len(looked_up) < 60 * 60
