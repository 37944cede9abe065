"""When `run` starts a process again, and when not. Real processes, of Python, not duewheel."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from duewheel.backoff import Backoff
from duewheel.checkpoints.file_lock import FileLock
from duewheel.checkpoints.fs import HOST_FS
from duewheel.checkpoints.process_role import Role
from duewheel.checkpoints.state_file import State
from duewheel.clock import SystemClock
from duewheel.errors import ConfigError, Fenced, KafkaUnavailable, Locked, RecoveryRefused
from duewheel.runtime import run_file
from duewheel.runtime.exit_reason import VARIABLE
from duewheel.runtime.process_restart import BACKOFF_MS, KeptProcess

DEADLINE_S = 60.0
FOR_EVER = "import time; time.sleep(600)"
LIVES = (
    "import os, sys, time; from pathlib import Path; "
    "from duewheel.checkpoints.state_file import State; "
    "State.open(Path(sys.argv[1])).live.beat(1, os.getpid(), 1, 0)\n"
    "while not (Path(sys.argv[1]) / 'seen').exists(): time.sleep(0.01)\n"
)


def ends(code: int, reason: str = "") -> str:
    said = (
        f"import os; os.pwrite(int(os.environ['{VARIABLE}']), b'{reason}', 0); " if reason else ""
    )
    return f"{said}import sys; sys.exit({code})"


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Callable[..., KeptProcess]]:
    made: list[KeptProcess] = []
    State.create(tmp_path, 50, 1_000).release()

    def make(*programs: str, is_needed: bool = False) -> KeptProcess:
        left = list(programs)

        def command() -> list[str]:
            program = left.pop(0) if len(left) > 1 else left[0]
            return [sys.executable, "-c", program, str(tmp_path)]

        name, clock = "dequeue", SystemClock()
        made.append(KeptProcess(name, Role.DEQUEUE, tmp_path, clock, command, is_needed=is_needed))
        return made[-1]

    yield make
    for each in made:
        if each.child:
            each.child.stop(0)


def look_until(worker: KeptProcess, done: Callable[[], bool]) -> None:
    end_s = time.monotonic() + DEADLINE_S
    while not done():
        assert time.monotonic() < end_s, worker.status
        worker.poll()
        time.sleep(0.01)


@pytest.mark.parametrize(
    "code", [1, *(k.exit_code for k in (ConfigError, KafkaUnavailable, RecoveryRefused, Locked))]
)
def test_what_may_pass_is_tried_again_once_it_has_run(
    worker: Callable[..., KeptProcess], tmp_path: Path, code: int
) -> None:
    it = worker(LIVES + ends(code, "a stale answer"), FOR_EVER, is_needed=True)
    look_until(it, lambda: it.status.lives)
    (tmp_path / "seen").touch()
    look_until(it, lambda: it.child is None)
    status = it.status
    assert (status.last_exit_code, status.last_reason) == (code, "a stale answer")
    assert status.is_failing and status.next_try_ms
    assert it.refused_with in {0, code}
    look_until(it, lambda: it.child is not None)
    assert (it.status.restarts, it.final_code) == (1, 0)


def test_fencing_is_final(worker: Callable[..., KeptProcess]) -> None:
    it = worker(ends(Fenced.exit_code))
    look_until(it, lambda: bool(it.final_code))
    assert it.final_code == Fenced.exit_code
    assert not it.poll()


@pytest.mark.parametrize("kind", [ConfigError, RecoveryRefused])
def test_a_refusal_is_told_at_once_where_nothing_has_run_yet(
    worker: Callable[..., KeptProcess], kind: type[ConfigError]
) -> None:
    it = worker(ends(kind.exit_code), is_needed=True)
    look_until(it, lambda: bool(it.final_code))
    assert it.final_code == kind.exit_code
    other = worker(ends(kind.exit_code), FOR_EVER, is_needed=False)
    look_until(other, lambda: other.status.restarts == 1)
    assert other.final_code == 0


def test_a_process_that_cannot_be_started_is_tried_again(
    worker: Callable[..., KeptProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = worker(FOR_EVER)
    with monkeypatch.context() as patch:

        def no_room(*_: object) -> int:
            raise OSError(11, "Resource temporarily unavailable")

        patch.setattr("duewheel.runtime.process_restart.ExitReasonFile", no_room)
        look_until(it, lambda: bool(it.status.last_reason))
    assert "temporarily unavailable" in it.status.last_reason
    assert it.child is None
    look_until(it, lambda: it.child is not None)


def test_waits_grow_to_a_minute_and_start_over() -> None:
    backoff = Backoff(SystemClock(), Random(1), *BACKOFF_MS)
    waits_ms = [backoff.next_ms() for _ in range(10)]
    assert all(1_000 <= wait_ms >> n <= 2_000 for n, wait_ms in enumerate(waits_ms[:5]))
    assert 30_000 <= waits_ms[-1] <= 60_000
    backoff.succeeded()
    assert backoff.next_ms() <= 2_000


def test_what_is_known_is_read_only_while_a_run_holds_its_lock(tmp_path: Path) -> None:
    fd = HOST_FS.open_file(tmp_path / run_file.FILE_NAME)
    status = {
        "ingest": run_file.Supervised(pid=7, lives=True),
        "dequeue": run_file.Supervised(
            restarts=3, last_exit_code=6, last_reason="x" * 500, next_try_ms=1_000
        ),
    }
    run_file.write(fd, status)
    assert run_file.read(tmp_path) is None
    lock = FileLock(tmp_path / run_file.LOCK_NAME)
    assert lock.try_acquire()
    assert run_file.read(tmp_path) == status
    os.pwrite(fd, b"garbage", 0)
    assert run_file.read(tmp_path) is None
    lock.close()
    os.close(fd)
