"""Schedules on real files."""

from __future__ import annotations

from tests.harness.schedule_shard import (  # noqa: F401 - fixtures
    client,
    config,
    service,
    settings,
)
