"""Why the shard on this host does not reply."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.harness.config_file import small_settings
from tests.harness.local_world import LocalWorld
from tests.harness.timer_rows import P0

from duewheel.clock import SystemClock
from duewheel.config.settings import Settings
from duewheel.ops.shard import local_readiness


@pytest.fixture
def stopped(tmp_path: Path) -> Settings:
    settings = small_settings(tmp_path / "data")
    LocalWorld(settings.storage.data_dir, settings.wheel, starts={P0: 0}).stop()
    return settings


def test_reasons_are_those_of_the_shard_on_this_host(stopped: Settings, tmp_path: Path) -> None:
    assert local_readiness.why_no_reply(stopped, SystemClock())[0] == "ingest is stopped"
    elsewhere = stopped.model_copy(
        update={"storage": stopped.storage.model_copy(update={"data_dir": tmp_path / "none"})}
    )
    assert local_readiness.why_no_reply(elsewhere, SystemClock()) == []
