"""A few hours of day.py. The whole day is `make simulate-day`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def test_some_hours_of_a_shard_with_all_its_misfortunes() -> None:
    script = str(Path(__file__).with_name("day.py"))
    words = ["--hours", "6", "--timers", "100000", "--step-s", "90"]
    done = subprocess.run(
        [sys.executable, "-P", script, *words],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    # That nothing was lost, doubled, early or out of order is judged there; here, that the run
    # has met what it is for.
    met = [
        *("delivered", "rejected", "rolled", "batches cut by a full ring", "fate: doubt"),
        *("dequeue killed", "ingest killed", "copies through the contract"),
    ]
    assert [name for name in met if not result.get(name)] == []
    assert result["laps"] > 6
