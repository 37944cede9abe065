"""Locks between processes: who holds one, and that its death frees it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from duewheel.checkpoints.file_lock import FileLock, lock_is_held
from duewheel.errors import Locked


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
        "from duewheel.checkpoints.file_lock import FileLock\n"
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
