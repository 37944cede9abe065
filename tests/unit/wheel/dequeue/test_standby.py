"""A standby, on real files: it has the rows that its owner has closed, and no others."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.harness.local_world import PRECISION_MS
from tests.harness.reconfiguring import OTHER, reconfigure
from tests.harness.recovery_world import RecoveryWorld
from tests.harness.standbys import Standby, half_way, marks_of, world
from tests.harness.timelines import spoil_timeline
from tests.harness.timer_rows import TIMER_TOPIC

from duewheel.checkpoints.process_role import Role
from duewheel.checkpoints.progress import NOBODY
from duewheel.errors import RecoveryPending, SettingsChange
from duewheel.runtime.checkpointer import DurableCheckpoints
from duewheel.wheel.append.staged_batch import StagedBatch, Written
from duewheel.wheel.dequeue.standby import Follower
from duewheel.wheel.dequeue_config import DequeueConfig
from duewheel.wheel.recovery.kept_files import close_at
from duewheel.wheel.slots import WheelConfig
from duewheel.wheel.storage.data_directory import DataDirectory
from duewheel.wheel.storage.full_check import check

__all__ = ["world"]


def test_it_takes_nothing_that_the_owner_may_still_place(
    world: RecoveryWorld, tmp_path: Path
) -> None:
    standby = Standby(world, tmp_path / "standby")
    world.write(0, 1, 5, 30, 30)
    world.ingest()
    assert standby.ingest()
    assert set(marks_of(standby.state).values()) <= {0}
    world.at_slot(2)  # closed with all four below C
    world.write(0, 4, 9)
    world.ingest()
    standby.follower.tick()
    assert standby.ingest()
    assert marks_of(standby.state)[TIMER_TOPIC, 0] == 4
    progress = world.publisher.peek()
    assert progress is not None
    assert standby.state.close() == close_at(progress)
    standby.finish()


def test_a_late_row_lies_where_the_owner_has_put_it(world: RecoveryWorld, tmp_path: Path) -> None:
    """One chunk of the slot to which it was late is out; the rest is the standby's."""
    standby = Standby(world, tmp_path / "standby")
    world.write(0, 3, 5, 5)
    world.ingest()
    world.at_slot(3)
    world.write(0, 1, 2, 1)  # late: they go to slot 4, and leave before slot 5
    world.ingest()
    world.at_slot(4, ticks=1)
    standby.follower.tick()
    standby.ingest()
    assert len(world.publisher.sources()) == 3
    standby.finish()


def test_it_follows_while_a_batch_is_being_placed(
    world: RecoveryWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows stay where they are, though the owner delivers their slots meanwhile."""
    standby = Standby(world, tmp_path / "standby")
    world.write(0, 2, 3, 3, 4, 4, 9)
    world.write(1, 3, 4, 8)
    world.ingest()
    world.at_slot(1)
    standby.follower.tick()
    standby.shard.start_ingest()
    write: Callable[..., Written] = StagedBatch.write

    def meanwhile(*args: Any) -> Written:
        written = write(*args)
        world.at_slot(4, ticks=2)
        standby.follower.tick()
        return written

    with monkeypatch.context() as patch:
        patch.setattr(StagedBatch, "write", meanwhile)
        standby.ingest()
    standby.finish()


def test_a_standby_that_was_killed_goes_on(world: RecoveryWorld, tmp_path: Path) -> None:
    standby = half_way(world, tmp_path)
    standby.ingest()
    marks = marks_of(standby.state)
    standby.kill()
    world.at_slot(20)
    standby.follow()
    assert standby.case() == ("standby", "all")
    assert marks_of(standby.state) == marks
    standby.ingest()
    standby.finish()


def test_a_standby_that_has_lost_power_keeps_its_checkpoint(
    world: RecoveryWorld, tmp_path: Path
) -> None:
    standby = half_way(world, tmp_path)
    standby.ingest()
    checkpoints = DurableCheckpoints(standby.path)
    checkpoints.write()
    checkpoints.close()
    world.at_slot(12, ticks=3)
    standby.kill()
    spoil_timeline(standby.path)
    world.boot = str(uuid.uuid4())
    standby.follow()
    assert standby.case() == ("power lost", "durable")
    standby.ingest()
    standby.finish()


def test_a_standby_whose_disk_is_lost_begins_anew(world: RecoveryWorld, tmp_path: Path) -> None:
    standby = half_way(world, tmp_path)
    standby.ingest()
    standby.kill()
    shutil.rmtree(standby.path)
    standby.follow()
    assert standby.case() == ("new standby", "nothing")
    standby.ingest()
    standby.finish()


def test_nothing_is_kept_when_the_progress_has_fallen(world: RecoveryWorld, tmp_path: Path) -> None:
    """Kafka has lost a transaction: what was dropped as done is pending again."""
    standby = half_way(world, tmp_path)
    while len(world.publisher.committed) > 2:
        world.publisher.committed.pop()
    with pytest.raises(RecoveryPending, match="has fallen"):
        standby.follower.tick()
    standby.kill()
    world.kill()
    standby.follow()
    assert standby.case() == ("taken over", "nothing")
    standby.ingest()
    standby.finish()


def test_it_waits_for_a_first_progress(world: RecoveryWorld, tmp_path: Path) -> None:
    world.publisher.committed.clear()
    directory = DataDirectory.start(tmp_path / "standby", world.wheel, Role.DEQUEUE)
    config = DequeueConfig(0, 1, {})
    follower = Follower(directory, world.publisher, world.clock, config)
    assert follower.tick() is None
    assert not directory.state.standby
    directory.close()
    world.kill()


def test_it_says_for_how_long_something_has_been_missing(
    world: RecoveryWorld, tmp_path: Path
) -> None:
    standby = Standby(world, tmp_path / "standby")
    world.write(0, 1, 900)
    world.ingest()
    world.at_slot(2)
    standby.follower.tick()
    world.clock.sleep(3)
    standby.follower.tick()
    assert standby.state.live.heartbeat(Role.DEQUEUE).detail >= 3_000
    standby.ingest()
    standby.follower.tick()
    assert standby.state.live.heartbeat(Role.DEQUEUE).detail == 0
    standby.kill()
    world.kill()


def test_a_lag_under_load_is_that_of_the_oldest_closing(
    world: RecoveryWorld, tmp_path: Path
) -> None:
    """Something is always missing, and it is never old."""
    standby = Standby(world, tmp_path / "standby")
    standby.ingest()
    for slot in range(2, 8):
        world.write(0, slot + 100)
        world.ingest()
        world.clock.sleep(1)
        world.at_slot(200 * slot)
        standby.follower.tick()
        assert standby.state.live.heartbeat(Role.DEQUEUE).detail <= 2_000
        standby.ingest()
        world.write(0, 9_000)
        world.ingest()
        world.clock.sleep(1)
        world.at_slot(200 * slot + 100)
        standby.follower.tick()
    standby.kill()
    world.kill()


def test_hours_that_are_delivered_go(world: RecoveryWorld, tmp_path: Path) -> None:
    standby = Standby(world, tmp_path / "standby")
    world.write(0, 1, 360_000 // PRECISION_MS, *range(2, 40))
    world.ingest()
    world.at_slot(50)
    standby.follower.tick()
    standby.ingest()
    checkpoints = DurableCheckpoints(standby.path)
    world.clock.sleep(4_000)
    world.at_slot(450_000)  # many laps: the last ones are told a while later
    world.at_slot(451_000)
    standby.follower.tick()
    checkpoints.write()
    checkpoints.close()
    world.clock.sleep(60)
    before = standby.state.live.gc_hour
    standby.follower.tick()
    assert standby.state.live.gc_hour > before
    assert check(standby.path, world.wheel).findings == []
    standby.take_over()
    standby.become_the_world()
    world.kill()


def test_what_lies_beyond_a_smaller_ring_is_delivered_after_a_take_over(
    world: RecoveryWorld, tmp_path: Path
) -> None:
    world.write(0, 1, 8_100, 3)
    world.ingest()
    world.at_slot(2)
    world.wheel = WheelConfig(PRECISION_MS, 4_000, window_ms=40_000, margin_ms=0)
    standby = Standby(world, tmp_path / "standby")
    standby.ingest()
    assert marks_of(standby.state)[TIMER_TOPIC, 0] == 3
    assert check(standby.path, world.wheel).findings == []
    standby.take_over()
    standby.become_the_world()
    world.at_slot(8_100)
    world.finish()


def test_files_that_followed_partitions_of_another_assignment_are_not_kept(
    world: RecoveryWorld, tmp_path: Path
) -> None:
    standby = half_way(world, tmp_path)
    before = world.publisher.peek()
    assert before is not None
    for after in (
        replace(before, sealed_for=2),
        replace(before, assignment_epoch=before.assignment_epoch + 1),
    ):
        world.publisher.committed.append((None, replace(after, owner=NOBODY)))
        with pytest.raises(RecoveryPending, match="change their shards, or are given up"):
            standby.follower.tick()
    standby.kill()
    standby.follow()
    assert standby.case() == ("taken over", "nothing")
    world.kill()
    standby.kill()


def test_settings_that_change_are_followed_by_starting_anew(
    world: RecoveryWorld, tmp_path: Path
) -> None:
    """Neither the follower nor its ingest judges on by settings that hold no more."""
    standby = half_way(world, tmp_path)
    standby.ingest()
    world.kill()
    reconfigure(world, OTHER)
    with pytest.raises(RecoveryPending, match="slot configuration has changed"):
        standby.follower.tick()
    standby.directory.close()
    with pytest.raises(RecoveryPending, match=r"levels_ms.*the owner's configuration"):
        standby.follow()
    standby.directory.close()
    standby.config = OTHER
    standby.follow()
    world.start()
    world.ingest()
    world.at_slot(8)
    standby.follower.tick()
    with pytest.raises(SettingsChange, match="has other settings"):
        standby.ingest()
    standby.shard.kill(Role.INGEST)
    standby.ingest()
    standby.directory.close()
    world.finish()


def test_an_ingest_that_runs_on_hears_of_them_from_the_start_of_dequeue(
    world: RecoveryWorld, tmp_path: Path
) -> None:
    standby = half_way(world, tmp_path)
    standby.ingest()
    world.kill()
    reconfigure(world, OTHER)
    # Promoted with the new settings, while its ingest has still the old ones.
    standby.shard.config = OTHER
    standby.take_over()
    with pytest.raises(SettingsChange, match="has other settings"):
        standby.ingest()
