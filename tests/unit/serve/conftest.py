"""No server of a test looks for a Kafka; most schedules need a shard on real files."""

from __future__ import annotations

import pytest
from tests.harness.schedule_shard import (  # noqa: F401 - fixtures
    client,
    cluster,
    config,
    service,
    settings,
)
from tests.harness.served import without_progress


@pytest.fixture(autouse=True)
def progress_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    without_progress(monkeypatch)
