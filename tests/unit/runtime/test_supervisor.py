"""A process that keeps engine.lock: killed if it does nothing, and left if it works."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.harness.launcher import wait_until

from duewheel.checkpoints.file_lock import ENGINE_LOCK
from duewheel.runtime import supervisor
from duewheel.runtime.supervisor import _LockWatch

HOLDER = """
import sys, time
from pathlib import Path
from duewheel.checkpoints.file_lock import FileLock
with FileLock(Path(sys.argv[1])).held(1):
    print("held", flush=True)
    end_s = time.monotonic() + float(sys.argv[2])
    while time.monotonic() < end_s:
        pass
    time.sleep(60)
"""
Holds = Callable[[float], subprocess.Popen[str]]


@pytest.fixture
def holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Holds]:
    """Starts a process that has the lock, works for so many seconds, and then sleeps."""
    monkeypatch.setattr(supervisor, "_LOCK_STUCK_S", 1.0)
    started = list[subprocess.Popen[str]]()

    def start(works_s: float) -> subprocess.Popen[str]:
        words = [sys.executable, "-c", HOLDER, str(tmp_path / ENGINE_LOCK), str(works_s)]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def killed(watch: _LockWatch, process: subprocess.Popen[str]) -> bool:
    watch.poll([process.pid])
    return process.poll() == -signal.SIGKILL


def test_a_holder_that_does_nothing_is_killed(tmp_path: Path, holds: Holds) -> None:
    watch, process = _LockWatch(tmp_path), holds(0)
    wait_until(lambda: killed(watch, process), "it is left")


def test_a_holder_that_works_is_left_until_it_has_ended(tmp_path: Path, holds: Holds) -> None:
    """After a loss, a cancel of millions of timers takes longer: it would begin again for ever."""
    watch, process = _LockWatch(tmp_path), holds(4)
    watch.poll([process.pid])
    since_s, before_s = time.monotonic(), supervisor._processor_s(process.pid)  # noqa: SLF001
    worked_s = 0.0
    while worked_s < 2.5:
        worked_s = supervisor._processor_s(process.pid) - before_s  # noqa: SLF001
        idle_s = time.monotonic() - since_s - worked_s
        if killed(watch, process):
            assert idle_s > 0.8, "the host was too busy for it"
            return
        time.sleep(0.05)
    wait_until(lambda: killed(watch, process), "it is left")


def test_a_holder_that_works_without_end_is_killed(
    tmp_path: Path, holds: Holds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_LOCK_LONGEST_S", 2.0)
    watch, process = _LockWatch(tmp_path), holds(60)
    wait_until(lambda: killed(watch, process), "it is left")
