"""The timestamps of records, between this host's clock and the brokers'."""

from __future__ import annotations

import pytest

from duewheel.kafka.publish.record_clock import RecordClock
from duewheel.testing import ManualClock


def clocks(host_ms: int) -> tuple[ManualClock, RecordClock]:
    clock = ManualClock(host_ms)
    return clock, RecordClock(clock)


def test_before_a_commit_it_is_this_hosts_clock() -> None:
    _, records = clocks(50_000)
    assert records.now_ms() == records.waits_from_ms() == 50_000


@pytest.mark.parametrize(
    ("host_ms", "stamp_ms", "waits_from_ms"),
    [
        (50_300, 50_300, 50_300),  # near enough
        (90_000, 51_000, 51_000),  # ahead: topics would refuse it, and parked rows wait too long
        (10_000, 49_000, 10_000),  # set back: parked rows wait from the earlier clock on
    ],
)
def test_after_a_commit_it_stays_near_the_brokers(
    host_ms: int, stamp_ms: int, waits_from_ms: int
) -> None:
    clock, records = clocks(host_ms)
    records.note_stamp(50_000, clock.boottime_ms())
    assert (records.now_ms(), records.waits_from_ms()) == (stamp_ms, waits_from_ms)


def test_no_record_precedes_its_due_time_on_a_clock_that_was_set_back() -> None:
    clock, records = clocks(10_000)
    records.note_stamp(50_000, clock.boottime_ms())
    assert records.now_ms(due_ms=49_900) == 49_900


def test_a_slow_commit_shows_the_brokers_clock_as_a_span() -> None:
    """The stamp is from any moment of it: nothing in the span is corrected."""
    clock, records = clocks(53_500)
    records.note_stamp(50_000, clock.boottime_ms() - 3_000)
    assert records.now_ms() == 53_500
