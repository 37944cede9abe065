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
from duewheel.wheel.data_directory import DataDirectory, Role
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
