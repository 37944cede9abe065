"""A shard without Kafka that has timers, and was stopped: for whatever reads its files by its
settings.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tests.harness.config_file import write_config
from tests.harness.local_world import LocalWorld
from tests.harness.timer_rows import P0, TIMER_TOPIC, TimerRow

from duewheel.config.settings import load


def stopped_shard(folder: Path, rows: Iterable[TimerRow]) -> Path:
    """Makes its files below `folder`, with these rows of partition 0; returns its settings."""
    path = write_config(folder, "127.0.0.1:1", "stopped", timer={"topics": [TIMER_TOPIC]})
    settings = load(path)
    world = LocalWorld(settings.storage.data_dir, settings.wheel, starts={P0: 0})
    world.append(*rows)
    world.stop()
    return path
