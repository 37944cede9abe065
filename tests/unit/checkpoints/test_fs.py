"""The seam to the file system: whole writes, exact reads, replacement, locks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from duewheel.checkpoints.fs import (
    HOST_FS,
    Bytes,
    FileLock,
    FileSystem,
    NewFile,
    lock_is_held,
    read_into,
)
from duewheel.errors import CorruptFile, Locked


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


def test_a_lock_is_held_by_one_and_names_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert not lock_is_held(path)
    one, two = FileLock(path), FileLock(path)
    assert one.holder() == 0
    assert one.try_acquire()
    assert not two.try_acquire()
    assert lock_is_held(path)
    with pytest.raises(Locked, match=f"held by process {os.getpid()}"):
        two.acquire(0.01)
    one.release()
    assert not lock_is_held(path)
    with two.held(0.01):
        assert not one.try_acquire()
    assert one.try_acquire()
    one.close()
    assert two.try_acquire()
    two.close()


def test_the_kernel_frees_the_lock_of_a_killed_process(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from duewheel.checkpoints.fs import FileLock\n"
        "assert FileLock(Path(sys.argv[1])).try_acquire()\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-P", "-c", script, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        lock = FileLock(path)
        assert not lock.try_acquire()
        assert lock.holder() == holder.pid
        holder.kill()
        holder.wait()
        assert lock.try_acquire()
        lock.close()
