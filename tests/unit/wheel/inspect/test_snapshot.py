"""Pending timers of a half-delivered slot, by a snapshot, for any order on disk.

An owner takes both partitions in one batch: its slot has all of one, then all of the other. Its
standby takes them in turns, so what the owner has delivered is no prefix of the standby's slot.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.harness.recovery_world import RecoveryWorld
from tests.harness.standbys import Standby, world

from duewheel.wheel.inspect.listing import Filter, list_pending
from duewheel.wheel.inspect.pending_counts import PendingTimers
from duewheel.wheel.slots import WheelConfig
from duewheel.wheel.storage.data_directory import DataDirectory

__all__ = ["world"]

ROWS = {f"timers-{partition}@{offset}" for partition in (0, 1) for offset in range(6)}


def pending(path: Path, wheel: WheelConfig) -> set[str]:
    """What is listed, which must be what is counted."""
    directory = DataDirectory(path, wheel)
    listed = [timer.source for timer in list_pending(directory, Filter(), 100)]
    paged: list[str] = []
    after = None
    while page := list(list_pending(directory, Filter(after=after), 1)):
        paged.append(page[0].source)
        after = page[0].place
    counted = PendingTimers(directory).count()
    directory.close()
    assert len(listed) == len(set(listed)) == counted.total == sum(counted.by_topic.values())
    assert paged == listed
    assert counted.slot_max == len(listed)
    return set(listed)


def out(world: RecoveryWorld) -> set[str]:
    return {source.decode() for source in world.publisher.sources()}


def half_way(world: RecoveryWorld, path: Path) -> Standby:
    """A standby that has taken a slot when two rows of its first partition were out; now four."""
    standby = Standby(world, path / "standby")
    for partition in (0, 1):
        world.write(partition, *[5] * 6)
    world.ingest()
    world.at_slot(6, ticks=1)
    standby.follower.tick()
    for _ in range(6):
        standby.ingest(rows=1)  # of each partition
    world.at_slot(6, ticks=1)
    standby.follower.tick()
    assert out(world) == {f"timers-0@{offset}" for offset in range(4)}
    return standby


def test_a_standby_counts_what_its_owner_has_pending(world: RecoveryWorld, tmp_path: Path) -> None:
    standby = half_way(world, tmp_path)
    assert pending(world.path, world.wheel) == ROWS - out(world)
    assert pending(standby.path, world.wheel) == ROWS - out(world)
    standby.finish()


@pytest.mark.parametrize("ticks", [0, 1, 2, 3])
def test_after_a_take_over_only_what_is_left_counts(
    world: RecoveryWorld, tmp_path: Path, ticks: int
) -> None:
    standby = half_way(world, tmp_path)
    standby.take_over()
    standby.become_the_world()
    world.at_slot(6, ticks)
    assert 4 <= len(out(world)) < len(ROWS)
    assert pending(world.path, world.wheel) == ROWS - out(world)
    world.finish()


def test_files_that_were_read_again_have_another_order(
    world: RecoveryWorld, tmp_path: Path
) -> None:
    half_way(world, tmp_path).kill()
    world.kill()
    shutil.rmtree(world.path)
    world.publisher.silent_ms = 61_000
    assert world.start() == "taken over"
    for _ in range(6):
        world.ingest(rows=1)
    world.at_slot(6, ticks=2)
    assert 4 < len(out(world)) < len(ROWS)
    assert pending(world.path, world.wheel) == ROWS - out(world)
    world.finish()
