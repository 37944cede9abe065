"""`init` and `status` as deployments call them: repeatedly, also beside running processes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.harness.launcher import run

from duewheel.checkpoints.live_fields import Lag
from duewheel.checkpoints.role import Role
from duewheel.clock import SystemClock
from duewheel.config.settings import load
from duewheel.errors import Locked
from duewheel.ops.status import status
from duewheel.wheel.storage.data_directory import DataDirectory

pytestmark = pytest.mark.kafka


def test_init_may_be_repeated(config: Path) -> None:
    first = run(config, "init")
    assert first.returncode == 0, first.stderr
    assert "the shard has begun" in first.stdout
    again = run(config, "init")
    assert again.returncode == 0, again.stderr
    assert "nothing is changed" in again.stdout


def test_what_deployments_ask_of_running_processes(config: Path) -> None:
    assert run(config, "health").returncode == 2
    assert run(config, "init").returncode == 0
    assert run(config, "status").returncode == 0
    assert run(config, "health").returncode == 1
    settings = load(config)
    shard = {
        role: DataDirectory.start(settings.storage.data_dir, settings.wheel, role) for role in Role
    }
    try:
        # Who holds the lock and has given no sign of life may yet find that there is no progress.
        assert run(config, "init").returncode == Locked.exit_code
        for role, directory in shard.items():
            assert not status(settings)["ready"]
            directory.state.live.beat(role, os.getpid(), SystemClock().now_ms(), 0)
        assert not status(settings)["ready"]
        now_ms = SystemClock().now_ms()
        shard[Role.DEQUEUE].state.live.note_lag(Lag(now_ms, 0, now_ms, now_ms, 0))
        running = run(config, "health")
        assert running.returncode == 0, running.stdout
        beside = run(config, "init")
        assert beside.returncode == 0, beside.stderr
        assert "nothing is changed" in beside.stdout
    finally:
        for directory in shard.values():
            directory.stop()
