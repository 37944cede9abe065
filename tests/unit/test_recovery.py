"""Starts and stops: who may work in a data directory, and where delivery goes on."""

from __future__ import annotations

import os
import uuid
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from duewheel.checkpoints import files
from duewheel.checkpoints.progress import PartitionProgress, Progress
from duewheel.checkpoints.recovery import (
    RecoveryRecord,
    Resumption,
    dequeue_has_decided,
    require_ours,
    resume,
)
from duewheel.checkpoints.state import Close, Commit, State
from duewheel.errors import ConfigError, Locked, RecoveryRefused
from duewheel.schemas.timers import TopicPartition
from duewheel.wheel.data_directory import DataDirectory, Role, declare_stopped
from duewheel.wheel.layout import WheelConfig

P: TopicPartition = ("timers", 0)
Q: TopicPartition = ("timers", 1)
WHEEL = WheelConfig(precision_ms=50, slots=1000, window_ms=10_000, margin_ms=0)
EMPTY = Commit(0, {}, {}, 0, applied=True)


# ---- who may work in a directory -----------------------------------------------------------------


def open_locks(path: Path) -> list[str]:
    opened = [Path(file.path) for file in psutil.Process().open_files()]
    return [file.name for file in opened if file.parent == path and file.suffix == ".lock"]


def test_each_role_has_one_process(tmp_path: Path) -> None:
    ingest = DataDirectory.start(tmp_path, WHEEL, Role.INGEST)
    with pytest.raises(Locked, match=f"ingest runs already, as process {os.getpid()}"):
        DataDirectory.start(tmp_path, WHEEL, Role.INGEST)
    assert not ingest.other_runs()
    dequeue = DataDirectory.start(tmp_path, WHEEL, Role.DEQUEUE)
    assert ingest.other_runs() and dequeue.other_runs()
    ingest.close()
    assert not dequeue.other_runs()
    DataDirectory.start(tmp_path, WHEEL, Role.INGEST).close()
    dequeue.close()


def test_the_process_that_stops_last_declares_a_clean_stop(tmp_path: Path) -> None:
    ingest = DataDirectory.start(tmp_path, WHEEL, Role.INGEST)
    dequeue = DataDirectory.start(tmp_path, WHEEL, Role.DEQUEUE)
    ingest.stop()
    assert not State.open(tmp_path).stopped_cleanly
    dequeue.stop()
    assert State.open(tmp_path).stopped_cleanly
    DataDirectory.start(tmp_path, WHEEL, Role.INGEST).close()
    assert not State.open(tmp_path).stopped_cleanly


def test_a_start_while_the_last_one_syncs_forbids_the_clean_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingest = DataDirectory.start(tmp_path, WHEEL, Role.INGEST)
    sync_tree = files.sync_tree
    started: list[DataDirectory] = []

    def start_another(path: Path) -> None:
        sync_tree(path)
        started.append(DataDirectory.start(path, WHEEL, Role.INGEST))

    monkeypatch.setattr(files, "sync_tree", start_another)
    ingest.stop()
    assert not State.open(tmp_path).stopped_cleanly
    started[0].close()


def test_a_clean_stop_can_be_declared_for_those_that_were_killed(tmp_path: Path) -> None:
    assert not declare_stopped(tmp_path)
    assert list(tmp_path.iterdir()) == []
    ingest = DataDirectory.start(tmp_path, WHEEL, Role.INGEST)
    dequeue = DataDirectory.start(tmp_path, WHEEL, Role.DEQUEUE)
    ingest.close()
    assert not declare_stopped(tmp_path)
    dequeue.close()
    assert declare_stopped(tmp_path)
    assert State.open(tmp_path).stopped_cleanly
    assert open_locks(tmp_path) == []


def test_no_clean_stop_is_declared_for_what_a_boot_has_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    DataDirectory.start(tmp_path, WHEEL, Role.INGEST).close()
    boot = str(uuid.uuid4())
    monkeypatch.setattr(files, "boot_id", lambda: boot)
    assert not declare_stopped(tmp_path)
    with pytest.raises(RecoveryRefused, match="has booted since"):
        DataDirectory.start(tmp_path, WHEEL, Role.INGEST)


def test_a_boot_without_a_clean_stop_is_refused_and_stays_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    DataDirectory.start(tmp_path, WHEEL, Role.INGEST).close()
    boot = str(uuid.uuid4())
    monkeypatch.setattr(files, "boot_id", lambda: boot)
    for role in (*Role, *Role):
        with pytest.raises(RecoveryRefused, match="has booted since"):
            DataDirectory.start(tmp_path, WHEEL, role)
    assert open_locks(tmp_path) == []


def test_a_start_and_an_end_leave_no_lock_open(tmp_path: Path) -> None:
    DataDirectory.start(tmp_path, WHEEL, Role.INGEST).close()
    DataDirectory.start(tmp_path, WHEEL, Role.DEQUEUE).stop()
    assert open_locks(tmp_path) == []


def test_a_refused_start_leaves_no_lock_behind(tmp_path: Path) -> None:
    DataDirectory.start(tmp_path, WHEEL, Role.INGEST).close()
    for _ in range(3):
        with pytest.raises(ConfigError, match="precision_ms=50"):
            DataDirectory.start(tmp_path, replace(WHEEL, precision_ms=10), Role.INGEST)
    assert open_locks(tmp_path) == []


def test_a_lost_file_is_refused_once_timers_have_been_placed(tmp_path: Path) -> None:
    DataDirectory.start(tmp_path, WHEEL, Role.INGEST).close()
    (tmp_path / "timerwheel").unlink()
    # Nothing is in it yet: as if a kill had come before the wheel was made.
    directory = DataDirectory.start(tmp_path, WHEEL, Role.INGEST)
    directory.state.write_commit(1, {P: 3}, {}, placed=3)
    directory.close()
    (tmp_path / "timerwheel").unlink()
    with pytest.raises(RecoveryRefused, match="lost its timerwheel; 3 timers"):
        DataDirectory.start(tmp_path, WHEEL, Role.INGEST)


def test_a_wheel_without_a_state_is_refused(tmp_path: Path) -> None:
    DataDirectory.start(tmp_path, WHEEL, Role.INGEST).close()
    (tmp_path / "state").unlink()
    with pytest.raises(RecoveryRefused, match="lost its state"):
        DataDirectory.start(tmp_path, WHEEL, Role.INGEST)


# ---- where delivery goes on ----------------------------------------------------------------------


def progress(r: int, c: int, c1: int | None = None, d: int | None = None) -> Progress:
    """Both partitions alike."""
    part = PartitionProgress(r, c, c1, d)
    return Progress(0, 1, "uuid", 1, {"window": 1}, {P: part, Q: part})


def marks(offset: int) -> dict[TopicPartition, int]:
    return {P: offset, Q: offset}


def test_an_empty_directory_begins_where_the_progress_says() -> None:
    close = Close(100, marks(7), 100, marks(7))
    assert resume(progress(100, 7), None, EMPTY, None) == Resumption("new", close, 100, {})


@pytest.mark.parametrize(
    ("found", "r", "below"),
    [
        (progress(20, 5), 20, {}),  # at the end of the range before
        (progress(12, 4), 20, {}),  # the slots between were empty and told no one
        (progress(25, 9), 25, {}),  # in the middle of the range
        (progress(30, 9), 30, {}),  # at its end
        (progress(20, 5, 9, 6), 20, marks(6)),  # its first slot is half delivered
        (progress(29, 9, 9, 8), 29, marks(8)),  # its last one is
    ],
)
def test_after_a_kill_delivery_goes_on_in_the_closed_range(
    found: Progress, r: int, below: dict[TopicPartition, int]
) -> None:
    close = Close(20, marks(5), 30, marks(9))
    commit = Commit(3, marks(11), {}, 11, applied=True)
    assert resume(found, close, commit, None) == Resumption("killed", close, r, below)
    assert resume(found, close, commit, found) == Resumption("killed", close, r, below)


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (progress(31, 9), "delivered up to slot 31, the files have closed 20 … 30"),
        (progress(30, 9, 9, 1), "slot 30 and part of the next"),
        (progress(19, 5, 9, 1), "slot 19 and part of the next"),
        (progress(25, 12), "have timers-0 up to offset 11, but slots were closed at 12"),
        (progress(25, 9, 12, 1), "up to offset 11, but slots were closed at 12"),
    ],
)
def test_files_older_than_the_progress_are_refused(found: Progress, reason: str) -> None:
    close = Close(20, marks(5), 30, marks(9))
    commit = Commit(3, marks(11), {}, 11, applied=True)
    with pytest.raises(RecoveryRefused, match=reason):
        resume(found, close, commit, None)


@pytest.mark.parametrize(
    ("found", "mirrored"),
    [
        (progress(24, 9), progress(25, 9)),
        (progress(24, 9), progress(24, 9, 9, 1)),
        (progress(24, 9, 9, 3), progress(24, 9, 9, 4)),
        (progress(24, 9, 9, 3), progress(25, 9)),
    ],
)
def test_a_progress_older_than_the_files_is_refused(found: Progress, mirrored: Progress) -> None:
    close = Close(20, marks(5), 30, marks(9))
    commit = Commit(3, marks(11), {}, 11, applied=True)
    with pytest.raises(RecoveryRefused, match="older than the local copy"):
        resume(found, close, commit, mirrored)
    assert resume(mirrored, close, commit, found).case == "killed"


def test_progress_without_files_is_refused() -> None:
    with pytest.raises(RecoveryRefused, match="never had"):
        resume(progress(100, 7, 9, 8), None, EMPTY, None)
    with pytest.raises(RecoveryRefused, match="never had"):
        resume(progress(100, 7), None, Commit(1, {}, {}, 0, applied=True), None)


def test_partitions_that_stand_apart_are_refused() -> None:
    apart = replace(
        progress(1, 1), partitions={P: PartitionProgress(1, 1), Q: PartitionProgress(2, 1)}
    )
    with pytest.raises(RecoveryRefused, match="2 different last slots"):
        resume(apart, Close(1, {}, 2, {}), EMPTY, None)


def test_another_owner_and_other_settings_are_refused() -> None:
    ours = progress(1, 1)
    require_ours(ours, uuid="uuid", shard=0, shards=1, slot_config={"window": 1})
    with pytest.raises(RecoveryRefused, match="belongs to the data directory uuid, this one is x"):
        require_ours(ours, uuid="x", shard=0, shards=1, slot_config={"window": 1})
    with pytest.raises(RecoveryRefused, match="shard 0 of 1, the configuration says 0 of 2"):
        require_ours(ours, uuid="uuid", shard=0, shards=2, slot_config={"window": 1})
    with pytest.raises(RecoveryRefused, match="window: was 1, is 2"):
        require_ours(ours, uuid="uuid", shard=0, shards=1, slot_config={"window": 2})


def test_a_progress_record_is_read_as_it_was_written() -> None:
    written = Progress(
        1,
        4,
        "uuid",
        3,
        {"window": 1, "levels": [1, 2]},
        {("b.c-d", 11): PartitionProgress(5, 2**53, 7, 6, 1), P: PartitionProgress(5, 0)},
    )
    assert Progress.decode(written.encode()) == written
    assert Progress.decode(written.encode()).encode() == written.encode()
    for damaged in (b"", b"{}", b"[]", written.encode().replace(b'"format":1', b'"format":2')):
        with pytest.raises(RecoveryRefused, match="cannot be read"):
            Progress.decode(damaged)


# ---- what dequeue tells ingest -------------------------------------------------------------------


def test_ingest_believes_only_the_dequeue_that_lives(tmp_path: Path) -> None:
    dequeue = DataDirectory.start(tmp_path, WHEEL, Role.DEQUEUE)
    number = dequeue.state.count_dequeue_start()
    record = RecoveryRecord("killed", files.boot_id(), number)

    def decided() -> bool:
        return dequeue_has_decided(dequeue.state, tmp_path)

    assert not decided()
    record.write(tmp_path)
    assert RecoveryRecord.read(tmp_path) == record
    assert decided()
    replace(record, boot_id=str(uuid.uuid4())).write(tmp_path)
    assert not decided()
    replace(record, dequeue_start=number - 1).write(tmp_path)
    assert not decided()
    record.write(tmp_path)
    path = tmp_path / "recovery"
    path.write_bytes(path.read_bytes().replace(b"killed", b"Killed"))
    assert not decided()
    record.write(tmp_path)
    assert decided()
    state = State.open(tmp_path)
    dequeue.close()
    assert not dequeue_has_decided(state, tmp_path)
