"""`recover --dry-run` reads the same as the next start, and changes nothing."""

from __future__ import annotations

import os
import shutil
import uuid
from pathlib import Path

import pytest
from tests.harness.killed import Killed, die
from tests.harness.local_world import fated
from tests.harness.recovery_world import RecoveryWorld, half_delivered
from tests.harness.state_pages import COMMIT, damage_newest_close, damage_newest_commit
from tests.harness.timelines import FILE

from duewheel.checkpoints.local_state import RecoveryRecord
from duewheel.checkpoints.state_file import State
from duewheel.wheel.recovery.kept_files import decide
from duewheel.wheel.recovery.survey import survey


def tree(path: Path) -> dict[str, tuple[float, bytes]]:
    found = {}
    for root, folders, names in os.walk(path):
        for name in [*folders, *names]:
            if name == "rocksdict-config.json":
                continue  # the library writes it at each opening, with the same content
            entry = Path(root) / name
            content = b"" if entry.is_dir() else entry.read_bytes()
            found[str(entry)] = (entry.stat().st_mtime, content)
    return found


def spoil(path: Path, fault: str) -> None:
    victim = path / fault
    if fault == "nothing":
        return
    if fault == "everything":
        shutil.rmtree(path)
    elif fault == "pages":
        text = (path / "state").read_bytes()
        (path / "state").write_bytes(text[:COMMIT] + b"\1" * (len(text) - COMMIT))
    elif fault == "commit page":  # the newest one: the wheel knows a later batch
        damage_newest_commit(path)
    elif victim.is_dir():
        shutil.rmtree(victim)
    else:
        victim.unlink()


@pytest.mark.parametrize(
    "fault",
    [
        "nothing",
        "everything",
        "power",
        "pages",
        "commit page",
        "state",
        FILE,
        "timerlog",
        "messages",
        "topics",
        "cancelled",
        "cancels",
        "requests",
        "engine.lock",
    ],
)
def test_the_start_decides_as_the_survey_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    world = RecoveryWorld(tmp_path, monkeypatch)
    world.write(0, 1, 900)
    world.ingest()
    world.checkpoint()
    half_delivered(world)
    world.kill()
    if fault == "power":
        world.boot = str(uuid.uuid4())
    else:
        spoil(world.path, fault)
    before = tree(world.path)
    progress = world.publisher.peek()
    assert progress is not None
    decision = decide(progress, survey(world.path, world.wheel))
    assert tree(world.path) == before
    assert world.start(take_over=True) == decision.case
    record = RecoveryRecord.read(world.path)
    assert record is not None and record.keep is decision.keep
    state = State.open(world.path)
    assert state.close() == decision.close
    world.finish()


def test_a_lost_close_page_by_which_rows_were_placed_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows are in later slots than the older page would have them: as if it had lost them."""
    world = RecoveryWorld(tmp_path, monkeypatch)
    world.write(0, 1, 5)
    world.ingest()
    world.at_slot(3)
    with fated(world.publisher, die), pytest.raises(Killed):
        world.at_slot(6)
    world.write(0, 4, 5, 8)  # two of them late
    world.ingest()
    world.kill()
    damage_newest_close(world.path)
    assert world.start() == "files lost"
    world.finish()


def test_a_survey_beside_running_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = RecoveryWorld(tmp_path, monkeypatch)
    half_delivered(world)
    progress = world.publisher.peek()
    assert progress is not None
    before = tree(world.path)
    decision = decide(progress, survey(world.path, world.wheel))
    assert (decision.case, tree(world.path)) == ("intact", before)
    world.kill()


def test_a_take_over_that_was_killed_need_not_be_told_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = RecoveryWorld(tmp_path, monkeypatch)
    half_delivered(world)
    world.kill()
    shutil.rmtree(world.path)
    with fated(world.publisher, die), pytest.raises(Killed):
        world.start(take_over=True)
    world.kill()
    assert world.start() == "taken over"
    world.finish()
