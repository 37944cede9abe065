"""What `duewheel doctor` says of the data directory and its file system."""

from __future__ import annotations

from pathlib import Path

import pytest

from duewheel.doctor import data_directory


@pytest.mark.parametrize(
    ("kind", "severity"),
    [
        ("ext4", "ok"),
        ("xfs", "ok"),
        ("nfs4", "error"),
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
    assert data_directory.check_space("d", ring + least + room, ring, least).severity == "ok"
    assert (
        data_directory.check_space("d", ring + least + room - 1, ring, least).severity == "warning"
    )
    assert data_directory.check_space("d", ring + least - 1, ring, least).severity == "error"
    assert "leaves 256 (storage.min_free), the wheel takes 134" in (
        data_directory.check_space("d", ring, ring, least).found
    )
