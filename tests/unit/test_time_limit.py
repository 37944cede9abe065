"""The time limit of tests: one that exceeds it fails alone, wherever its time runs out."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.harness import patience
from tests.harness.patience import Patience

ROOT = Path(__file__).parents[2]
CONFTEST = """
import time
import pytest
from tests.harness import time_limit

def pytest_configure(config):
    config.pluginmanager.register(time_limit)

def pytest_runtest_logreport(report):
    if report.nodeid.endswith("reported_slowly") and report.when == "call":
        time.sleep(3)

@pytest.fixture
def slow():
    yield
    while True:
        pass
"""
TESTS = """
import pytest
pytestmark = pytest.mark.timeout(1)

def test_reported_slowly():
    pass

def test_endless():
    while True:
        pass

def test_with_an_endless_teardown(slow):
    pass

def test_quick():
    pass
"""


def test_a_test_that_exceeds_its_time_fails_alone(tmp_path: Path) -> None:
    """Also within a hook, where pytest-timeout's alarm was an internal error."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_them.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = none\n")
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    run = subprocess.run(
        ["/usr/bin/env", f"PYTHONPATH={ROOT}", *command],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert "INTERNALERROR" not in run.stdout + run.stderr
    assert "1 failed, 3 passed, 1 error" in run.stdout


def test_seconds_pass_more_slowly_on_a_busy_host(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, load = 100.0, 1.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    monkeypatch.setattr(patience, "_load", lambda: load)
    ten = Patience(10)
    now_s += 9
    assert not ten.is_over()
    load, now_s = 15.0, now_s + 14.9
    assert not ten.is_over()
    load, now_s = 0.1, now_s + 0.1
    assert ten.is_over()
