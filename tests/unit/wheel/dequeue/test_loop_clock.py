"""The dequeue loop on a host whose clock is set, wrong or suspended: closings and deliveries."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs
from tests.harness.local_world import NOW_MS, LocalWorld
from tests.harness.timer_rows import P0

from duewheel.checkpoints.process_role import Role
from duewheel.runtime.dequeue_metrics import DequeueMetrics
from duewheel.wheel.dequeue.statistics import Statistics
from duewheel.wheel.slots import WheelConfig
from duewheel.wheel.storage.data_directory import DataDirectory

HOUR_MS = 3_600_000
PRECISION_MS = 50
WHEEL = WheelConfig(PRECISION_MS, 100_000, window_ms=HOUR_MS, margin_ms=0)


def deliver(world: LocalWorld) -> list[int]:
    """All that leaves now; offsets of what has left so far."""
    world.drain()
    return world.offsets()


def floor_ms(world: LocalWorld) -> int:
    """End of the last closed slot, from the start."""
    return world.floor * PRECISION_MS - NOW_MS


def floor_ahead_s(world: LocalWorld) -> float:
    """As the metric says it."""
    beside = DataDirectory(world.path, WHEEL)
    source = DequeueMetrics(beside, world.clock, Statistics)
    found = {each.name: each.samples for each in source.families()}
    beside.close()
    (sample,) = found["duewheel_floor_ahead_seconds"]
    return float(sample.value)


def host_clock(world: LocalWorld) -> tuple[int, bool]:
    return world.shard.directory(Role.DEQUEUE).state.live.host_clock


@pytest.fixture
def world(tmp_path: Path) -> LocalWorld:
    return LocalWorld(tmp_path / "data", WHEEL, starts={P0: 0}, chunk_records=2)


def test_a_step_forward_delivers_nothing_early(world: LocalWorld) -> None:
    """Neither before the next commit nor after it; once the clock is right, it goes on alone."""
    world.put(4_000, 10_000, HOUR_MS - 100_000)
    world.drain()
    world.clock.step(HOUR_MS)
    for second in range(1, 8):
        world.clock.sleep(1)
        assert deliver(world) == []
        assert floor_ms(world) == 0
        assert host_clock(world) == (HOUR_MS, second > 1), "told at the beginning of a tick"
    world.clock.step(-HOUR_MS)
    assert deliver(world) == [0]
    world.clock.sleep(3)
    assert deliver(world) == [0, 1]
    assert host_clock(world) == (0, False)


def test_a_pause_shows_that_the_clocks_agree(world: LocalWorld) -> None:
    """Also after a start during the pause, when the brokers' clock is not known at first."""
    world.drain()
    world.shard.directory(Role.INGEST).state.live.pause(Role.DEQUEUE, on=True)
    world.restart(Role.DEQUEUE)
    for _ in range(5):
        world.clock.sleep(1)
        world.drain()
    assert host_clock(world) == (0, False)


def test_the_progress_is_told_every_second_while_closing_is_blocked(world: LocalWorld) -> None:
    world.drain()
    world.clock.step(HOUR_MS)
    before = len(world.publisher.committed)
    for _ in range(100):
        world.clock.sleep(0.1)
        world.drain()
    assert len(world.publisher.committed) - before == 10
    progress = world.publisher.committed[-1][1]
    assert progress.delivered_slot == NOW_MS // PRECISION_MS


def test_what_is_closed_already_is_delivered_while_closing_is_blocked(world: LocalWorld) -> None:
    world.put(50, 50, 50, 50, 100)
    world.clock.sleep(0.05)
    assert world.tick()
    for step_ms in (HOUR_MS, -2 * HOUR_MS):
        world.clock.step(step_ms)
        assert world.tick() == (step_ms > 0)
    assert world.offsets() == [0, 1, 2, 3]
    world.clock.step(HOUR_MS)
    world.clock.sleep(0.05)
    assert deliver(world) == [0, 1, 2, 3, 4]


def test_clocks_that_were_ahead_together_make_timers_late_and_that_is_told(
    world: LocalWorld,
) -> None:
    """Slots that were closed too early stay closed; what comes then leaves behind them."""
    world.put(HOUR_MS - 1_000, HOUR_MS + 9_000)
    world.clock.step(HOUR_MS)
    world.publisher.broker_error_ms = HOUR_MS
    for _ in range(2):  # held until the brokers' clock has been read again
        world.clock.sleep(1)
        world.drain()
    assert deliver(world) == [0], "an hour early: both clocks said that it was due"
    assert (floor_ms(world), floor_ahead_s(world)) == (HOUR_MS + 2_000, 0)
    world.clock.step(-HOUR_MS)
    world.publisher.broker_error_ms = 0
    with capture_logs() as logs:
        assert deliver(world) == [0]
        world.put(3_000)
        for _ in range(120):
            world.clock.sleep(1)
            assert deliver(world) == [0]
    told = [line for line in logs if "closed slots lie in the future" in line["event"]]
    first_ms, second_ms = (line["floor_ahead_ms"] for line in told)
    assert 0 <= HOUR_MS - first_ms < 5_000 and first_ms - second_ms == 60_000
    assert floor_ahead_s(world) == (HOUR_MS - 120_000) / 1000
    world.clock.sleep(HOUR_MS / 1000 - 120)
    assert deliver(world) == [0]
    world.clock.sleep(PRECISION_MS / 1000)
    assert deliver(world) == [0, 2]
    assert floor_ahead_s(world) == 0
    world.clock.sleep(9)
    assert deliver(world) == [0, 2, 1]


@pytest.mark.parametrize(("ahead_ms", "delivered"), [(1_000, [0]), (1_001, []), (HOUR_MS, [])])
def test_a_clock_that_is_ahead_at_boot(
    world: LocalWorld, ahead_ms: int, delivered: list[int]
) -> None:
    """As far as the bound allows, timers are early by the brokers' clock; no further."""
    world.put(1_000, 1_050)
    world.shard.kill(Role.DEQUEUE)
    world.clock.step(ahead_ms)
    world.shard.start_dequeue()
    assert deliver(world) == delivered
    world.clock.step(-ahead_ms)
    world.clock.sleep(1.05)
    assert deliver(world) == [0, 1]


def test_a_start_with_a_right_clock_tells_nothing_about_it(world: LocalWorld) -> None:
    world.put(1_000)
    world.drain()
    world.shard.kill(Role.DEQUEUE)
    with capture_logs() as logs:
        world.shard.start_dequeue()
        world.clock.sleep(1)
        assert deliver(world) == [0]
    assert [line["event"] for line in logs if "clock" in line["event"]] == []


def test_a_clock_that_is_behind_at_boot_delivers_late_and_reopens_nothing(
    world: LocalWorld,
) -> None:
    world.clock.sleep(1)
    world.drain()
    world.shard.kill(Role.DEQUEUE)
    world.clock.step(-HOUR_MS)
    world.shard.start_dequeue()
    world.put(500, 1_100)
    world.clock.sleep(2)
    assert deliver(world) == []
    assert floor_ms(world) == 1_000
    world.clock.step(HOUR_MS)
    assert deliver(world) == [0, 1]
    assert floor_ms(world) == 3_000


def test_after_a_suspend_the_brokers_clock_is_read_first(world: LocalWorld) -> None:
    world.put(HOUR_MS - 1_000)
    world.drain()
    world.clock.sleep(HOUR_MS / 1000)
    # Both of the host's clocks were woken up wrong: by the brokers' it is earlier.
    world.publisher.broker_error_ms = -2_000
    assert deliver(world) == []
    world.publisher.broker_error_ms = 0
    world.clock.sleep(1)
    world.drain()
    assert deliver(world) == [0]


def test_a_first_commit_in_doubt_leaves_the_clock_to_the_next(tmp_path: Path) -> None:
    """Nothing was read from the brokers yet: nothing is closed."""
    world = LocalWorld(tmp_path / "data", WHEEL, starts={P0: 0}, chunk_records=2)
    world.put(50)
    world.shard.kill(Role.DEQUEUE)
    fates = ["doubt"]
    world.publisher.fate = lambda: fates.pop() if fates else "commit"
    world.clock.step(HOUR_MS)
    world.shard.start_dequeue()
    assert deliver(world) == []
    world.clock.step(-HOUR_MS)
    world.clock.sleep(1)
    assert deliver(world) == [0]


def test_brokers_that_do_not_tell_their_clock_are_asked_again_in_measure(
    world: LocalWorld,
) -> None:
    """Nothing is closed, and the brokers are not flooded with commits."""
    world.put(50)
    world.shard.kill(Role.DEQUEUE)
    world.publisher.stamps = False
    world.shard.start_dequeue()
    before = len(world.publisher.committed)
    for _ in range(100):
        world.clock.sleep(0.1)
        assert deliver(world) == []
    world.publisher.stamps = True
    assert 10 <= len(world.publisher.committed) - before <= 20
    world.clock.sleep(1)
    assert deliver(world) == [0]


@pytest.mark.parametrize("step_ms", [-HOUR_MS, HOUR_MS])
def test_intervals_survive_a_step(world: LocalWorld, step_ms: int) -> None:
    """Of signs of life and of idle progress; collecting has its own tests."""
    world.drain()
    world.clock.step(step_ms)
    world.shard.directory(Role.DEQUEUE).state.live.note_host_clock(0, blocks_closing=False)
    world.clock.sleep(0.5)
    world.tick()
    assert host_clock(world)[0] == step_ms
    before = len(world.publisher.committed)
    world.clock.sleep(5)
    world.tick()
    assert len(world.publisher.committed) == before + 1


def test_metrics_show_the_clock(world: LocalWorld) -> None:
    world.drain()
    world.clock.step(90_000)
    for _ in range(2):
        world.clock.sleep(1)
        world.drain()
    dequeue = world.dequeue
    beside = DataDirectory(world.shard.path, WHEEL)
    source = DequeueMetrics(beside, world.clock, lambda: dequeue.statistics)
    seen = {family.name: family.samples[0].value for family in source.families() if family.samples}
    assert seen["duewheel_clock_skew_seconds"] == 90
    assert seen["duewheel_closing_blocked"] == 1
    beside.close()
