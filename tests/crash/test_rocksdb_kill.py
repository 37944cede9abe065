"""SIGKILL of a process in which RocksDB flushes, compacts and drops logs, at random moments.

What RocksDB writes by itself is no store that test_engine_kill.py could count. Real processes, real
files; dequeue lives, delivers, follows the database, and finishes what ingest has left.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest
from tests.crash.rocksdb_child import CONFIG, NOW_MS, P0, SPAN_MS, WHEEL

from duewheel.checkpoints.role import Role
from duewheel.testing import LocalShard, ManualClock, RecordingPublisher
from duewheel.wheel.storage.full_check import check

CHILD = Path(__file__).with_name("rocksdb_child.py")


def kill_one(folder: Path, alive_s: float) -> int:
    """Starts ingest, and kills it so long after its first batch; how many it had said to have."""
    command = [sys.executable, "-P", str(CHILD), str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        first = child.stdout.readline()
        time.sleep(alive_s)
        child.send_signal(signal.SIGKILL)
        said = [first, *child.stdout.readlines()]
    return max(int(line) for line in said if line.endswith("\n"))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kills", [4, pytest.param(40, marks=pytest.mark.crash_matrix)])
def test_rocksdb_killed_at_work(tmp_path: Path, kills: int) -> None:
    dice, clock = Random(kills), ManualClock(NOW_MS)
    publisher = RecordingPublisher(clock)
    shard = LocalShard(tmp_path / "data", WHEEL, publisher, clock, CONFIG)
    dequeue = shard.start_dequeue({P0: 0})
    taken, flushed = 0, 0
    for _ in range(kills):
        said = kill_one(tmp_path, dice.uniform(0.0, 0.5))
        clock.sleep(0.5)
        while dequeue.tick():
            pass
        flushed += bool(list((tmp_path / "data" / "rocksdb").rglob("*.sst")))
        taken = shard.directory(Role.DEQUEUE).state.commit().marks[P0]
        assert taken >= said, "what the process has said to have is there"
        assert check(tmp_path / "data", WHEEL).findings == []
    assert flushed, "too little to flush: the test shows nothing"
    clock.sleep(SPAN_MS / 1_000)
    while dequeue.tick():
        pass
    offsets = sorted(int(source.rpartition(b"@")[2]) for source in publisher.sources())
    assert offsets == list(range(taken)), "each once"
    shard.kill(Role.DEQUEUE)
