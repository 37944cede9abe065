"""Schedules on real files, and the progress of their shard."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest
from tests.harness.newest_progress import NewestProgress
from tests.harness.schedule_shard import (  # noqa: F401 - fixtures
    client,
    config,
    service,
    settings,
)

from duewheel.config.settings import load
from duewheel.ops import connection


@pytest.fixture
def kafka(config: Path, monkeypatch: pytest.MonkeyPatch) -> NewestProgress:  # noqa: F811
    monkeypatch.setattr(connection, "require_kafka", lambda _: nullcontext())
    return NewestProgress.of_files(load(config).storage.data_dir, monkeypatch)
