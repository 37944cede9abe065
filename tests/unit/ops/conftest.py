"""Schedules on real files."""

from __future__ import annotations

from tests.harness.schedule_shard import (  # noqa: F401 - fixtures
    applied,
    client,
    config,
    service,
    settings,
)
