"""A few hours of day.py and some days of years.py: `make simulate-day` and `simulate-years`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any


def run(name: str, *words: str) -> dict[str, Any]:
    script = str(Path(__file__).with_name(name))
    done = subprocess.run(
        [sys.executable, "-P", script, *words],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_some_hours_of_a_shard_with_all_its_misfortunes() -> None:
    result = run("day.py", "--hours", "6", "--timers", "100000", "--step-s", "90")
    # That nothing was lost, doubled, early or out of order is judged there; here, that the run
    # has met what it is for.
    met = [
        *("delivered", "rejected", "rolled", "fate: doubt"),
        *("dequeue killed", "ingest killed", "copies through the contract"),
    ]
    assert [name for name in met if not result.get(name)] == []
    assert result["laps"] > 6


def test_some_weeks_of_timers_that_roll_from_day_to_day() -> None:
    result = run("years.py", "--days", "12", "--timers", "200")
    assert result["delivered"] == 200
    assert result["rolls of one timer, most"] >= 11
    assert result["dequeue killed"] and result["copies through the contract"]
