"""The closing of slots, by the readings of the brokers' clock."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from duewheel.clock import SystemClock
from duewheel.testing import ManualClock
from duewheel.wheel.dequeue.clock_guard import ClockGuard

BOUND_MS = 1_000


class GuardedHost:
    """A host, brokers whose clock is `broker_error_ms` off, and transactions between them."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.guard = ClockGuard(self.clock, BOUND_MS)
        self.broker_error_ms = 0

    def commit(self, until_stamped_ms: int = 1, after_it_ms: int = 2) -> None:
        began_ms = self.clock.boottime_ms()
        self.clock.sleep(until_stamped_ms / 1000)
        stamp_ms = self.clock.true_ms + self.broker_error_ms
        self.clock.sleep(after_it_ms / 1000)
        self.guard.read(stamp_ms, began_ms)

    def closes(self) -> bool:
        """Whether slots may be closed, and then up to now."""
        closing_ms = self.guard.check(0)
        assert closing_ms in {None, self.clock.now_ms()}
        assert self.guard.blocks_closing == (closing_ms is None)
        return not self.guard.blocks_closing


@pytest.fixture
def world() -> GuardedHost:
    return GuardedHost()


def test_nothing_is_closed_before_the_brokers_clock_is_known(world: GuardedHost) -> None:
    assert not world.closes()
    assert world.guard.must_read
    world.commit()
    assert world.closes()


def test_brokers_that_do_not_say_change_nothing(world: GuardedHost) -> None:
    world.guard.read(None, world.clock.boottime_ms())
    assert not world.closes()
    world.commit()
    world.guard.read(None, world.clock.boottime_ms())
    assert world.closes()
    assert world.guard.ahead_ms() == 2
    world.clock.sleep(61)
    world.guard.read(None, world.clock.boottime_ms())
    assert not world.closes()


@pytest.mark.parametrize(
    ("ahead_ms", "closes"), [(-3_600_000, True), (998, True), (999, False), (3_600_000, False)]
)
def test_a_clock_that_is_wrong_at_boot(world: GuardedHost, ahead_ms: int, closes: bool) -> None:
    """Two milliseconds of the reading count against the host."""
    world.clock.step(ahead_ms)
    world.commit()
    assert world.guard.ahead_ms() == ahead_ms + 2
    assert world.closes() == closes


def test_a_step_counts_before_the_next_commit_and_ends_with_its_correction(
    world: GuardedHost,
) -> None:
    world.commit()
    world.clock.step(3_600_000)
    assert not world.closes()
    world.commit()
    assert not world.closes()
    world.clock.step(-3_600_000)
    assert world.closes()


def test_a_step_back_holds_nothing(world: GuardedHost) -> None:
    world.commit()
    world.clock.step(-3_600_000)
    assert world.closes()
    assert world.guard.ahead_ms() == 2 - 3_600_000


def test_small_steps_add_up(world: GuardedHost) -> None:
    """Also over commits: what counts is how far the clocks are apart."""
    for _ in range(2):
        world.commit()
        world.clock.step(499)
        assert world.closes()
    world.clock.step(1)
    assert not world.closes()
    world.commit()
    assert not world.closes()


def test_a_suspend_is_no_step_but_the_clock_is_read_again(world: GuardedHost) -> None:
    world.commit()
    world.clock.sleep(60)
    assert world.closes()
    world.clock.sleep(3_600)
    assert not world.closes()
    assert world.guard.must_read
    assert world.guard.ahead_ms() == 2
    world.commit()
    assert world.closes()


def test_a_host_that_wakes_up_with_a_wrong_clock_stays_held(world: GuardedHost) -> None:
    world.commit()
    world.clock.sleep(3_600)
    world.clock.step(5_000)
    world.commit()
    assert not world.closes()


def test_slow_transactions_do_no_harm_once_there_was_a_quick_one(world: GuardedHost) -> None:
    world.commit(after_it_ms=5_000)
    assert not world.closes(), "all of these five seconds may be the clock's"
    world.commit()
    for _ in range(3):
        world.commit(until_stamped_ms=4_000, after_it_ms=5_000)
        assert world.guard.ahead_ms() == 2
    world.clock.step(999)
    assert not world.closes()


def test_a_broker_s_clock_that_is_set_is_followed(world: GuardedHost) -> None:
    world.commit()
    world.broker_error_ms = -10_000
    world.commit()
    assert world.guard.ahead_ms() == 10_000 - 1
    assert not world.closes()
    world.broker_error_ms = 7_000
    world.commit()
    assert world.guard.ahead_ms() == 2 - 7_000
    assert world.closes()


def test_the_log_tells_once_a_minute_and_when_it_is_over(world: GuardedHost) -> None:
    world.commit()
    with capture_logs() as logs:
        assert world.closes()
        world.clock.step(90_000)
        for second in range(121):
            if second % 5 == 0:
                world.commit(0, 0)
            assert not world.closes()
            world.clock.sleep(1)
        world.clock.step(-180_000)
        assert world.closes()
        world.clock.step(90_000)
        assert world.closes()
        assert world.closes()
    told = [line["event"].partition("brokers'")[2] for line in logs]
    held, late = ": no slot is closed until it is right", ": timers leave late"
    assert told == [held, held, held, late, " again"]
    assert {line["log_level"] for line in logs} == {"warning"}
    assert [line.get("ahead_ms") for line in logs] == [90_000, 90_000, 90_000, -90_000, None]


def test_a_wait_for_a_reading_is_told_only_if_it_lasts(world: GuardedHost) -> None:
    """At a start the clock is asked for before the first commit, and known right after it."""
    with capture_logs() as logs:
        assert not world.closes()
        world.commit()
        assert world.closes()
        world.clock.sleep(61)
        assert not world.closes()
        world.commit()
        assert world.closes()
    assert logs == []
    with capture_logs() as logs:
        world.clock.sleep(61)
        for _ in range(30):
            assert not world.closes()
            world.clock.sleep(1)
        world.commit()
        assert world.closes()
    told = [line["event"].partition("brokers'")[2].partition(" (")[0] for line in logs]
    assert told == [" clock is not known", " again"]


def test_a_wrong_clock_is_not_right_because_a_reading_is_missing(world: GuardedHost) -> None:
    world.commit()
    world.clock.step(5_000)
    with capture_logs() as logs:
        assert not world.closes()
        world.clock.sleep(61)
        world.clock.step(-5_000)
        assert not world.closes()
        assert len(logs) == 1
        world.commit()
        assert world.closes()
    assert len(logs) == 2


def test_the_host_s_boottime_goes_on_by_itself() -> None:
    clock = SystemClock()
    before_ms = clock.boottime_ms()
    clock.sleep(0.02)
    assert clock.boottime_ms() - before_ms >= 20
