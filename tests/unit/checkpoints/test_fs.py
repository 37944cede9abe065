"""The seam to the file system: whole writes, exact reads, replacement."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from duewheel.checkpoints.fs import HOST_FS, Bytes, FileSystem, NewFile, read_into
from duewheel.errors import CorruptFile

ROOT = Path(__file__).resolve().parents[3]


def read(path: Path, offset: int, size: int) -> bytes:
    target = bytearray(size)
    fd = HOST_FS.open_file(path)
    try:
        read_into(fd, memoryview(target), offset, path)
    finally:
        HOST_FS.close(fd)
    return bytes(target)


class FullDisk(FileSystem):
    """Takes nothing more."""

    def allocate(self, fd: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    def pwrite(self, fd: int, data: Bytes, offset: int) -> int:
        raise OSError(28, "No space left on device")


class ShortWrites(FileSystem):
    """Writes three bytes at a time, as a kernel may."""

    def pwrite(self, fd: int, data: Bytes, offset: int) -> int:
        return super().pwrite(fd, data[:3], offset)


def test_a_write_goes_on_until_everything_is_written(tmp_path: Path) -> None:
    path, fs = tmp_path / "file", ShortWrites()
    fd = fs.open_file(path)
    fs.write_at(fd, b"0123456789", 5)
    fs.close(fd)
    assert path.read_bytes() == b"\0" * 5 + b"0123456789"


def test_a_read_goes_on_until_everything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    preadv = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, into, at: preadv(fd, [into[0][:3]], at))
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    assert read(path, 1, 8) == b"12345678"


def test_reading_beyond_the_end_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    with pytest.raises(CorruptFile, match="ends 2 bytes early") as caught:
        read(path, 4, 8)
    assert (caught.value.path, caught.value.offset) == (path, 10)


def test_an_allocated_file_is_zero_and_has_its_blocks(tmp_path: Path) -> None:
    path = tmp_path / "file"
    new = NewFile(path, 100_000)
    assert not path.exists()
    new.put_in_place()
    new.close()
    assert path.read_bytes() == bytes(100_000)
    assert path.stat().st_blocks * 512 >= 100_000


def test_a_failed_allocation_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space"):
        NewFile(tmp_path / "file", 4096, FullDisk())
    assert list(tmp_path.iterdir()) == []


def test_a_replacement_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    HOST_FS.replace_file(path, b"old, and longer than the new one")
    HOST_FS.replace_file(path, b"new")
    assert path.read_bytes() == b"new"

    with pytest.raises(OSError, match="No space"):
        FullDisk().replace_file(path, b"newer")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_killed_process_has_left_is_written_over(tmp_path: Path) -> None:
    (tmp_path / f".replaced.{os.getpid()}").write_bytes(b"x" * 10_000)
    (tmp_path / ".allocated.new").write_bytes(b"x" * 10_000)
    HOST_FS.replace_file(tmp_path / "replaced", b"new")
    new = NewFile(tmp_path / "allocated", 5_000)
    new.put_in_place()
    new.close()
    assert (tmp_path / "replaced").read_bytes() == b"new"
    assert (tmp_path / "allocated").read_bytes() == bytes(5_000)


def test_syncing_a_tree_passes_over_what_vanishes_meanwhile(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_bytes(b"x")
    # Listed, and not there when it is opened: as another process's temporary file.
    (tmp_path / "folder" / ".recovery.4711").symlink_to("renamed away")
    HOST_FS.sync_tree(tmp_path)


def test_no_file_of_a_data_directory_changes_around_the_file_system() -> None:
    """A store made otherwise is one that no simulation and no kill test sees."""
    changes = re.compile(
        r"\bos\.(open|p?write|fsync|f?truncate|replace|rename|unlink|remove|mkdir|posix_fallocate)\b"
        r"|(?<!fs)\.(mkdir|rename|write_bytes|write_text|touch|flush)\(|mmap\.mmap\(|shutil\.|unlink\(missing_ok"
    )
    found = [
        f"{path.name}: {line.strip()}"
        for folder in ("checkpoints", "wheel")
        for path in (ROOT / folder).rglob("*.py")
        if path.name != "fs.py"
        for line in path.read_text().splitlines()
        if changes.search(line)
    ]
    assert found == []


def test_only_their_owner_reads_the_folders(tmp_path: Path) -> None:
    """The host's other users must not read message bodies."""
    HOST_FS.make_folder(tmp_path / "messages")
    assert (tmp_path / "messages").stat().st_mode & 0o777 == 0o700


def test_every_file_is_its_owners_alone_whatever_the_umask_says(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        HOST_FS.close(HOST_FS.open_file(tmp_path / "opened"))
        HOST_FS.replace_file(tmp_path / "replaced", b"key")
        HOST_FS.swap_file(tmp_path / "swapped", b"progress")
        HOST_FS.make_folder(tmp_path / "folder")
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {"opened": 0o600, "replaced": 0o600, "swapped": 0o600, "folder": 0o700}


def test_files_are_closed_to_all_others_and_directories_not_to_the_group(tmp_path: Path) -> None:
    (tmp_path / "timerlog").mkdir()
    (tmp_path / "timerlog").chmod(0o755)
    (tmp_path / "timerlog" / "2027011508").write_bytes(b"")
    (tmp_path / "timerlog" / "2027011508").chmod(0o664)
    (tmp_path / "mirror").write_bytes(b"")
    (tmp_path / "mirror").chmod(0o660)  # as Kubernetes makes it
    (tmp_path / "link").symlink_to("/")
    tmp_path.chmod(0o2775)
    changed = HOST_FS.close_to_others(tmp_path)
    hour = tmp_path / "timerlog" / "2027011508"
    assert set(changed) == {tmp_path, tmp_path / "timerlog", hour, tmp_path / "mirror"}
    assert hour.stat().st_mode & 0o7777 == 0o600
    assert tmp_path.stat().st_mode & 0o7777 == 0o2770
    assert HOST_FS.close_to_others(tmp_path) == []
