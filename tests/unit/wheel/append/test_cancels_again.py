"""Cancels after a loss, behind a cut and in a standby: rows that are read, marked and kept."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.harness.cancel_world import CancelWorld, cancel, count_messages_read, timer
from tests.harness.local_world import NOW_MS, PRECISION_MS
from tests.harness.manual_host import ManualHost
from tests.harness.recovery_world import RecoveryWorld
from tests.harness.standbys import Standby
from tests.harness.timer_rows import P0, P1, TimerRow

from duewheel.checkpoints.cancel_bounds import FILE_NAME, CancelBounds
from duewheel.checkpoints.fs import HOST_FS, FileSystem
from duewheel.checkpoints.local_state import RecoveryRecord
from duewheel.checkpoints.process_role import Role
from duewheel.runtime.checkpointer import DurableCheckpoints
from duewheel.schemas.arrays import Int64
from duewheel.schemas.batches import ANY_OFFSET
from duewheel.wheel.append import id_runs
from duewheel.wheel.storage.byte_layouts import RECORD_BYTES
from duewheel.wheel.storage.cancel_log import CHASE, CHASE_FOUND
from duewheel.wheel.storage.data_directory import DataDirectory
from duewheel.wheel.storage.timer_log import TimerLog

MakeWorld = Callable[..., CancelWorld]


@pytest.fixture
def make_world(tmp_path: Path) -> MakeWorld:
    return lambda **settings: CancelWorld(tmp_path / "data", **settings)


@pytest.fixture
def recovering(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RecoveryWorld:
    return RecoveryWorld(tmp_path, monkeypatch)


def test_a_cancel_that_is_read_again_reaches_what_was_closed(
    make_world: MakeWorld, tmp_path: Path
) -> None:
    """The slot that is half delivered is closed, and its timer was cancelled before."""
    world = make_world(chunk_records=1)
    others = [TimerRow(0, n, NOW_MS + 30, timer_id=b"b") for n in range(3)]
    rows = [*others, timer(3, 3), cancel(4)]
    world.append(*rows)
    world.clock.set(NOW_MS + 6 * PRECISION_MS)
    assert world.shard.dequeue is not None
    for _ in range(2):
        world.shard.dequeue.tick()
    assert 0 < len(world.sources()) < len(others)
    world.lose_files(tmp_path / "other", {P0: 0, P1: 0})
    world.shard.append(rows, {P0: len(rows)})
    world.at_slot(9)
    assert world.sources() == [f"timers-0@{each.offset}" for each in others]


def test_after_a_loss_slots_that_were_delivered_prove_nothing(
    make_world: MakeWorld, tmp_path: Path
) -> None:
    world = make_world()
    world.append(timer(0, 5))
    world.at_slot(9)
    world.lose_files(tmp_path / "other", {P0: 0, P1: 0})
    bounds = CancelBounds.read(world.path)
    assert bounds == CancelBounds.blind_of(
        world.publisher.committed[-1][1].delivered_slot, [P0, P1]
    )


def test_a_backup_of_the_same_closed_range_does_not_know_what_has_left_since(
    make_world: MakeWorld, tmp_path: Path
) -> None:
    """Rows that have left since are not read back: their copies lie where no log shows them."""
    world = make_world(chunk_records=1)
    world.append(*(TimerRow(0, n, NOW_MS + 30, timer_id=b"b") for n in range(3)))
    world.clock.set(NOW_MS + 6 * PRECISION_MS)
    assert world.shard.dequeue is not None
    world.shard.dequeue.tick()
    shutil.copytree(world.path, tmp_path / "backup")
    world.shard.dequeue.tick()
    for role in Role:
        world.shard.kill(role)
    shutil.rmtree(world.path)
    shutil.copytree(tmp_path / "backup", world.path)
    world.restart(Role.DEQUEUE, Role.INGEST)
    recovery = RecoveryRecord.read(world.path)
    assert recovery is not None and recovery.case == "intact"
    bounds = CancelBounds.read(world.path)
    assert bounds == CancelBounds.blind_of(
        world.publisher.committed[-1][1].delivered_slot, [P0, P1]
    )


def test_a_standby_decides_on_no_cancel(recovering: RecoveryWorld, tmp_path: Path) -> None:
    """Its owner may have delivered what it finds pending; also where it owned the shard before."""
    standby = Standby(recovering, tmp_path / "standby")
    recovering.kafka[0] += [timer(0, 50), cancel(1), cancel(2, timer_id=b"nobody's")]
    recovering.write(0, 1)
    recovering.ingest()
    recovering.at_slot(3)
    standby.follower.tick()
    CancelBounds().write(standby.path, HOST_FS)
    assert standby.state.standby
    standby.ingest()
    assert list(outcomes(standby.directory)) == [CHASE_FOUND, CHASE]
    standby.kill()
    recovering.kill()


@pytest.mark.parametrize("named", [ANY_OFFSET, 1_000])
def test_a_standby_reads_each_timer_of_an_id_once(
    recovering: RecoveryWorld, tmp_path: Path, named: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And all of them, though an owner looks at few: one batch after another would take seconds."""
    standby, count = Standby(recovering, tmp_path / "standby"), 100
    recovering.kafka[0] += [timer(offset, 50) for offset in range(count)]
    read = count_messages_read(monkeypatch)
    for turn in range(5):
        recovering.kafka[0].append(cancel(count + turn, named=named))
        recovering.write(0, 1)
        recovering.ingest()
        recovering.at_slot(3 + turn)
        standby.follower.tick()
        read.clear()
        standby.ingest()
        assert sum(read) <= (1 if turn else count)
    assert len(set(outcomes(standby.directory))) == 1
    standby.kill()
    recovering.kill()


def test_without_room_for_the_index_a_cancel_is_read_again_to_an_end(
    make_world: MakeWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scan forgets which timers were read: parts of an id would be read for ever."""
    world = make_world()
    rows = [timer(offset, 50) for offset in range(30)]
    world.append(*rows, cancel(30, named=7))
    world.at_slot(5)
    world.lose_files(tmp_path / "other", {P0: 0, P1: 0})
    world.limit_lookups(rows_max=10)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(id_runs, "_IN_MEMORY_ROWS", 0)
    monkeypatch.setattr(type(HOST_FS), "open_unnamed", full)
    world.append(*rows)
    world.append(cancel(30, named=7))
    world.at_slot(60)
    assert world.sources() == [f"timers-0@{n}" for n in range(30) if n != 7]


def outcomes(directory: DataDirectory) -> Iterator[int]:
    for hour, (length, _) in directory.state.commit().cancels.items():
        for rows in directory.cancels.blocks(hour, length):
            yield from rows.outcome.tolist()


# ---- marks after a loss of power -----------------------------------------------------------------


def with_a_cancelled_timer(world: CancelWorld, fs: FileSystem = HOST_FS) -> None:
    """And one that is not; a durable checkpoint knows of both."""
    world.append(timer(0, 50), cancel(1), TimerRow(0, 2, NOW_MS + 500, timer_id=b"b"))
    world.at_slot(2)
    checkpoints = DurableCheckpoints(world.path, fs)
    checkpoints.write()
    checkpoints.close()


def lose_power(world: CancelWorld, host: ManualHost, marked: list[int]) -> None:
    """What is left of the marks: those of these records."""
    for role in Role:
        world.shard.kill(role)
    (path,) = (world.path / "timerlog").iterdir()
    data = bytearray(path.read_bytes())
    for row in range(2):
        data[row * RECORD_BYTES + 12] = ord("C") if row in marked else 0
    path.write_bytes(data)
    host.boot()
    world.shard.start_dequeue()
    world.shard.start_ingest()


@pytest.mark.parametrize("marked", [[], [0, 1]])
def test_after_a_loss_of_power_the_marks_are_those_of_what_was_kept(
    make_world: MakeWorld, marked: list[int]
) -> None:
    """It may take marks, and leave those of a batch that it takes; nothing is read again for it."""
    host = ManualHost()
    world = make_world(fs=host)
    with_a_cancelled_timer(world, host)
    lose_power(world, host, marked)
    record = RecoveryRecord.read(world.path)
    assert record is not None and (record.case, record.keep.name) == ("power lost", "DURABLE")
    assert world.engine.marks[P0] == 3, "nothing is read again"
    world.at_slot(60)
    assert world.sources() == ["timers-0@2"]


def test_a_durable_checkpoint_names_only_files_that_are_synced(make_world: MakeWorld) -> None:
    synced = set[str]()

    class WatchedDisk(FileSystem):
        def sync_path(self, path: Path) -> None:
            synced.add(path.parent.name)
            super().sync_path(path)

    disk = WatchedDisk()
    world = make_world(fs=disk)
    with_a_cancelled_timer(world, disk)
    folders = {path.parent.name for path in world.path.glob("*/*") if path.is_file()}
    assert {"timerlog", "messages", "cancelled", "cancels", "requests"} <= folders
    assert {"timerlog", "messages", "cancelled", "cancels", "requests"} <= synced


def test_a_kill_before_the_marks_loses_none(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world()
    world.append(timer(0, 50))

    def killed(*_: Int64, **__: bool) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(TimerLog, "mark_cancelled", killed)
    with pytest.raises(KeyboardInterrupt):
        world.append(cancel(1))
    monkeypatch.undo()
    world.restart(Role.INGEST)
    assert world.engine.marks[P0] == 2
    world.at_slot(60)
    assert (world.sources(), world.answers()) == ([], [("timers-0@1", "cancelled")])


@pytest.mark.parametrize("lost", [False, True])
def test_without_cancel_bounds_a_cancel_waits_for_what_may_still_be_rolled(
    make_world: MakeWorld, lost: bool
) -> None:
    """What was closed and has not left may be rolled: its copy will lie behind the end of now."""
    world = make_world(chunk_records=1)
    now_ms = world.clock.now_ms()
    later = TimerRow(0, 2, now_ms + 5_000, timer_id=b"x", timestamp_ms=now_ms)
    world.append(TimerRow(0, 0, now_ms + 200), TimerRow(0, 1, now_ms + 210), later)
    world.clock.set(now_ms + 900)  # all is closed at once, the roll last
    assert world.shard.dequeue is not None
    world.shard.dequeue.tick()
    assert "timers-0@2" not in world.sources()
    world.shard.kill(Role.DEQUEUE)
    if lost:
        (world.path / FILE_NAME).unlink()
    world.publisher.ends = {P0: 3}
    world.shard.start_dequeue()
    world.drain()
    assert world.sources()[-1] == "timers-0@2"
    world.append(cancel(3, timer_id=b"x"))
    world.clock.sleep(1)
    world.drain()
    assert (world.answers(), len(world.chases())) == ([], 1)
