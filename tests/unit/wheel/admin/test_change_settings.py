"""Settings changed on a shard with progress: what is there stays, what comes is judged anew."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from tests.harness.killed import Killed, die
from tests.harness.reconfiguring import OTHER, caught_up, reconfigure, use
from tests.harness.recovery_world import RecoveryWorld
from tests.harness.timelines import KIND
from tests.harness.timer_rows import TIMER_TOPIC, TimerRow

from duewheel.checkpoints.fs import HOST_FS
from duewheel.checkpoints.held_copies import Held
from duewheel.checkpoints.process_role import Role
from duewheel.checkpoints.state_file import State
from duewheel.errors import ConfigError, Fenced, RecoveryRefused
from duewheel.schemas.batches import TopicPartition
from duewheel.wheel.admin.change_settings import Rotation, plan
from duewheel.wheel.recovery.survey import survey
from duewheel.wheel.storage.data_directory import DataDirectory
from duewheel.wheel.storage.timelines.kinds import remove_timelines

P: TopicPartition = (TIMER_TOPIC, 0)
Q: TopicPartition = (TIMER_TOPIC, 1)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RecoveryWorld:
    return RecoveryWorld(tmp_path, monkeypatch)


def test_an_epoch_begins_behind_everything_that_was_judged(world: RecoveryWorld) -> None:
    caught_up(world)
    marks = dict(State.open(world.path).commit().marks)
    before = world.publisher.peek()
    assert before is not None
    planned = reconfigure(world, OTHER)
    assert planned.since == marks
    assert planned.changes == {"levels_ms": (None, [1])}
    after = world.publisher.peek()
    assert after is not None
    assert (after.owner, after.incarnation, after.epoch) == (
        before.owner,
        before.incarnation,
        before.epoch + 1,
    )
    assert after.partitions == before.partitions
    assert after.epochs == before.epochs.extended_by(OTHER.slot_values(world.wheel), marks)
    mirror = State.open(world.path).mirror()
    assert mirror is not None
    assert mirror.record == after.encode()
    assert world.start() == "intact"
    world.finish()


def test_a_key_of_copies_is_drawn_once_and_stays_over_changes(world: RecoveryWorld) -> None:
    """A rotation is a change of its own: records up to it are read with the former keys alone."""
    caught_up(world)
    planned = reconfigure(world, world.config, rotation=Rotation(lambda _: 7, lambda _: {}))
    assert (planned.changes, len(planned.progress.epochs)) == ({}, 2)
    assert [each.copy_keys for each in planned.progress.epochs.epochs] == [(), (f"{7:064x}",)]
    changed = reconfigure(world, OTHER).progress.epochs
    assert changed.newest.copy_keys == (f"{7:064x}",)
    assert world.start() == "intact"
    world.finish()


def test_a_new_key_holds_from_the_ends_of_the_partitions(world: RecoveryWorld) -> None:
    """Below are copies that ingest has not read: unsigned ones, if the shard had no key. Changed
    settings hold from the first record that it has not read, with the former keys.
    """
    caught_up(world)
    taken = dict(State.open(world.path).commit().marks)
    ends = {P: taken[P] + 5, Q: taken[Q], (TIMER_TOPIC, 7): 9}
    planned = reconfigure(world, OTHER, rotation=Rotation(lambda _: 7, lambda _: ends))
    epochs = planned.progress.epochs
    assert [each.copy_keys for each in epochs.epochs] == [(), (), (f"{7:064x}",)]
    assert [dict(each.since) for each in epochs.epochs[1:]] == [taken, {P: ends[P], Q: ends[Q]}]
    assert planned.changes and planned.since == epochs.newest.since
    assert epochs.epochs[1].values == OTHER.slot_values(world.wheel)
    assert world.start() == "intact"
    world.finish()


@pytest.mark.parametrize("rotations", [1, 2])
def test_changed_settings_do_not_reach_below_a_new_key(
    world: RecoveryWorld, rotations: int
) -> None:
    """A copy there is signed by a former key: under the new one alone it would count as forged."""
    caught_up(world)
    taken = dict(State.open(world.path).commit().marks)
    ends = {P: taken[P] + 5, Q: taken[Q]}
    keys = itertools.count()
    for _ in range(rotations):
        reconfigure(world, world.config, rotation=Rotation(lambda _: next(keys), lambda _: ends))
    planned = reconfigure(world, OTHER)
    assert planned.since == planned.progress.epochs.newest.since == ends
    again = reconfigure(world, world.config, rotation=Rotation(lambda _: 9, lambda _: taken))
    assert [dict(each.since) for each in again.progress.epochs.epochs[-2:]] == [ends, ends]
    assert world.start() == "intact"
    world.finish()


def test_a_new_key_waits_for_held_copies(world: RecoveryWorld) -> None:
    """They come to their partition behind its present end, as the former key has signed them."""
    caught_up(world)
    progress, local = world.publisher.peek(), survey(world.path, world.wheel)
    assert progress is not None
    progress = replace(progress, held={P: Held(3, 2)})
    rest = (progress, local, world.wheel, OTHER, world.shard.offsets_at)
    with pytest.raises(RecoveryRefused, match=r"2 copies for .* are held"):
        plan(*rest, rotation=Rotation(lambda _: 7, lambda _: {}))
    assert plan(*rest).changes


def test_the_marks_count_though_nothing_was_closed_since(world: RecoveryWorld) -> None:
    """Rows above C are in the wheel, where the old settings have put them."""
    world.write(0, 30, 30, 30)
    world.ingest()
    world.kill()
    assert reconfigure(world, OTHER).since == {P: 3, Q: 0}


def test_rows_of_a_partition_that_no_progress_names_yet_keep_their_epoch(
    world: RecoveryWorld,
) -> None:
    """They were taken while dequeue was down; then the directory is lost, twice."""
    added: TopicPartition = (TIMER_TOPIC, 2)
    world.kafka[2] = [TimerRow(2, n, world.clock.now_ms() + 15_000) for n in range(3)]
    world.shard.append(world.kafka[2], {P: 0, Q: 0, added: 3})
    world.kill()
    world.shard.offsets_at = lambda _: {P: 0, Q: 0, added: 0}
    planned = reconfigure(world, OTHER)
    assert planned.since == {P: 0, Q: 0, added: 3}
    assert len(planned.progress.epochs) == 2
    assert added not in planned.progress.partitions
    world.start()
    world.at_slot(5)  # a progress that names it
    for _ in range(2):
        world.kill()
        shutil.rmtree(world.path)
        assert world.start(take_over=True) == "taken over"
    world.finish()


def test_a_change_that_would_make_the_progress_too_large_is_refused(
    world: RecoveryWorld,
) -> None:
    """Before Kafka has it: no process could copy it, and none could start."""
    caught_up(world)
    mapping = {f"t{number}": "orders" for number in range(300)}

    def change_on() -> None:
        for number in range(100):
            values = {"mapping": mapping, "levels_ms": [number]}
            config = replace(OTHER, slot_config=values)
            reconfigure(world, config, record_bytes_max=128 * 1024)

    with pytest.raises(RecoveryRefused, match=r"are \d+ slot configurations"):
        change_on()
    found = world.publisher.peek()
    assert found is not None and len(found.epochs) > 10
    use(world, replace(OTHER, slot_config=found.epochs.newest.values))
    assert world.start() == "intact"
    world.finish()


def test_the_same_settings_change_nothing(world: RecoveryWorld) -> None:
    caught_up(world)
    committed = len(world.publisher.committed)
    planned = reconfigure(world, world.shard.config)
    assert (planned.changes, planned.dropped) == ({}, 0)
    assert len(world.publisher.committed) == committed


def test_a_start_with_other_settings_is_refused_until_then(world: RecoveryWorld) -> None:
    caught_up(world)
    old = world.shard.config
    use(world, OTHER)
    with pytest.raises(RecoveryRefused, match=r"levels_ms.*duewheel reconfigure"):
        world.start()
    world.kill()
    reconfigure(world, OTHER)
    assert world.start() == "intact"
    world.kill()
    use(world, old)
    with pytest.raises(RecoveryRefused, match="levels_ms"):
        world.start()


def test_another_window_and_the_directory_is_lost_again_and_again(world: RecoveryWorld) -> None:
    world.write(0, 1, 2, 9, 4_500, 4_800)
    world.write(1, 3, 3, 4_400)
    world.ingest()
    world.at_slot(2)
    world.kill()
    short = replace(world.wheel, window_ms=10_000)
    planned = reconfigure(world, world.shard.config, short)
    assert planned.changes == {"roll_window_ms": (40_000, 10_000)}
    assert world.start() == "intact"
    world.write(0, 5, 4_600)
    world.write(1, 4, 4_700)
    world.ingest()
    world.publisher.silent_ms = 61_000
    for slot in (3, 4, 5, 9):
        world.at_slot(slot, ticks=1)
        world.kill()
        shutil.rmtree(world.path)
        assert world.start() == "taken over"
        world.ingest()
    world.finish()


# ---- what is refused -----------------------------------------------------------------------------


def test_precision_cannot_be_changed(world: RecoveryWorld) -> None:
    caught_up(world)
    found = world.publisher.peek()
    local = survey(world.path, world.wheel)
    config = world.shard.config
    finer = replace(world.wheel, precision_ms=5, window_ms=20_000)
    with pytest.raises(ConfigError, match=r"precision_ms was 10, is 5.*start over"):
        plan(found, local, finer, config, lambda _: {})
    with pytest.raises(ConfigError, match="made with precision_ms=10"):
        DataDirectory.start(world.path, finer, Role.DEQUEUE)


def lacks_rows(world: RecoveryWorld) -> None:
    world.publisher.silent_ms = 61_000
    shutil.rmtree(world.path)
    world.start()
    world.kill()


def is_to_be_recovered(world: RecoveryWorld) -> None:
    world.publisher.silent_ms = 61_000
    shutil.rmtree(world.path)
    world.shard.start_dequeue()
    world.kill()


def has_lost_power(world: RecoveryWorld) -> None:
    world.boot = "00000000-0000-0000-0000-000000000001"


def has_lost_a_file(world: RecoveryWorld) -> None:
    remove_timelines(world.path, [KIND], HOST_FS)


@pytest.mark.parametrize(
    "befalls", [lacks_rows, is_to_be_recovered, has_lost_power, has_lost_a_file]
)
def test_a_directory_that_has_to_recover_is_refused(
    world: RecoveryWorld, befalls: Callable[[RecoveryWorld], None]
) -> None:
    caught_up(world)
    befalls(world)
    committed = len(world.publisher.committed)
    with pytest.raises(RecoveryRefused, match="has to recover first"):
        reconfigure(world, OTHER)
    assert len(world.publisher.committed) == committed
    assert world.start() is not None
    world.finish()


def test_only_the_owners_directory_may(world: RecoveryWorld) -> None:
    caught_up(world)
    own = world.shard
    world.shard = world.beside(world.path.with_name("elsewhere"))
    with pytest.raises(RecoveryRefused, match="belongs to the data directory"):
        reconfigure(world, OTHER)
    world.shard = own
    other = replace(OTHER, shards=2)
    with pytest.raises(RecoveryRefused, match="shard 0 of 1"):
        reconfigure(world, other)


def test_without_progress_there_is_nothing_to_change(world: RecoveryWorld) -> None:
    caught_up(world)
    world.publisher.committed.clear()
    with pytest.raises(RecoveryRefused, match="no progress"):
        reconfigure(world, OTHER)


# ---- kills and doubts ----------------------------------------------------------------------------


def test_a_kill_behind_the_commit_leaves_the_new_settings(
    world: RecoveryWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    caught_up(world)

    with monkeypatch.context() as patched, suppress(Killed):
        patched.setattr(State, "write_mirror", die)
        reconfigure(world, OTHER)
    use(world, OTHER)
    assert reconfigure(world, OTHER).changes == {}
    assert world.start() == "intact"
    world.finish()


@pytest.mark.parametrize("fates", [["lose", "commit"], ["doubt"], ["lose", "lose", "doubt"]])
def test_a_transaction_in_doubt_is_settled_by_what_kafka_has(
    world: RecoveryWorld, fates: list[str]
) -> None:
    caught_up(world)
    left = list(fates)
    world.publisher.fate = lambda: left.pop(0) if left else "commit"
    committed = len(world.publisher.committed)
    reconfigure(world, OTHER)
    assert len(world.publisher.committed) == committed + 1
    assert world.start() == "intact"
    world.finish()


def test_another_instance_that_comes_between_is_left_alone(world: RecoveryWorld) -> None:
    caught_up(world)
    found = world.publisher.peek()
    assert found is not None

    def overtaken() -> str:
        world.publisher.committed.append((None, replace(found, owner="another", epoch=99)))
        return "lose"

    world.publisher.fate = overtaken
    with pytest.raises(Fenced):
        reconfigure(world, OTHER)
