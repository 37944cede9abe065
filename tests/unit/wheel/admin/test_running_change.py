"""Settings that a running shard takes: a batch that comes at any step of it has one outcome."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.harness.killed import Killed, die
from tests.harness.reconfiguring import OTHER
from tests.harness.recovery_world import RecoveryWorld

from duewheel.checkpoints.config_epochs import Epochs
from duewheel.checkpoints.live_fields import LiveFields
from duewheel.checkpoints.process_role import Role
from duewheel.checkpoints.state_file import State
from duewheel.errors import SettingsChange
from duewheel.wheel.admin.change_settings import take
from duewheel.wheel.append.staged_batch import StagedBatch
from duewheel.wheel.storage.data_directory import DataDirectory


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RecoveryWorld:
    world = RecoveryWorld(tmp_path, monkeypatch)
    world.write(0, 30, 30, 30)
    world.ingest()
    world.write(0, 40, 40)
    return world


def request(world: RecoveryWorld) -> None:
    with State.open(world.path) as state:
        state.live.want_settings(1)


def take_them(world: RecoveryWorld) -> None:
    """As dequeue's process does, between two loops; ingest runs on."""
    world.shard.kill(Role.DEQUEUE)
    directory = DataDirectory.start(world.path, world.wheel, Role.DEQUEUE)
    try:
        take(directory, world.publisher, OTHER, world.shard.offsets_at)
    finally:
        directory.stop()


def start(world: RecoveryWorld) -> None:
    world.shard.config = OTHER
    world.shard.start_dequeue()


def newest(world: RecoveryWorld) -> Epochs:
    found = world.publisher.peek()
    assert found is not None
    return found.epochs


@pytest.mark.parametrize("steps", [1, 2, 3])
@pytest.mark.parametrize("within", ["placed", "committing"])
def test_a_batch_of_the_former_settings_is_refused_from_the_request_on(
    world: RecoveryWorld, monkeypatch: pytest.MonkeyPatch, steps: int, within: str
) -> None:
    """Also one whose slots were decided before: it would lie above the first offset of the epoch,
    placed by the settings below it.
    """
    marks, engine = dict(world.engine.marks), world.engine
    steps_of: list[Callable[[RecoveryWorld], None]] = [request, take_them, start]
    todo = steps_of[:steps]
    write = StagedBatch.write

    def change_meanwhile(staged: StagedBatch, rows: Any) -> Any:
        for step in todo:
            step(world)
        todo.clear()
        return write(staged, rows)

    if within == "committing":
        monkeypatch.setattr(StagedBatch, "write", change_meanwhile)
    else:
        for step in todo:
            step(world)
    with pytest.raises(SettingsChange):
        world.ingest()
    assert engine.settings_change
    assert dict(engine.marks) == marks
    for step in (take_them, start)[max(0, steps - 1) :]:
        step(world)
    assert dict(newest(world).newest.since) == marks
    with pytest.raises(SettingsChange):
        world.ingest()
    engine.load_epochs()
    assert engine.epochs == newest(world)
    world.ingest()
    world.finish()


@pytest.mark.parametrize("at", [(State, "claim"), (LiveFields, "want_settings")])
def test_the_request_ends_behind_the_claim(
    world: RecoveryWorld, monkeypatch: pytest.MonkeyPatch, at: tuple[type, str]
) -> None:
    """Killed between the two, ingest would take the settings for those that it has."""
    request(world)
    take_them(world)
    with monkeypatch.context() as patched, suppress(Killed):
        patched.setattr(*at, die)
        start(world)
    with pytest.raises(SettingsChange):
        world.ingest()
    world.shard.kill(Role.DEQUEUE)
    start(world)
    with pytest.raises(SettingsChange):
        world.ingest()
    world.engine.load_epochs()
    world.ingest()
    world.finish()


def test_a_start_while_ingest_loads_the_epochs(
    world: RecoveryWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its two readings: the epochs of before must not count as those of this start."""
    request(world)
    with monkeypatch.context() as patched, suppress(Killed):
        patched.setattr(State, "write_mirror", die)
        take_them(world)
    read = State.mirror

    def started_meanwhile(state: State) -> Any:
        former = read(state)
        monkeypatch.setattr(State, "mirror", read)
        start(world)
        return former

    monkeypatch.setattr(State, "mirror", started_meanwhile)
    world.engine.load_epochs()
    with pytest.raises(SettingsChange):
        world.ingest()
    world.engine.load_epochs()
    world.ingest()
    world.finish()


def test_a_start_without_the_change_ends_the_request(world: RecoveryWorld) -> None:
    """As of settings that are refused: ingest goes on with those that it has."""
    request(world)
    with pytest.raises(SettingsChange):
        world.ingest()
    before = newest(world)
    world.shard.kill(Role.DEQUEUE)
    world.shard.start_dequeue()
    assert not world.engine.settings_change
    world.ingest()
    assert newest(world) == before
    world.finish()
