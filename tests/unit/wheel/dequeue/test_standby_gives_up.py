"""A standby that gives its files up, and is killed meanwhile; or waits for its operator.

On real files, as standbys.py has them.
"""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest
from tests.harness.killed import Killed, die
from tests.harness.local_world import fated
from tests.harness.recovery_world import RecoveryWorld, half_delivered
from tests.harness.standbys import Standby, half_way, world

from duewheel.checkpoints.live_fields import PROMOTION_MS
from duewheel.checkpoints.local_state import RecoveryRecord
from duewheel.checkpoints.process_role import Role
from duewheel.checkpoints.reshard_records import nothing, sealed
from duewheel.checkpoints.state_file import State
from duewheel.errors import Fenced, RecoveryPending
from duewheel.wheel.dequeue.standby import Verdict

__all__ = ["world"]


# What a decision writes, in this order.
DECISION: list[tuple[object, str]] = [
    (State, "set_generation"),
    (RecoveryRecord, "write"),
    (State, "write_mirror"),
    (State, "restart_close"),
]


def beside_lost_progress(world: RecoveryWorld, tmp_path: Path) -> Standby:
    """A standby in a slot, of an owner whose last commit Kafka has lost."""
    standby = Standby(world, tmp_path / "standby")
    world.write(0, 5, 5, 5, 5, 5, 5, 9)
    world.ingest()
    world.at_slot(6, ticks=2)
    standby.follower.tick()
    standby.ingest()
    world.publisher.committed.pop()
    return standby


@pytest.mark.parametrize(("owner", "name"), DECISION, ids=[name for _, name in DECISION])
def test_a_standby_killed_while_it_gives_up_its_files_gives_them_up(
    world: RecoveryWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: object, name: str
) -> None:
    """Once the fallen progress is mirrored nothing looks fallen any more."""
    standby = beside_lost_progress(world, tmp_path)
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
    standby.finish()


def test_ingest_carries_out_nothing_of_a_decision_that_was_not_finished(
    world: RecoveryWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record without its pages: the follower died in between, and ingest saw it alive before."""
    standby = beside_lost_progress(world, tmp_path)
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
    standby.finish()


def test_a_standby_of_a_sealed_shard_looks_again(world: RecoveryWorld, tmp_path: Path) -> None:
    standby = Standby(world, tmp_path / "standby")
    found = world.publisher.peek()
    assert found is not None
    for record in (sealed(found, 2, 77), nothing(found, 0, 1, 77)):
        world.publisher.committed.append((None, record))
        standby.directory.close()
        with pytest.raises(RecoveryPending, match="not standing by yet"):
            standby.follow()
    standby.kill()
    world.kill()


def test_a_promotion_does_not_come_true_later(world: RecoveryWorld, tmp_path: Path) -> None:
    standby = Standby(world, tmp_path / "standby")
    standby.state.live.want_promotion(world.clock.now_ms())
    world.clock.sleep(PROMOTION_MS / 2000)
    assert standby.follower.tick() is Verdict.PROMOTED
    world.clock.sleep(PROMOTION_MS / 2000)
    assert world.shard.dequeue is not None
    world.shard.dequeue.tick()
    assert standby.follower.tick() is None
    standby.kill()
    world.kill()


def test_a_standby_is_promoted_though_the_state_topic_is_lost(
    world: RecoveryWorld, tmp_path: Path
) -> None:
    standby = half_way(world, tmp_path)
    standby.ingest()
    world.publisher.committed.clear()
    assert standby.follower.tick() is None
    standby.state.live.want_promotion(world.clock.now_ms())
    assert standby.follower.tick() is Verdict.PROMOTED
    standby.take_over()
    assert standby.case() == ("standby", "all")
    for role in Role:
        standby.shard.kill(role)
    world.kill()


def test_a_standby_that_was_not_the_quickest_follows_the_one_that_was(
    world: RecoveryWorld, tmp_path: Path
) -> None:
    first, second = (Standby(world, tmp_path / name) for name in ("first", "second"))
    half_delivered(world)
    for standby in (first, second):
        standby.follower.tick()
        standby.ingest()

    def beaten() -> NoReturn:
        with fated(world.publisher, lambda: "commit"):
            first.take_over()
        raise Fenced("another instance has the shard")

    with fated(world.publisher, beaten), pytest.raises(Fenced):
        second.take_over()
    second.shard.kill(Role.DEQUEUE)
    second.follow()
    assert second.state.standby
    assert second.case() == ("standby", "all")
    second.kill()
    first.become_the_world()
    world.finish()
