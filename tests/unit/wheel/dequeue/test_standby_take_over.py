"""A standby, on real files, takes over without rebuilding; or it may not yet."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

import pytest
from tests.harness.killed import Killed, die
from tests.harness.local_world import fated
from tests.harness.recovery_world import PARTITIONS, RecoveryWorld, half_delivered
from tests.harness.standbys import Standby, half_way, world

from duewheel.checkpoints.process_role import Role
from duewheel.errors import (
    Fenced,
    KafkaUnavailable,
    RecoveryPending,
    RecoveryRefused,
)
from duewheel.wheel.dequeue.standby import Follower, Verdict
from duewheel.wheel.publisher_protocol import Seen
from duewheel.wheel.storage.data_directory import DataDirectory

__all__ = ["world"]


def test_it_takes_over_without_rebuilding_anything(world: RecoveryWorld, tmp_path: Path) -> None:
    standby = Standby(world, tmp_path / "standby")
    assert standby.case() == ("new standby", "nothing")
    half_delivered(world)
    standby.follower.tick()
    standby.ingest()
    world.ingest()
    world.at_slot(7, ticks=3)
    recovered = standby.state.recovered
    ingest = standby.shard.ingest
    standby.take_over()
    assert standby.case() == ("standby", "all")
    assert standby.shard.ingest is ingest
    state = standby.shard.directory(Role.DEQUEUE).state
    assert (state.recovered, state.needs_recovery, state.standby) == (recovered, False, False)
    standby.become_the_world()
    world.finish()


def test_its_owner_may_change(world: RecoveryWorld, tmp_path: Path) -> None:
    """Whoever writes the progress, nothing is read again."""
    standby = half_way(world, tmp_path)
    standby.ingest(3)
    world.kill()
    shutil.rmtree(world.path)
    world.start(take_over=True)
    recovered = standby.state.recovered
    standby.follower.tick()
    world.ingest()
    world.at_slot(8, ticks=1)
    standby.follower.tick()
    standby.ingest()
    assert standby.state.recovered == recovered
    standby.take_over()
    assert standby.case() == ("standby", "all")
    standby.become_the_world()
    world.finish()


def test_the_owner_before_is_fenced(world: RecoveryWorld, tmp_path: Path) -> None:
    standby = Standby(world, tmp_path / "standby")
    half_delivered(world)
    standby.take_over()
    with (
        fated(world.publisher, lambda: "lose"),
        pytest.raises(Fenced, match="now belongs to the data directory"),
    ):
        world.at_slot(9)
    world.kill()
    # Its own directory can follow: with other files than those it had.
    old = world.path
    standby.ingest()
    standby.become_the_world()
    back = Standby(world, old)
    assert back.case() == ("new standby", "nothing")
    world.at_slot(10)
    back.follower.tick()
    back.ingest()
    back.take_over()
    assert back.case() == ("standby", "all")
    back.become_the_world()
    world.finish()


def test_a_take_over_of_progress_that_has_fallen_is_refused(
    world: RecoveryWorld, tmp_path: Path
) -> None:
    standby = half_way(world, tmp_path)
    while len(world.publisher.committed) > 2:
        world.publisher.committed.pop()
    with pytest.raises(RecoveryRefused, match="older than the local copy"):
        standby.take_over()
    world.publisher.committed.clear()
    standby.shard.kill(Role.DEQUEUE)
    with pytest.raises(RecoveryRefused, match="start the owner"):
        standby.shard.start_dequeue()
    world.kill()


def test_a_take_over_that_is_killed_before_it_is_told_follows_on(
    world: RecoveryWorld, tmp_path: Path
) -> None:
    """Until Kafka knows of it, nothing is taken that the owner may still place."""
    standby = Standby(world, tmp_path / "standby")
    standby.shard.start_ingest()
    half_delivered(world)
    world.write(0, 4, 4)
    standby.follower.tick()
    with fated(world.publisher, die), pytest.raises(Killed):
        standby.take_over()
    standby.shard.kill(Role.DEQUEUE)
    assert standby.ingest()
    world.ingest()
    world.at_slot(9)
    standby.follow()
    assert standby.state.standby
    assert standby.case() == ("standby", "all")
    standby.ingest()
    standby.finish()


def test_a_directory_that_owns_the_shard_serves_it(world: RecoveryWorld, tmp_path: Path) -> None:
    """So that a standby that was promoted can be started as before."""
    standby = Standby(world, tmp_path / "standby")
    half_delivered(world)
    standby.take_over()
    standby.shard.kill(Role.DEQUEUE)
    directory = DataDirectory.start(standby.path, world.wheel, Role.DEQUEUE)
    follower = Follower(directory, world.publisher, world.clock, standby.config)
    assert follower.run() is Verdict.OWNER
    directory.close()
    world.kill()
    standby.shard.kill(Role.INGEST)


def test_it_takes_over_when_told_or_when_the_owner_is_silent(
    world: RecoveryWorld, tmp_path: Path
) -> None:
    standby = Standby(world, tmp_path / "standby")
    world.clock.sleep(10)
    assert standby.follower.tick() is None
    assert world.shard.dequeue is not None
    world.shard.dequeue.tick()  # a sign of life
    assert standby.follower.tick() is None
    world.clock.sleep(10)
    assert standby.follower.tick() is None
    world.clock.sleep(1)
    assert standby.follower.tick() is Verdict.SILENT
    world.publisher.silent_ms = 9_000  # by the brokers' clock
    with pytest.raises(RecoveryPending, match="Takes over after 10 s"):
        standby.take_over(promoted=False)
    standby.shard.kill(Role.DEQUEUE)
    standby.follow()
    standby.state.live.want_promotion(world.clock.now_ms())
    assert standby.follower.tick() is Verdict.PROMOTED
    standby.take_over()
    assert not standby.shard.directory(Role.DEQUEUE).state.live.promotion_wanted(
        world.clock.now_ms()
    )
    world.kill()
    standby.shard.kill(Role.DEQUEUE)


def test_an_owner_without_its_coordinator_is_not_silent(
    world: RecoveryWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker is lost; until another one coordinates the shard's transactions its owner can write
    nothing, while the progress can be read. Then the owner has as long as ever to write.
    """
    standby, asked = Standby(world, tmp_path / "standby"), list[int]()

    def no_coordinator() -> None:
        asked.append(world.clock.boottime_ms())
        raise KafkaUnavailable("no coordinator")

    begun_ms = world.clock.boottime_ms()

    def wait(seconds: float) -> set[Verdict | None]:
        verdicts = set()
        for _ in range(round(4 * seconds)):
            world.clock.sleep(0.25)
            verdicts.add(standby.follower.tick())
        return verdicts

    with monkeypatch.context() as patch:
        patch.setattr(world.publisher, "require_coordinator", no_coordinator)
        assert wait(14) == {None}
    assert 0 < asked[0] - begun_ms < 4_000
    assert wait(9) == {None}
    assert world.shard.dequeue is not None
    world.shard.dequeue.tick()
    assert wait(10) == {None}
    assert Verdict.SILENT in wait(0.5)
    world.kill()
    standby.kill()


def test_brokers_that_are_away_say_nothing_of_the_owner(
    world: RecoveryWorld, tmp_path: Path
) -> None:
    standby = Standby(world, tmp_path / "standby")
    newest = world.publisher.newest

    def away() -> Seen | None:
        raise KafkaUnavailable("away")

    world.publisher.newest = away  # type: ignore[method-assign]
    world.clock.sleep(100)
    assert standby.follower.tick() is None
    world.publisher.newest = newest  # type: ignore[method-assign]
    world.clock.sleep(9)
    assert standby.follower.tick() is None
    standby.kill()
    world.kill()


@pytest.mark.parametrize("seed", range(8))
def test_any_order_of_steps(world: RecoveryWorld, tmp_path: Path, seed: int) -> None:
    """Owner and standby do anything in any order, then the standby takes over: exact, each time."""
    chance = Random(seed)
    standby = Standby(world, tmp_path / "0")
    slot = 1
    for turn in range(3):
        for _ in range(40):
            step = chance.randrange(5)
            if step == 0:
                slots = [max(0, slot + chance.randint(-4, 9)) for _ in range(chance.randint(1, 6))]
                world.write(chance.randrange(PARTITIONS), *slots)
            elif step == 1:
                world.ingest(chance.choice((1, 3, 1_000)))
            elif step == 2:
                slot += chance.choice((0, 1, 1, 3))
                world.at_slot(slot, ticks=chance.choice((1, 2, 100)))
            elif step == 3:
                standby.follower.tick()
            else:
                standby.ingest(chance.choice((1, 2, 1_000)))
        standby.ingest(0)
        standby.take_over()
        assert standby.case() == ("standby", "all")
        standby.become_the_world()
        standby = Standby(world, tmp_path / str(turn + 1))
    standby.kill()
    world.finish()
