"""Processor time: of a with block only, and of processes that come and go meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

from tests.bench.usage import ProcessTree, measured

BUSY = """
import sys, time
while time.process_time() < 0.5: pass
print(flush=True)
sys.stdin.read()
"""


def test_a_process_that_starts_and_ends_meanwhile_counts() -> None:
    pids: list[int] = []

    def parts() -> Mapping[str, Sequence[int]]:
        return {"work": list(pids), "own": [os.getpid()]}

    with measured(parts) as usage:
        child = subprocess.Popen(
            [sys.executable, "-c", BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        with child:
            pids.append(child.pid)
            assert child.stdout is not None
            child.stdout.readline()
            usage.sample()
            pids.clear()
    assert usage.processor_s()["work"] >= 0.4  # of half a second, in ticks
    assert usage.peak_mb["work"] > 1


def test_what_is_used_after_the_block_does_not_count() -> None:
    with measured(lambda: {"own": [os.getpid()]}) as usage:
        use_processor(0.3)
    used_s = usage.processor_s()["own"]
    use_processor(0.3)
    assert usage.processor_s()["own"] == used_s
    assert used_s >= 0.25  # the end of the block is a sample


def use_processor(seconds: float) -> None:
    end_s = time.process_time() + seconds
    while time.process_time() < end_s:
        pass


def test_a_family_has_grandchildren_and_those_that_came_since_the_last_look() -> None:
    tree = ProcessTree()
    assert tree.family(os.getpid())[0] == os.getpid()
    with subprocess.Popen(["sh", "-c", "sleep 60 & echo $!; wait"], stdout=-1) as child:
        assert child.stdout is not None
        grandchild = int(child.stdout.readline())
        assert tree.family(child.pid) == [child.pid, grandchild]
        assert {child.pid, grandchild} < set(tree.family(os.getpid()))
        child.terminate()
        os.kill(grandchild, 9)
    assert child.pid not in tree.family(os.getpid())
