"""The demo as a new user runs it: with a broker of its own, and interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from tests.harness.launcher import wait_until

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.usefixtures("kafka_jars"),
]

DEMO = [sys.executable, "-P", "-m", "duewheel", "demo"]
DEADLINE_S = 240.0
GONE_S = 40.0


def started_by(mark: str) -> list[psutil.Process]:
    """Running processes that have the mark in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("DEMO_TEST") == mark:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def environment(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "DEMO_TEST": str(tmp_path), "TMPDIR": str(tmp_path)}


@pytest.mark.timeout(300)
def test_the_demo_ends_with_a_verdict_and_leaves_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [*DEMO, "--timers", "300", "--over", "3s", "--output", "json"],
        env=environment(tmp_path) | {"DUEWHEEL_TIMER__PRECISION_MS": "100"},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    verdict = json.loads(done.stdout)
    assert verdict["ok"] is True
    assert verdict["scheduled"] == verdict["delivered"] == 300
    assert verdict["lost"] == verdict["doubled"] == verdict["early"] == verdict["altered"] == 0
    assert verdict["lateness_ms"].keys() == {"p50", "p99", "p999", "max"}
    assert verdict["first_delivery_s"] > 0
    assert verdict["config"]["precision_ms"] == 100
    assert {"duewheel", "kafka", "pyspark", "java"} <= verdict["versions"].keys()
    assert started_by(str(tmp_path)) == []
    assert list(tmp_path.iterdir()) == []


def begun(tmp_path: Path) -> subprocess.Popen[bytes]:
    """A demo that has started all of its processes."""
    demo = subprocess.Popen(
        [*DEMO, "--timers", "300", "--over", "60s"],
        env=environment(tmp_path),
        stderr=subprocess.DEVNULL,
    )
    end_s = time.monotonic() + DEADLINE_S
    # The demo, the broker, `run`, dequeue and ingest, Spark's JVM, and who removes the two folders.
    while len(started_by(str(tmp_path))) < 8:
        assert time.monotonic() < end_s
        assert demo.poll() is None
        time.sleep(0.2)
    return demo


RARE = pytest.mark.crash_matrix


@RARE
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("hangup")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_demo_leaves_nothing(tmp_path: Path, how: signal.Signals) -> None:
    demo = begun(tmp_path)
    demo.send_signal(how)
    time.sleep(0.5)
    demo.send_signal(how)  # of one who has no patience
    assert demo.wait(DEADLINE_S) == 130
    assert started_by(str(tmp_path)) == []
    assert list(tmp_path.iterdir()) == []


@RARE
@pytest.mark.timeout(300)
def test_a_killed_demo_leaves_nothing(tmp_path: Path) -> None:
    demo = begun(tmp_path)
    time.sleep(5)  # its timers are on their way
    demo.kill()
    demo.wait(DEADLINE_S)
    wait_until(
        lambda: not started_by(str(tmp_path)), lambda: str(started_by(str(tmp_path))), GONE_S, 0.2
    )
    assert list(tmp_path.iterdir()) == []
