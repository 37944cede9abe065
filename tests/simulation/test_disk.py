"""The simulated disk itself: what was synced stays, what was not may be lost in every way."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from tests.simulation.disk import Disk

OLD, NEW = b"o" * 2048, b"n" * 3000
LOSSES = 300


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    made = Disk(tmp_path / "disk")
    made.clear()
    return made


def test_what_was_synced_is_there(disk: Disk) -> None:
    path = disk.root / "folder" / "file"
    path.parent.mkdir()
    path.write_bytes(OLD)
    for synced in (path, path.parent, disk.root):
        disk.synced(synced)
    for seed in range(LOSSES):
        disk.lose_power(Random(seed))
        assert path.read_bytes() == OLD


def test_what_was_not_synced_is_old_new_and_everything_between(disk: Disk) -> None:
    path = disk.root / "file"
    found = set()
    for seed in range(LOSSES):
        disk.replace({"file": OLD})
        path.write_bytes(NEW)
        disk.lose_power(Random(seed))
        found.add(path.read_bytes())
    assert {OLD, NEW} <= found
    assert any(set(content[:2048]) == {*b"on"} for content in found), "pieces of both"
    assert any(content.endswith(b"\0") for content in found), "longer, but never written"
    assert any(2048 < len(content) < 3000 for content in found), "cut in between"


def test_a_name_that_was_not_synced_may_vanish_or_come_back(disk: Disk) -> None:
    outcomes = set()
    for seed in range(LOSSES):
        disk.replace({"kept": OLD, "removed": OLD, "replaced": OLD})
        (disk.root / "made").write_bytes(NEW)
        disk.synced(disk.root / "made")
        (disk.root / "removed").unlink()
        (disk.root / "other").write_bytes(NEW)
        disk.synced(disk.root / "other")
        (disk.root / "other").rename(disk.root / "replaced")
        disk.lose_power(Random(seed))
        left = {path.name: path.read_bytes() for path in disk.root.iterdir()}
        assert left["kept"] == OLD
        assert left["replaced"] in {OLD, NEW}, "a rename is not torn"
        outcomes.add(("made" in left, "removed" in left, left["replaced"] == NEW))
    assert len(outcomes) == 8


def test_syncing_a_folder_makes_its_names_last_but_not_their_content(disk: Disk) -> None:
    path, found = disk.root / "file", set()
    for seed in range(LOSSES):
        disk.replace({})
        path.write_bytes(NEW)
        disk.made(path.stat().st_ino)
        disk.synced(disk.root)
        disk.lose_power(Random(seed))
        found.add(path.read_bytes())
    assert {b"", NEW} <= found
