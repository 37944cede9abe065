"""An instant between two milliseconds becomes the later one, whichever way it comes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duewheel.api.due_time import DueTime
from duewheel.config.instants import epoch_ms, ms_up, parse_instant
from duewheel.config.range_ends import Bound

EARLY = datetime(2027, 1, 15, 8, 0, 0, 400, tzinfo=UTC)  # 0.4 ms behind a whole one
LATER_MS = 1_800_000_000_001


def test_each_door_rounds_up() -> None:
    assert DueTime.of(deliver_at=EARLY).number == LATER_MS  # the client
    assert DueTime.of(delay=timedelta(microseconds=1)).number == 1
    assert epoch_ms(parse_instant(EARLY.isoformat())) == LATER_MS  # commands, files, HTTP
    assert Bound.parse("--from", EARLY.isoformat()).time_ms == LATER_MS


@given(st.integers(0, 4_000_000_000_000))
def test_a_whole_millisecond_stays(whole_ms: int) -> None:
    """As a float of seconds, too, though most of these are a little off."""
    when = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=whole_ms)
    assert ms_up(when) == ms_up(whole_ms) == ms_up(whole_ms / 1_000, 1_000) == whole_ms


@pytest.mark.parametrize("number", [float("nan"), float("inf"), Decimal("-inf")])
def test_what_is_no_instant(number: float | Decimal) -> None:
    with pytest.raises((ValueError, OverflowError)):
        ms_up(number)
