"""SIGKILL of a process in which RocksDB flushes, compacts and drops logs, at random moments.

What RocksDB writes by itself is no store that test_engine_kill.py could count. Real processes, real
files; dequeue lives, delivers, follows the database, and finishes what ingest has left. Beside
ingest, two readers compare the timeline with the logs all the time (rocksdb_child.py).
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Self

import pytest
from tests.crash.engine_cases import WHEEL as RING
from tests.crash.engine_cases import Case, CaseShard, Server
from tests.crash.kill_cases import batches, cases, finish
from tests.crash.rocksdb_child import CONFIG, NOW_MS, P0, SPAN_MS, WHEEL
from tests.harness.publishers import RecordingPublisher
from tests.harness.timer_shard import TimerShard

from duewheel.checkpoints.process_role import Role
from duewheel.checkpoints.state_file import Damage, State
from duewheel.runtime.checkpointer import DurableCheckpoints
from duewheel.testing import ManualClock
from duewheel.wheel.storage.full_check import check

CHILD = Path(__file__).with_name("rocksdb_child.py")


def kill_one(folder: Path, alive_s: float) -> int:
    """Starts ingest, and kills it so long after its first batch; how many it had said to have."""
    command = [sys.executable, "-P", str(CHILD), str(folder), "append"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        first = child.stdout.readline()
        time.sleep(alive_s)
        child.send_signal(signal.SIGKILL)
        said = [first, *child.stdout.readlines()]
    return max(int(line) for line in said if line.endswith("\n"))


class Reader:
    """A reader of rocksdb_child.py, killed at the end of the with block.

    Attributes:
        printed: by then.
    """

    printed: str

    def __init__(self, folder: Path, role: str) -> None:
        command = [sys.executable, "-P", str(CHILD), str(folder), role]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGKILL)  # nothing, if it has ended
        self.printed = self._process.communicate()[0]

    def require_no_fault(self) -> None:
        """Until it was killed."""
        assert set(self.printed.splitlines()) <= {"sound"}
        assert self._process.returncode == -signal.SIGKILL


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kills", [4, pytest.param(40, marks=pytest.mark.crash_matrix)])
def test_rocksdb_killed_at_work(tmp_path: Path, kills: int) -> None:
    dice, clock = Random(kills), ManualClock(NOW_MS)
    publisher = RecordingPublisher(clock)
    shard = TimerShard(tmp_path / "data", WHEEL, publisher, clock, CONFIG)
    dequeue = shard.start_dequeue({P0: 0})
    kill_one(tmp_path, 0.0)  # it has made the database
    taken, flushed = 0, 0
    with Reader(tmp_path, "closing") as closing:
        for _ in range(kills):
            with Reader(tmp_path, "looking") as looking:
                said = kill_one(tmp_path, dice.uniform(0.0, 0.5))
            clock.sleep(0.5)
            while dequeue.tick():
                pass
            flushed += bool(list((tmp_path / "data" / "rocksdb").rglob("*.sst")))
            taken = shard.directory(Role.DEQUEUE).state.commit().marks[P0]
            assert taken >= said, "what the process has said to have is there"
            assert check(tmp_path / "data", WHEEL).findings == []
            looking.require_no_fault()
    assert flushed, "too little to flush: the test shows nothing"
    closing.require_no_fault()
    assert closing.printed, "too few looks: the test shows nothing"
    clock.sleep(SPAN_MS / 1_000)
    while dequeue.tick():
        pass
    offsets = sorted(int(source.rpartition(b"@")[2]) for source in publisher.sources())
    assert offsets == list(range(taken)), "each once"
    shard.kill(Role.DEQUEUE)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "step", [11, pytest.param(1, marks=pytest.mark.crash_matrix)], ids=["eleventh", "every"]
)
def test_a_rebuild_killed_at_every_store(
    server: Server, template: Case, tmp_path: Path, step: int
) -> None:
    """Databases are made, opened, filled and removed; the next start begins again."""
    new = batches(template, 3)
    damaged = template.copy(tmp_path / "damaged")
    damaged.wheel = replace(RING, timeline="rocksdb")
    DurableCheckpoints(damaged.path).write()
    with State.open(damaged.path) as state:
        state.note_damage(Damage.CACHE_LOST)
    for number, case in cases(damaged, tmp_path, step):
        ended = server.run(case, [["start_dequeue"], ["start_ingest"]], number)
        finish(case, CaseShard(case), new)
        if ended["code"] == 0:
            break
    assert number > ended["stores"] >= 20
