"""A standby, on real files: it holds what the owner holds, and takes over without rebuilding."""

from __future__ import annotations

import shutil
import uuid
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from tests.unit.test_reconfiguring import OTHER, reconfigure
from tests.unit.test_recovering import PARTITIONS, PRECISION_MS, World, half_delivered

from duewheel.checkpoints import files
from duewheel.checkpoints.progress import NOBODY
from duewheel.checkpoints.recovery import RecoveryRecord, close_at
from duewheel.checkpoints.state import DEQUEUE, State
from duewheel.durability import DurableCheckpoints
from duewheel.errors import (
    Fenced,
    KafkaUnavailable,
    RecoveryPending,
    RecoveryRefused,
)
from duewheel.schemas.timers import TopicPartition
from duewheel.testing import TIMER_TOPIC, LocalShard
from duewheel.wheel.check import check
from duewheel.wheel.data_directory import DataDirectory, Role
from duewheel.wheel.dequeue_config import DequeueConfig
from duewheel.wheel.following import Follower, Verdict
from duewheel.wheel.layout import WheelConfig
from duewheel.wheel.publisher import Seen


class Killed(BaseException):
    """The process ends here."""


def _die(*_: object) -> None:
    raise Killed


class Standby:
    """Another directory beside a world's own, that follows it."""

    def __init__(self, world: World, path: Path, chunk_records: int = 2) -> None:
        self.world = world
        self.path = path
        self.config = DequeueConfig(0, 1, {}, chunk_records, progress_interval_ms=PRECISION_MS)
        self.shard = LocalShard(path, world.wheel, world.publisher, world.clock, self.config)
        self.shard.offsets_at = world.shard.offsets_at
        self.follow()

    def follow(self) -> Follower:
        """Start the follower; the first look begins."""
        self.directory = DataDirectory.start(self.path, self.world.wheel, Role.DEQUEUE)
        world = self.world
        self.follower = Follower(self.directory, world.publisher, world.clock, self.config)
        assert self.follower.tick() is None
        return self.follower

    @property
    def state(self) -> State:
        return self.directory.state

    def case(self) -> tuple[str, str]:
        record = RecoveryRecord.read(self.path)
        assert record is not None
        return record.case, record.keep.name.lower()

    def ingest(self, rows: int = 1_000) -> bool:
        """A batch of up to `rows` per partition; whether something of it has to wait."""
        engine = self.shard.ingest or self.shard.start_ingest()
        batch, ends = [], {}
        for number, timers in self.world.kafka.items():
            partition: TopicPartition = (TIMER_TOPIC, number)
            begin = engine.marks.get(partition, 0)
            batch += timers[begin : begin + rows]
            ends[partition] = min(begin + rows, len(timers))
        return self.shard.append(batch, ends).ahead

    def kill(self) -> None:
        self.shard.kill(Role.INGEST)
        self.directory.close()

    def take_over(self, *, promoted: bool = True) -> None:
        """The follower's process starts the loop; ingest runs on."""
        self.directory.close()
        self.shard.start_dequeue(take_over=promoted)

    def become_the_world(self) -> None:
        """The old owner is gone."""
        self.world.kill()
        self.world.shard, self.world.path = self.shard, self.path

    def finish(self) -> None:
        """It takes over, the old owner is gone, and each timer has left once."""
        self.take_over()
        self.become_the_world()
        self.world.finish()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    world = World.__new__(World)
    world.boot = str(uuid.uuid4())
    monkeypatch.setattr(files, "boot_id", lambda: world.boot)
    world.__init__(tmp_path, 2)  # type: ignore[misc]
    return world


def marks_of(state: State) -> dict[TopicPartition, int]:
    return dict(state.commit().marks)


def test_it_takes_over_without_rebuilding_anything(world: World, tmp_path: Path) -> None:
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


def test_it_takes_nothing_that_the_owner_may_still_place(world: World, tmp_path: Path) -> None:
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


def test_a_late_row_lies_where_the_owner_has_put_it(world: World, tmp_path: Path) -> None:
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


def test_it_follows_while_a_batch_is_being_placed(world: World, tmp_path: Path) -> None:
    """Its rows stay where they are, though the owner delivers their slots meanwhile."""
    standby = Standby(world, tmp_path / "standby")
    world.write(0, 2, 3, 3, 4, 4, 9)
    world.write(1, 3, 4, 8)
    world.ingest()
    world.at_slot(1)
    standby.follower.tick()
    engine = standby.shard.start_ingest()
    write = engine._write

    def meanwhile(*args: object) -> object:
        written = write(*args)  # type: ignore[arg-type]
        world.at_slot(4, ticks=2)
        standby.follower.tick()
        return written

    engine._write = meanwhile  # type: ignore[method-assign, assignment]
    standby.ingest()
    engine._write = write  # type: ignore[method-assign]
    standby.finish()


def test_its_owner_may_change(world: World, tmp_path: Path) -> None:
    """Whoever writes the progress, nothing is read again."""
    standby = Standby(world, tmp_path / "standby")
    half_delivered(world)
    standby.follower.tick()
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


def test_the_owner_before_is_fenced(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    standby = Standby(world, tmp_path / "standby")
    half_delivered(world)
    standby.take_over()
    with monkeypatch.context() as patch:
        patch.setattr(world.publisher, "fate", lambda: "lose")
        with pytest.raises(Fenced, match="now belongs to the data directory"):
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


def test_a_standby_that_was_killed_goes_on(world: World, tmp_path: Path) -> None:
    standby = Standby(world, tmp_path / "standby")
    half_delivered(world)
    standby.follower.tick()
    standby.ingest()
    marks = marks_of(standby.state)
    standby.kill()
    world.at_slot(20)
    standby.follow()
    assert standby.case() == ("standby", "all")
    assert marks_of(standby.state) == marks
    standby.ingest()
    standby.finish()


def test_a_standby_that_has_lost_power_keeps_its_checkpoint(world: World, tmp_path: Path) -> None:
    standby = Standby(world, tmp_path / "standby")
    half_delivered(world)
    standby.follower.tick()
    standby.ingest()
    checkpoints = DurableCheckpoints(standby.path)
    checkpoints.write()
    checkpoints.close()
    world.at_slot(12, ticks=3)
    standby.kill()
    wheel = standby.path / "timerwheel"
    wheel.write_bytes(Random(1).randbytes(wheel.stat().st_size))
    world.boot = str(uuid.uuid4())
    standby.follow()
    assert standby.case() == ("power lost", "durable")
    standby.ingest()
    standby.finish()


def test_a_standby_whose_disk_is_lost_begins_anew(world: World, tmp_path: Path) -> None:
    standby = Standby(world, tmp_path / "standby")
    half_delivered(world)
    standby.follower.tick()
    standby.ingest()
    standby.kill()
    shutil.rmtree(standby.path)
    standby.follow()
    assert standby.case() == ("new standby", "nothing")
    standby.ingest()
    standby.finish()


def test_nothing_is_kept_when_the_progress_has_fallen(world: World, tmp_path: Path) -> None:
    """Kafka has lost a transaction: what was dropped as done is pending again."""
    standby = Standby(world, tmp_path / "standby")
    half_delivered(world)
    standby.follower.tick()
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


def test_a_take_over_of_progress_that_has_fallen_is_refused(world: World, tmp_path: Path) -> None:
    standby = Standby(world, tmp_path / "standby")
    half_delivered(world)
    standby.follower.tick()
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
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until Kafka knows of it, nothing is taken that the owner may still place."""
    standby = Standby(world, tmp_path / "standby")
    standby.shard.start_ingest()
    half_delivered(world)
    world.write(0, 4, 4)
    standby.follower.tick()
    with monkeypatch.context() as patch:
        patch.setattr(world.publisher, "publish", _die)
        with pytest.raises(Killed):
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


def test_a_directory_that_owns_the_shard_serves_it(world: World, tmp_path: Path) -> None:
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


def test_it_waits_for_a_first_progress(world: World, tmp_path: Path) -> None:
    world.publisher.committed.clear()
    directory = DataDirectory.start(tmp_path / "standby", world.wheel, Role.DEQUEUE)
    config = DequeueConfig(0, 1, {})
    follower = Follower(directory, world.publisher, world.clock, config)
    assert follower.tick() is None
    assert not directory.state.standby
    directory.close()
    world.kill()


def test_it_takes_over_when_told_or_when_the_owner_is_silent(world: World, tmp_path: Path) -> None:
    standby = Standby(world, tmp_path / "standby")
    world.clock.sleep(60)
    assert standby.follower.tick() is None
    assert world.shard.dequeue is not None
    world.shard.dequeue.tick()  # a sign of life
    assert standby.follower.tick() is None
    world.clock.sleep(60)
    assert standby.follower.tick() is None
    world.clock.sleep(1)
    assert standby.follower.tick() is Verdict.SILENT
    world.publisher.silent_ms = 59_000  # by the brokers' clock
    with pytest.raises(RecoveryPending, match="It is followed after 60 s"):
        standby.take_over(promoted=False)
    standby.shard.kill(Role.DEQUEUE)
    standby.follow()
    standby.state.want_promotion(world.clock.now_ms())
    assert standby.follower.tick() is Verdict.PROMOTED
    standby.take_over()
    assert not standby.shard.directory(Role.DEQUEUE).state.promotion_wanted(world.clock.now_ms())
    world.kill()
    standby.shard.kill(Role.DEQUEUE)


def test_brokers_that_are_away_say_nothing_of_the_owner(world: World, tmp_path: Path) -> None:
    standby = Standby(world, tmp_path / "standby")
    newest = world.publisher.newest

    def away() -> Seen | None:
        raise KafkaUnavailable("away")

    world.publisher.newest = away  # type: ignore[method-assign]
    world.clock.sleep(100)
    assert standby.follower.tick() is None
    world.publisher.newest = newest  # type: ignore[method-assign]
    world.clock.sleep(50)
    assert standby.follower.tick() is None
    standby.kill()
    world.kill()


def test_it_says_for_how_long_something_has_been_missing(world: World, tmp_path: Path) -> None:
    standby = Standby(world, tmp_path / "standby")
    world.write(0, 1, 900)
    world.ingest()
    world.at_slot(2)
    standby.follower.tick()
    world.clock.sleep(3)
    standby.follower.tick()
    assert standby.state.heartbeat(DEQUEUE).detail >= 3_000
    standby.ingest()
    standby.follower.tick()
    assert standby.state.heartbeat(DEQUEUE).detail == 0
    standby.kill()
    world.kill()


def test_a_lag_under_load_is_that_of_the_oldest_closing(world: World, tmp_path: Path) -> None:
    """Something is always missing, and it is never old."""
    standby = Standby(world, tmp_path / "standby")
    standby.ingest()
    for slot in range(2, 8):
        world.write(0, slot + 100)
        world.ingest()
        world.clock.sleep(1)
        world.at_slot(200 * slot)
        standby.follower.tick()
        assert standby.state.heartbeat(DEQUEUE).detail <= 2_000
        standby.ingest()
        world.write(0, 9_000)
        world.ingest()
        world.clock.sleep(1)
        world.at_slot(200 * slot + 100)
        standby.follower.tick()
    standby.kill()
    world.kill()


def test_hours_that_are_delivered_go(world: World, tmp_path: Path) -> None:
    standby = Standby(world, tmp_path / "standby")
    world.write(0, 1, 360_000 // PRECISION_MS, *range(2, 40))
    world.ingest()
    world.at_slot(50)
    standby.follower.tick()
    standby.ingest()
    checkpoints = DurableCheckpoints(standby.path)
    world.clock.sleep(4_000)
    world.at_slot(450_000)
    standby.follower.tick()
    checkpoints.write()
    checkpoints.close()
    world.clock.sleep(60)
    before = standby.state.gc_hour
    standby.follower.tick()
    assert standby.state.gc_hour > before
    assert check(standby.path, world.wheel).findings == []
    standby.take_over()
    standby.become_the_world()
    world.kill()


def test_what_a_smaller_ring_cannot_hold_waits_for_the_owner(world: World, tmp_path: Path) -> None:
    """Unlike in a catch-up of a shard's own, deliveries go on meanwhile."""
    world.write(0, 1, 8_100, 3)
    world.ingest()
    world.at_slot(2)
    world.wheel = WheelConfig(PRECISION_MS, 4_000, window_ms=40_000, margin_ms=0)
    standby = Standby(world, tmp_path / "standby")
    standby.ingest()
    assert marks_of(standby.state)[TIMER_TOPIC, 0] == 1
    world.at_slot(600)
    standby.follower.tick()
    standby.ingest()
    assert marks_of(standby.state)[TIMER_TOPIC, 0] == 3
    standby.kill()
    world.kill()


@pytest.mark.parametrize("seed", range(8))
def test_any_order_of_steps(world: World, tmp_path: Path, seed: int) -> None:
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


def test_files_that_followed_partitions_of_another_deal_are_not_kept(
    world: World, tmp_path: Path
) -> None:
    standby = Standby(world, tmp_path / "standby")
    half_delivered(world)
    standby.follower.tick()
    before = world.publisher.peek()
    assert before is not None
    for after in (replace(before, sealed_for=2), replace(before, deal=before.deal + 1)):
        world.publisher.committed.append((None, replace(after, owner=NOBODY)))
        with pytest.raises(RecoveryPending, match="change their shards, or are given up"):
            standby.follower.tick()
    standby.kill()
    standby.follow()
    assert standby.case() == ("taken over", "nothing")
    world.kill()
    standby.kill()


def test_settings_that_change_are_followed_by_starting_anew(world: World, tmp_path: Path) -> None:
    """Neither the follower nor its ingest judges on by settings that hold no more."""
    standby = Standby(world, tmp_path / "standby")
    half_delivered(world)
    standby.follower.tick()
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
    with pytest.raises(RecoveryPending, match="slot configuration has changed"):
        standby.ingest()
    standby.shard.kill(Role.INGEST)
    standby.ingest()
    standby.directory.close()
    world.finish()


def test_an_ingest_that_runs_on_hears_of_them_from_the_start_of_dequeue(
    world: World, tmp_path: Path
) -> None:
    standby = Standby(world, tmp_path / "standby")
    half_delivered(world)
    standby.follower.tick()
    standby.ingest()
    world.kill()
    reconfigure(world, OTHER)
    # Promoted with the new settings, while its ingest has still the old ones.
    standby.shard._config = OTHER
    standby.take_over()
    with pytest.raises(RecoveryPending, match="slot configuration has changed"):
        standby.ingest()
