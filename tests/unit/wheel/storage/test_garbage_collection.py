"""The durable checkpoint, and the unlinking of hours without pending timers."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.harness.local_world import LocalWorld
from tests.harness.timer_rows import P0

from duewheel.checkpoints.cancel_bounds import CancelBounds
from duewheel.checkpoints.durable_checkpoint import FILE_NAME, Durable
from duewheel.checkpoints.process_role import Role
from duewheel.errors import CorruptFile
from duewheel.runtime.checkpointer import DurableCheckpoints
from duewheel.wheel.slots import HOUR_MS, WheelConfig
from duewheel.wheel.storage.full_check import check

WHEEL = WheelConfig(precision_ms=1_000, slots=20_000, window_ms=4 * HOUR_MS, margin_ms=0)
START_MS = 500_000 * HOUR_MS


class CollectedWorld(LocalWorld):
    """A shard whose files go when nothing in them is pending."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, WHEEL, starts={P0: 0}, now_ms=START_MS)
        self.checkpoints = DurableCheckpoints(self.path)

    def put_in(self, *delays_ms: int) -> None:
        """Timers due so long from now."""
        self.put(*(self.clock.now_ms() - START_MS + delay for delay in delays_ms))

    def pass_time(self, duration_ms: int) -> None:
        self.clock.set(self.clock.now_ms() + duration_ms)
        self.drain()

    def hours(self) -> list[str]:
        logs = sorted(path.name for path in (self.path / "timerlog").iterdir())
        assert logs == sorted(path.name for path in (self.path / "messages").iterdir())
        return logs

    def close(self) -> None:
        self.checkpoints.close()
        self.kill()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[CollectedWorld]:
    world = CollectedWorld(tmp_path / "data")
    yield world
    world.close()


def test_what_it_says_is_read_back(world: CollectedWorld) -> None:
    world.put_in(1_000, HOUR_MS, 2 * HOUR_MS)
    written = world.checkpoints.write()
    assert Durable.read(world.path) == written
    assert written.marks == {P0: 3}
    assert len(written.hours) == 3
    assert world.checkpoints.write() == written


def test_damage_is_noticed(world: CollectedWorld) -> None:
    assert Durable.read(world.path) is None
    world.put_in(1_000)
    world.checkpoints.write()
    path = world.path / FILE_NAME
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptFile, match="checksum"):
        Durable.read(world.path)
    # Dequeue goes on without, ingest writes a new one.
    world.put_in(0, HOUR_MS)
    world.pass_time(HOUR_MS + 120_000)
    assert len(world.sources()) == 3
    DurableCheckpoints(world.path).write()
    assert Durable.read(world.path) is not None


def test_hours_go_below_both_what_is_delivered_and_what_is_durable(world: CollectedWorld) -> None:
    world.put_in(*(hour * HOUR_MS + 1_000 for hour in range(4)))
    assert len(world.hours()) == 4
    world.pass_time(2 * HOUR_MS + 2_000)
    world.pass_time(120_000)
    assert len(world.hours()) == 4, "nothing is durable yet"
    world.checkpoints.write()
    world.pass_time(HOUR_MS)
    # Delivered since, but the checkpoint does not know.
    assert len(world.hours()) == 2
    world.checkpoints.write()
    world.pass_time(120_000)
    assert len(world.hours()) == 1
    assert check(world.path, WHEEL).ok


def test_an_hour_that_is_given_up_is_unlinked_by_the_next_process(world: CollectedWorld) -> None:
    """A kill between raising gc_hour and unlinking."""
    world.put_in(1_000, HOUR_MS)
    world.pass_time(HOUR_MS + 2_000)
    world.checkpoints.write()
    state = world.shard.directory(Role.DEQUEUE).state
    state.live.raise_gc_hour(500_001)
    assert len(world.hours()) == 2
    world.restart()
    world.pass_time(61_000)
    assert len(world.hours()) == 1
    world.put_in(0, HOUR_MS)
    world.pass_time(2 * HOUR_MS)
    assert len(world.sources()) == 4
    assert check(world.path, WHEEL).ok


def test_a_disk_that_takes_no_file_keeps_nothing_from_being_delivered_or_collected(
    world: CollectedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cancels rely on cannot be replaced then, and is removed: that says no less."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    write = CancelBounds.write
    with monkeypatch.context() as disk:
        world.put_in(1_000, 2 * HOUR_MS)
        disk.setattr(CancelBounds, "write", full)
        world.pass_time(2_000)
        assert world.sources() == ["timers-0@0"]
        disk.setattr(CancelBounds, "write", write)
        world.pass_time(2_000)
        known = CancelBounds.read(world.path)
        assert known is not None and known.unknown_ends == []
        before = world.hours()
        world.pass_time(HOUR_MS)
        world.checkpoints.write()
        disk.setattr(CancelBounds, "write", full)
        world.pass_time(60_000)
        assert world.hours() == before[1:]
        assert CancelBounds.read(world.path) is None
    world.pass_time(2_000)
    known = CancelBounds.read(world.path)
    assert known is not None and known.unknown_ends == []


def test_files_stay_bounded_over_many_laps(world: CollectedWorld) -> None:
    """Twice the ring's length, an hour at a time."""
    for _ in range(24):
        world.put_in(*range(0, 4 * HOUR_MS, 600_000))
        world.checkpoints.write()
        world.pass_time(HOUR_MS)
        assert len(world.hours()) <= 7
    world.pass_time(5 * HOUR_MS)
    delivered = world.sources()
    assert len(delivered) == len(set(delivered)) == world.next_offset
    assert check(world.path, WHEEL).ok


def test_files_that_others_put_there_are_passed_over(world: CollectedWorld) -> None:
    for name in (".nfs0001", "lost+found", "2027011508.bak"):
        (world.path / "timerlog" / name).touch()
    world.put_in(1_000)
    world.restart(Role.INGEST)
    world.checkpoints.write()
    world.pass_time(3 * HOUR_MS)
    assert len(world.sources()) == 1
    assert check(world.path, WHEEL).ok
