"""A standby that gives its files up, and is killed meanwhile; or waits for its operator.

On real files, as test_following.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.test_following import Killed, Standby, world
from tests.unit.test_recovering import World

from duewheel.checkpoints.recovery import RecoveryRecord
from duewheel.checkpoints.state import State
from duewheel.errors import RecoveryPending
from duewheel.wheel.data_directory import Role

__all__ = ["world"]


def die(*_: object) -> None:
    raise Killed


# What a decision writes, in this order.
DECISION: list[tuple[object, str]] = [
    (State, "set_generation"),
    (RecoveryRecord, "write"),
    (State, "write_mirror"),
    (State, "restart_close"),
]


@pytest.mark.parametrize(("owner", "name"), DECISION, ids=[name for _, name in DECISION])
def test_a_standby_killed_while_it_gives_up_its_files_gives_them_up(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: object, name: str
) -> None:
    """Once the fallen progress is mirrored nothing looks fallen any more."""
    standby = Standby(world, tmp_path / "standby")
    world.write(0, 5, 5, 5, 5, 5, 5, 9)
    world.ingest()
    world.at_slot(6, ticks=2)
    standby.follower.tick()
    standby.ingest()
    world.publisher.committed.pop()
    with pytest.raises(RecoveryPending, match="has fallen"):
        standby.follower.tick()
    standby.kill()
    world.kill()
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, die)
        with pytest.raises(Killed):
            standby.follow()
    standby.directory.close()
    standby.follow()
    assert standby.case()[1] == "nothing"
    standby.ingest()
    standby.take_over()
    standby.become_the_world()
    world.finish()


def test_ingest_carries_out_nothing_of_a_decision_that_was_not_finished(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record without its pages: the follower died in between, and ingest saw it alive before."""
    standby = Standby(world, tmp_path / "standby")
    world.write(0, 5, 5, 5, 5, 5, 5, 9)
    world.ingest()
    world.at_slot(6, ticks=2)
    standby.follower.tick()
    standby.ingest()
    world.publisher.committed.pop()
    standby.kill()
    world.kill()
    with monkeypatch.context() as patch:
        patch.setattr(State, "write_mirror", die)
        with pytest.raises(Killed):
            standby.follow()
    standby.directory.close()
    with pytest.raises(RecoveryPending, match="dequeue has ended"):
        standby.ingest()
    standby.shard.kill(Role.INGEST)
    standby.follow()
    standby.ingest()
    standby.take_over()
    standby.become_the_world()
    world.finish()
