"""Damaged bytes: detected before a wrong delivery, and pending timers are read again."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.harness.killed import Killed, die
from tests.harness.local_world import NOW_MS, PRECISION_MS
from tests.harness.recovery_world import RecoveryWorld, half_delivered
from tests.harness.timelines import KIND, timeline, wheel_only
from tests.harness.timer_rows import TIMER_TOPIC

from duewheel.checkpoints.commit_and_close_pages import Commit
from duewheel.checkpoints.process_role import Role
from duewheel.checkpoints.state_file import Damage, State
from duewheel.checkpoints.unfinished_recovery import recovering
from duewheel.errors import RecoveryPending
from duewheel.wheel.storage.byte_layouts import ENTRY, MAGIC_ABANDONED, RECORD, RECORD_BYTES
from duewheel.wheel.storage.data_directory import DataDirectory
from duewheel.wheel.storage.full_check import check
from duewheel.wheel.storage.runs import Runs

SLOT = NOW_MS // PRECISION_MS + 9
RING = 8192


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RecoveryWorld:
    """Slots are delivered, one in part; slot 9 holds three timers."""
    world = RecoveryWorld(tmp_path, monkeypatch)
    half_delivered(world)
    world.write(1, 9, 9)
    world.ingest()
    return world


def entry_of(world: RecoveryWorld) -> np.void:
    """The entry of slot 9, in the file."""
    entries = np.memmap(world.path / "timerwheel", ENTRY, "r+")
    entry: np.void = entries[SLOT % RING]
    assert (entry["time"], entry["num"]) == (SLOT, 3)
    return entry


def recovers(world: RecoveryWorld) -> None:
    """The next start reads again, and all are delivered once."""
    assert State.open(world.path).damage is Damage.FILES_LOST
    world.kill()
    assert world.start() == "files lost"
    world.finish()


def rewrite(world: RecoveryWorld, commit: Commit, batch: int) -> None:
    """Have the newest commit page be this one, under another number."""
    state = State.open(world.path)
    state.write_commit(commit._replace(batch=batch, applied=False))
    directory = DataDirectory(world.path, world.wheel)
    if batch > commit.batch:
        directory.append_runs(Runs.joined([]), batch)
    directory.close()
    state.mark_applied()
    state.release()


@pytest.mark.skipif(KIND == "rocksdb", reason="it has a key of each batch, so none is left out")
@pytest.mark.parametrize("before", [0, 1, 2, 3])
def test_the_names_of_batches_come_round_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    """In a directory that is some years old no batch of before is taken for one whose page is lost,
    and one whose page is lost is found.
    """
    world = RecoveryWorld(tmp_path, monkeypatch)
    world.kill()
    rewrite(world, State.open(world.path).commit(), 2**31 - before)
    world.start()
    for slot in range(1, 5):
        commit = State.open(world.path).commit()
        world.write(1, slot, 9)
        world.ingest()
        world.kill()
        assert world.start() == "intact"
        assert check(world.path, world.wheel).ok
    assert State.open(world.path).commit().batch == 2**31 - before + 4
    world.kill()
    rewrite(world, commit, commit.batch)
    assert world.start() != "intact"
    world.finish()


FIELDS = [
    ("time", 0),
    ("time", SLOT - 1),
    ("time", SLOT + RING),
    ("time", SLOT - RING),
    ("time", SLOT - 1000 * RING),
    ("time", SLOT % RING - RING),  # as if never used
    ("time", -SLOT),
    ("num", 0),
    ("num", -3),
    ("num", 2),
    ("num", 2**31 - 1),
    ("last_pos", -1),
    ("last_pos", 0),
    ("last_pos", 2**40),
]


@wheel_only
@pytest.mark.parametrize(
    ("first_pos", "last_pos", "num"),
    [(2**40 + 1, 2**40 + 104, 3), (0, 2**40, 3), (-52, 104, 3), (0, 53, 1)],
)
def test_a_damaged_entry_that_names_an_earlier_lap_is_not_overwritten(
    world: RecoveryWorld, first_pos: int, last_pos: int, num: int
) -> None:
    """Several fields are damaged at once: a timer that is appended to the slot would hide it."""
    entry = entry_of(world)
    entry["time"] = SLOT - 1000 * RING
    entry["first_pos"], entry["last_pos"], entry["num"] = first_pos, last_pos, num
    assert "entry_place" in {finding.code for finding in check(world.path, world.wheel).findings}
    world.write(1, 9)
    with pytest.raises(RecoveryPending):
        world.ingest()
    recovers(world)


@wheel_only
@pytest.mark.parametrize(("field", "value"), FIELDS)
def test_a_damaged_entry_is_not_passed_over(world: RecoveryWorld, field: str, value: int) -> None:
    entry_of(world)[field] = value
    with pytest.raises(RecoveryPending):
        world.at_slot(12)
    recovers(world)


@wheel_only
def test_a_wheel_of_zeros_is_not_an_empty_one(world: RecoveryWorld) -> None:
    path = world.path / "timerwheel"
    with path.open("r+b") as file:
        file.write(bytes(path.stat().st_size))
    with pytest.raises(RecoveryPending):
        world.at_slot(12)
    recovers(world)


@pytest.mark.parametrize(("field", "value"), [("write_time", 1), ("prev_pos", 52), ("magic", 4)])
def test_a_damaged_record_is_not_delivered(world: RecoveryWorld, field: str, value: int) -> None:
    (path,) = (world.path / "timerlog").iterdir()
    records = np.memmap(path, RECORD, "r+")
    slot_ms = records["write_time"].astype(np.int64) + records["delay"]
    mine = (slot_ms == SLOT * PRECISION_MS) & (records["magic"] != MAGIC_ABANDONED)
    records[field][np.flatnonzero(mine)[-1]] ^= value
    with pytest.raises(RecoveryPending):
        world.at_slot(12)
    recovers(world)


def test_a_damaged_message_is_not_delivered(world: RecoveryWorld) -> None:
    (path,) = (world.path / "messages").iterdir()
    with path.open("r+b") as file:
        file.seek(-3, 2)
        last = file.read(1)
        file.seek(-3, 2)
        file.write(bytes([last[0] ^ 1]))
    with pytest.raises(RecoveryPending):
        world.at_slot(5_000)
    recovers(world)


def test_a_half_done_batch_that_is_damaged_is_not_redone(
    world: RecoveryWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither process lives: the start of dequeue meets it."""

    world.write(0, 20, 20)
    with monkeypatch.context() as patched:
        patched.setattr(timeline(), "append", die)
        with pytest.raises(Killed):
            world.ingest()
    world.kill()
    (path,) = (world.path / "messages").iterdir()
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(RecoveryPending, match="checksum"):
        world.start()
    recovers(world)


ENDS = [("last_pos", -RECORD_BYTES), ("last_pos", RECORD_BYTES + 1), ("last_pos", 2**40)]


@wheel_only
@pytest.mark.parametrize(("field", "value"), [row for row in FIELDS if row[0] == "time"] + ENDS)
def test_ingest_does_not_place_over_a_damaged_entry(
    world: RecoveryWorld, field: str, value: int
) -> None:
    """What is in its slot would be cut off: the slot looks empty, or ends where no record is."""
    entry_of(world)[field] = value
    world.write(0, 9)
    with pytest.raises(RecoveryPending):
        world.ingest()
    recovers(world)


def stop_waiting(world: RecoveryWorld) -> None:
    """Dequeue ends, so that its next start decides."""
    with pytest.raises(RecoveryPending):
        world.at_slot(7)


@pytest.mark.parametrize("meanwhile", ["running", "paused", "recovering"])
def test_dequeue_hears_of_what_ingest_has_found(world: RecoveryWorld, meanwhile: str) -> None:
    if meanwhile == "paused":
        State.open(world.path).live.pause(Role.DEQUEUE, on=True)
    if meanwhile == "recovering":
        world.kill()
        shutil.rmtree(world.path)
        assert world.start(take_over=True) == "taken over"
        world.ingest(rows=1)
    topics = world.path / "topics"
    topics.write_bytes(b"x" + topics.read_bytes()[1:])
    world.shard.kill(Role.INGEST)
    with pytest.raises(RecoveryPending):
        world.shard.start_ingest()
    stop_waiting(world)
    State.open(world.path).live.pause(Role.DEQUEUE, on=False)
    recovers(world)


def test_what_a_recovery_still_lacks_is_shown(world: RecoveryWorld) -> None:
    assert recovering(State.open(world.path)) is None
    world.kill()
    shutil.rmtree(world.path)
    world.shard.start_dequeue(take_over=True)
    found = recovering(State.open(world.path))
    assert found is not None
    assert (found.generation, found.files_whole, found.missing) == (1, False, {})
    world.shard.start_ingest()
    closed = State.open(world.path).close()
    assert closed is not None
    c = closed.marks
    world.ingest(rows=2)
    found = recovering(State.open(world.path))
    assert found is not None
    assert (found.generation, found.files_whole) == (1, True)
    assert found.missing == {p: end - 2 for p, end in c.items()}
    assert min(found.missing[TIMER_TOPIC, partition] for partition in range(2)) > 0
    world.ingest()
    assert recovering(State.open(world.path)) is None
    world.finish()


@wheel_only
def test_an_earlier_lap_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = RecoveryWorld(tmp_path, monkeypatch)
    world.write(0, *range(1, 20))
    world.ingest()
    look: Callable[[], list[bytes]] = world.publisher.sources
    for lap in range(1, 4):
        world.at_slot(lap * RING)
        assert len(look()) == 19 + 10 * (lap - 1)
        world.write(0, *range(lap * RING + 5, lap * RING + 15))
        world.ingest()
    world.at_slot(4 * RING)
    assert len(look()) == 49
    world.kill()
