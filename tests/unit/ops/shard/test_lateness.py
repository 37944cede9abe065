"""The lateness that `duewheel serve` reads from the files of the shard."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.harness.local_world import NOW_MS, LocalWorld
from tests.harness.served import served, settings_of, without_progress
from tests.harness.timer_rows import P0

from duewheel.checkpoints.live_fields import LATENESS_MAX, FieldIndex
from duewheel.checkpoints.state_file import State
from duewheel.config.settings import Settings
from duewheel.ops.shard.lateness import read_lateness
from duewheel.testing import ManualClock
from duewheel.wheel.dequeue.duration_histogram import MILLISECONDS


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_of(tmp_path)


def test_lateness_is_that_of_the_loop(settings: Settings) -> None:
    """Three deliveries at one moment, one of them later than every bound."""
    late_ms = 2 * MILLISECONDS[-1]
    world = LocalWorld(settings.storage.data_dir, settings.wheel, starts={P0: 0})
    world.put(50, late_ms - 70, late_ms - 40)
    world.clock.set(NOW_MS + late_ms)
    world.drain()
    found = read_lateness(settings, world.clock)
    assert found.available
    within = dict(zip(found.bounds_s, found.counts, strict=False))
    assert (within[0.025], within[0.05], within[0.075]) == (0, 1, 2)
    assert found.counts[-2:] == [2, 3]
    assert len(found.counts) == len(found.bounds_s) + 1
    world.kill()
    assert read_lateness(settings, world.clock).reason == "dequeue is stopped"
    with State.open(settings.storage.data_dir) as state:
        state.set_standby(on=True)
    assert "standby" in str(read_lateness(settings, world.clock).reason)


def test_the_counts_have_fields_of_their_own() -> None:
    assert len(MILLISECONDS) + 1 <= LATENESS_MAX
    used = range(FieldIndex.LATENESS + 1, FieldIndex.LATENESS + LATENESS_MAX)
    assert not [each for each in FieldIndex if each in used]


def test_the_api_has_it(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    without_progress(monkeypatch)
    with served(settings) as client:
        found = client.get("/v1/lateness").json()
    assert (found["available"], found["bounds_s"], found["counts"]) == (False, [], [])
    assert "there is no data directory" in found["reason"]
    assert not read_lateness(settings, ManualClock(NOW_MS)).available
