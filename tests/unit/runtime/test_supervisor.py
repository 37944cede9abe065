"""A process that keeps engine.lock: killed if it does nothing, and left if it works."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import psutil
import pytest
from tests.harness.launcher import wait_until

from duewheel.checkpoints.file_lock import ENGINE_LOCK
from duewheel.runtime import supervisor
from duewheel.runtime.supervisor import _LockWatch

HOLDER = """
import sys, time
from pathlib import Path
from duewheel.checkpoints.file_lock import FileLock
works_s, sleeps_s = map(float, sys.argv[2:])
lock = FileLock(Path(sys.argv[1]))
while True:
    with lock.held(1):
        print("held", flush=True)
        end_s = time.monotonic() + works_s
        while time.monotonic() < end_s:
            pass
        time.sleep(sleeps_s)
"""


class Holds(Protocol):
    def __call__(self, works_s: float, sleeps_s: float = 60) -> subprocess.Popen[str]: ...


@pytest.fixture
def holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Holds]:
    """Starts a process that again and again takes the lock, works for so many seconds, and sleeps
    for others.
    """
    monkeypatch.setattr(supervisor, "_LOCK_STUCK_S", 1.0)
    started = list[subprocess.Popen[str]]()

    def start(works_s: float, sleeps_s: float = 60) -> subprocess.Popen[str]:
        times = [str(works_s), str(sleeps_s)]
        words = [sys.executable, "-c", HOLDER, str(tmp_path / ENGINE_LOCK), *times]
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
    since_s, before_s = time.monotonic(), supervisor._worked_s(process.pid)  # noqa: SLF001
    worked_s = 0.0
    while worked_s < 2.5:
        worked_s = supervisor._worked_s(process.pid) - before_s  # noqa: SLF001
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


def test_a_holder_that_waits_for_a_processor_is_left(tmp_path: Path, holds: Holds) -> None:
    """Ingest has a low priority: on a busy host a batch may have the lock for long."""
    watch, process = _LockWatch(tmp_path), holds(60)
    place, processor = psutil.Process(process.pid), [min(psutil.Process().cpu_affinity())]
    place.cpu_affinity(processor)
    place.nice(5)  # as ingest
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        psutil.Process(busy.pid).cpu_affinity(processor)
        until = sum(supervisor._waits_s(process.pid)) + 2.5  # noqa: SLF001
        while sum(supervisor._waits_s(process.pid)) < until:  # noqa: SLF001
            assert not killed(watch, process), "it was ready to work"
            time.sleep(0.05)
    finally:
        busy.kill()
        busy.wait()


def test_a_holder_that_takes_the_lock_again_and_again_is_left(tmp_path: Path, holds: Holds) -> None:
    watch, process = _LockWatch(tmp_path), holds(0, 0.2)
    assert process.stdout is not None
    for _ in range(20):  # three seconds and more
        assert not killed(watch, process), "it had the lock for a moment only"
        process.stdout.readline()
