"""The instants of a recurring timer, against a plain list of all of them."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duewheel.errors import ConfigError
from duewheel.schemas.request.header_values import parse_instants
from duewheel.wheel import recurrence as recurrence_module
from duewheel.wheel.cron_instants import Cron
from duewheel.wheel.recurrence import (
    LATE_MS,
    MISSED_MAX,
    PAUSED_MS,
    Recurrence,
    numbers_in,
    recurrence_of,
)

T0 = 1_800_000_000_000
HOUR_MS = 3_600_000
SLOWEST = Recurrence(None, "UTC", HOUR_MS, "skip", None, None, 0, paused=False)


def fired(recurrence: Recurrence, delays_ms: list[int], id_hash: int = 7) -> list[int]:
    """The due times of the firings of a timer that was written at T0, if each copy leaves so late
    as the delays say, one after the other.
    """
    now_ms = T0 + delays_ms[0]
    due_ms, found = recurrence.first(T0, T0, id_hash, now_ms), list[int]()
    for delay_ms in delays_ms[1:]:
        if due_ms is None:
            break
        now_ms = max(now_ms, due_ms + delay_ms)
        fires, following_ms = recurrence.following(due_ms, id_hash, now_ms)
        found += [due_ms] if fires else []
        assert following_ms is None or following_ms > due_ms
        due_ms = following_ms
    return found


POLICIES = st.sampled_from(["skip", "one", "all"])


@given(
    every_ms=st.integers(1_000, 10**7),
    missed=POLICIES,
    delays_ms=st.lists(st.integers(0, 5_000), min_size=2, max_size=20),
)
def test_an_interval_on_time_fires_at_each_instant(
    every_ms: int, missed: str, delays_ms: list[int]
) -> None:
    recurrence = replace(SLOWEST, interval_ms=every_ms, missed=missed)  # type: ignore[arg-type]
    wanted = [T0 + n * every_ms for n in range(1, len(delays_ms))]
    assert fired(recurrence, delays_ms) == wanted


@given(
    cron=st.sampled_from(["*/5 * * * *", "30 2 * * *", "0 8 * * MON-FRI", "15 0 8 1,15 * *"]),
    missed=POLICIES,
    late_ms=st.integers(LATE_MS + 1, 40 * 24 * HOUR_MS),
)
def test_after_an_outage_the_policy_chooses(cron: str, missed: str, late_ms: int) -> None:
    """One delay; then all goes on time."""
    zone = "Europe/Berlin"
    recurrence = Recurrence(cron, zone, 0, missed, None, None, 0, paused=False)  # type: ignore[arg-type]
    first_ms = recurrence.first(T0, T0, 7, T0)
    assert first_ms is not None
    now_ms = first_ms + late_ms
    past = list(itertools.takewhile(lambda at: at <= now_ms, Cron(cron, zone).after(T0)))
    gone = [at for at in past if at < now_ms - LATE_MS]
    found, due_ms = list[int](), first_ms
    while due_ms <= now_ms:
        fires, following_ms = recurrence.following(due_ms, 7, now_ms)
        found += [due_ms] if fires else []
        assert following_ms is not None
        due_ms = following_ms
    recent = [at for at in past if at not in gone]
    if missed == "all":
        # Of a timer without one distance all that are young enough by their own distance.
        assert set(recent) <= set(found) <= set(past)
        assert len(found) >= min(len(past), MISSED_MAX)
    else:
        assert found == {"skip": [], "one": gone[-1:]}[missed] + recent
    assert due_ms == next(Cron(cron, zone).after(now_ms))


@given(every_ms=st.integers(1_000, 10**6), late_ms=st.integers(LATE_MS, 10**10))
def test_of_an_interval_the_latest_thousand_fire(every_ms: int, late_ms: int) -> None:
    recurrence = replace(SLOWEST, interval_ms=every_ms, missed="all")
    due_ms, now_ms, found = T0, T0 + late_ms, 0
    while due_ms < now_ms - LATE_MS:
        fires, following_ms = recurrence.following(due_ms, 7, now_ms)
        found += fires
        assert following_ms is not None
        due_ms = following_ms
    assert found == min(MISSED_MAX, -(-(late_ms - LATE_MS) // every_ms))


def test_starts_and_ends_are_inclusive() -> None:
    starts_ms = T0 + 5 * HOUR_MS
    recurrence = replace(SLOWEST, starts_ms=starts_ms, ends_ms=starts_ms + 2 * HOUR_MS)
    assert fired(recurrence, [0] * 9) == [starts_ms + n * HOUR_MS for n in range(3)]
    assert replace(SLOWEST, ends_ms=T0 + 1).first(T0, T0, 7, T0) is None


def test_a_seed_that_replaces_another_begins_behind_what_that_has_fired() -> None:
    assert SLOWEST.first(T0, T0 + HOUR_MS, 7, T0 + HOUR_MS) == T0 + 2 * HOUR_MS


@pytest.mark.parametrize(("after_ms", "days"), [(-1, 0), (0, 1), (10 * 60_000, 1)])
def test_a_change_loses_no_instant_that_a_jitter_has_moved_behind_it(
    after_ms: int, days: int
) -> None:
    """A daily job that was set again half an hour after its instant, and before it fired."""
    daily = Recurrence("0 8 * * *", "UTC", 0, "skip", None, None, HOUR_MS, paused=False)
    shift_ms = daily.shift_ms(2_400_000)
    assert shift_ms == 2_400_000
    due_ms = T0 + shift_ms  # T0 is a day's 08:00
    set_ms = due_ms + after_ms
    assert daily.first(set_ms, set_ms, 2_400_000, set_ms) == due_ms + days * 24 * HOUR_MS
    hourly = replace(SLOWEST, jitter_ms=HOUR_MS)
    assert hourly.first(set_ms, set_ms, 2_400_000, set_ms) == set_ms + HOUR_MS + shift_ms


def test_a_jitter_moves_all_instants_of_a_name_alike() -> None:
    recurrence = replace(SLOWEST, jitter_ms=600_000)
    shifts = set()
    for id_hash in (1, 2, 600_000, 600_005):
        found = fired(recurrence, [0] * 5, id_hash)
        (shift,) = {at - T0 - n * HOUR_MS for n, at in enumerate(found, 1)}
        shifts.add(shift)
    assert len(shifts) == 4 and all(0 <= shift <= 600_000 for shift in shifts)


def test_a_paused_timer_rolls_and_never_fires() -> None:
    paused = replace(SLOWEST, paused=True)
    assert paused.first(T0, T0, 7, T0) == PAUSED_MS
    assert paused.following(T0, 7, T0) == (False, PAUSED_MS)


@pytest.mark.parametrize(
    ("cron", "zone"),
    [
        ("0 8 * * *", "Atlantis/Capital"),
        ("99 8 * * *", "UTC"),
        ("0 0 31 2 *", "UTC"),
        ("L/2 8 * * *", "UTC"),
        (",".join(["0-59"] * 40) + " 8 * * x", "UTC"),
    ],
)
def test_what_no_library_reads_is_refused(cron: str, zone: str) -> None:
    recurrence = Recurrence(cron, zone, 0, "skip", None, None, 0, paused=False)
    for _ in range(2):  # the second time from the cache
        with pytest.raises(ConfigError):
            recurrence.first(T0, T0, 7, T0)
    with pytest.raises(ConfigError):
        replace(recurrence, paused=True).first(T0, T0, 7, T0)


def test_an_expression_without_instants_ends() -> None:
    recurrence = Recurrence("0 0 */31 * MON#5", "UTC", 0, "skip", None, None, 0, paused=False)
    assert recurrence.first(T0, T0, 7, T0) is None


def test_beyond_the_calendar_no_instant_can_be_computed() -> None:
    late = Recurrence("0 8 * * *", "Europe/Berlin", 0, "skip", 10**15 - 1, None, 0, paused=False)
    with pytest.raises(ConfigError, match="no instant can be computed"):
        late.first(T0, T0, 7, T0)


def test_headers_are_read() -> None:
    headers = {
        b"TIMER_EVERY": b"90s",
        b"TIMER_MISSED": b"one",
        b"TIMER_STARTS_MS": b"2027-01-15T08:00:00Z",
        b"TIMER_ENDS_MS": b"1900000000000",
        b"TIMER_JITTER_MS": b"50",
        b"TIMER_PAUSED": b"a note",
    }
    wanted = Recurrence(None, "UTC", 90_000, "one", T0, 1_900_000_000_000, 50, paused=True)
    other = {b"TIMER_CRON": b"0 8 * * *", b"TIMER_ZONE": b"Asia/Tokyo"}
    numbers = numbers_in([headers, other])
    assert recurrence_of(headers, numbers) == wanted
    assert recurrence_of(other, numbers) == replace(
        SLOWEST, cron="0 8 * * *", zone="Asia/Tokyo", interval_ms=0
    )


def test_instants_of_many_timers_are_parsed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """One by one, those of a chunk would hold up all deliveries for seconds."""
    calls = list[int]()

    def counted(values: Any) -> Any:
        calls.append(len(values))
        return parse_instants(values)

    monkeypatch.setattr(recurrence_module, "parse_instants", counted)
    many = [
        {b"TIMER_EVERY": b"90s", b"TIMER_STARTS_MS": b"2027-01-15T08:%02d:00Z" % minute}
        for minute in range(60)
    ]
    numbers = numbers_in(many)
    starts_ms = [recurrence_of(headers, numbers).starts_ms for headers in many]
    assert starts_ms == [T0 + minute * 60_000 for minute in range(60)]
    assert calls == [60]
