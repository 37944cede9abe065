"""Processor time of processes that come and go while it is measured."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

from tests.bench.usage import measured

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
