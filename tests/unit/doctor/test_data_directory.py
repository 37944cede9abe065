"""What `duewheel doctor` says of the data directory and its file system."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import NoReturn

import psutil
import pytest
from tests.harness.config_file import small_settings
from tests.harness.no_rights import no_rights_on

from duewheel.api.examination import DoctorFinding
from duewheel.checkpoints.disk_room import Room
from duewheel.doctor import data_directory
from duewheel.doctor.examination import guarded


@pytest.mark.parametrize(
    ("kind", "severity"),
    [
        ("ext4", "ok"),
        ("xfs", "ok"),
        ("nfs4", "error"),
        ("fuse.glusterfs", "error"),
        ("fuseblk", "ok"),
        ("overlay", "warning"),
        ("btrfs", "warning"),
        ("zfs", "warning"),
        ("bcachefs", "warning"),
        ("tmpfs", "warning"),
    ],
)
def test_file_systems(kind: str, severity: str) -> None:
    assert data_directory.check_file_system(Path("/data"), kind).severity == severity


def test_room_for_the_wheel_and_for_timers() -> None:
    ring, least, room = 134 << 20, 256 << 20, 2 << 30

    def found(free: int) -> DoctorFinding:
        return data_directory.check_space("d", Room(free, least), ring)

    assert found(ring + least + room).severity == "ok"
    assert found(ring + least + room - 1).severity == "warning"
    assert found(ring + least - 1).severity == "error"
    assert "leaves 256 (storage.min_free), the wheel takes 134" in found(ring).found


def findings(data_dir: Path) -> dict[str, DoctorFinding]:
    """The findings of a data directory, by code: as the whole examination has them."""
    found = guarded("data directory", data_directory.examine(small_settings(data_dir)))
    return {finding.code: finding for finding in found}


def test_a_directory_below_a_closed_folder_is_one_error(tmp_path: Path) -> None:
    with no_rights_on(tmp_path):
        found = findings(tmp_path / "data")
    assert found.keys() == {"not_examined"}
    failed = found["not_examined"]
    assert (failed.subject, failed.severity) == ("data directory", "error")
    assert "Permission denied" in failed.found
    assert failed.remedy.startswith("check the rights of user ")


def test_rights_are_not_found_right_where_nobody_could_look(tmp_path: Path) -> None:
    with no_rights_on(tmp_path), pytest.raises(PermissionError):
        data_directory.check_rights(tmp_path)


def test_a_file_in_the_place_of_the_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "data").touch()
    found = findings(tmp_path / "data")
    assert found["data_directory"].severity == found["not_examined"].severity == "error"
    assert "data_rights" not in found


def test_a_directory_to_come_is_examined_in_its_nearest_parent(tmp_path: Path) -> None:
    found = findings(tmp_path / "far" / "data")
    assert found.keys() == {"file_system", "data_directory", "disk_space"}
    assert found["data_directory"].severity == "ok"
    assert list(tmp_path.iterdir()) == []


def test_only_a_wheel_takes_room_in_advance(tmp_path: Path) -> None:
    settings = small_settings(tmp_path)
    timer = settings.timer.model_copy(update={"timeline": "rocksdb"})
    for each, takes in ((settings, True), (settings.model_copy(update={"timer": timer}), False)):
        (room,) = [f for f in data_directory.examine(each) if f.code == "disk_space"]
        assert ("the wheel takes" in room.found) == takes


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.EACCES, "the right to write there"),
        (errno.ENOSPC, "make room there"),
        (errno.EROFS, "set storage.data_dir to a directory on a local disk"),
    ],
)
def test_a_directory_without_use_has_the_remedy_of_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, remedy: str
) -> None:
    def refuse(*_: object) -> NoReturn:
        raise OSError(number, "refused")

    monkeypatch.setattr(data_directory, "NewFile", refuse)
    failed = findings(tmp_path)["data_directory"]
    assert (failed.severity, remedy in failed.remedy) == ("error", True), failed


def test_a_folder_of_no_listed_mount_is_examined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a chroot."""
    monkeypatch.setattr(psutil, "disk_partitions", lambda **_: [])
    monkeypatch.setattr(data_directory, "copies_on_write", lambda _: None)
    found = list(data_directory.examine(small_settings(tmp_path / "data")))
    assert [each.found for each in found if each.code == "file_system"] == ["unknown"]
