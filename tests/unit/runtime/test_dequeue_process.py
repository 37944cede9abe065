"""A dequeue process in an empty directory, while the shard's owner may be alive; and in that of
another shard.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.harness.config_file import write_config
from tests.harness.launcher import run
from tests.harness.local_world import NOW_MS, LocalWorld
from tests.harness.timer_rows import P0, TimerRow

from duewheel import factory
from duewheel.checkpoints.local_state import RecoveryRecord
from duewheel.checkpoints.obstacles import Obstacles
from duewheel.config.settings import load
from duewheel.errors import OwnerAlive, RecoveryRefused
from duewheel.runtime.dequeue_process import note_obstacles, once_the_owner_is_silent


class QuickClock(factory.StoppableClock):
    """Notes how long it was to sleep, and goes on."""

    def __init__(self, stops_after: int) -> None:
        super().__init__(threading.Event())
        self.slept: list[float] = []
        self._stops_after = stops_after

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        if len(self.slept) == self._stops_after:
            self.stopping.set()


class Closed:
    """A publisher that is only closed."""

    def __init__(self) -> None:
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


def alive_for(times: int) -> Callable[[], None]:
    left = iter(range(times))

    def start() -> None:
        if next(left, None) is not None:
            raise OwnerAlive("its last heartbeat is 3 s old. Takes over after 10 s", 7_000)

    return start


@pytest.mark.parametrize(
    ("refused", "stops_after", "owns"), [(0, 9, True), (2, 9, True), (5, 2, False)]
)
def test_it_waits_in_the_process_and_says_until_when(
    refused: int, stops_after: int, owns: bool
) -> None:
    clock, publisher = QuickClock(stops_after), Closed()
    wanted: Any = publisher
    with capture_logs() as lines:
        assert once_the_owner_is_silent(alive_for(refused), clock, wanted) is owns
    waits = min(refused, stops_after)
    assert clock.slept == [8.0] * waits
    assert publisher.closed == len(lines) == waits
    for line in lines:
        assert line["event"] == "waiting for the shard's owner to be silent"
        assert "3 s old" in line["reason"] and line["until"].endswith("Z")


@pytest.mark.parametrize("options", [["dequeue", "--take-over"], ["dequeue", "--standby"]])
def test_the_files_of_another_shard_are_refused(tmp_path: Path, options: list[str]) -> None:
    """A start would discard all timers in them. It is refused before Kafka is asked."""
    config = write_config(tmp_path, "127.0.0.1:1", "app", shard={"index": 1, "count": 2})
    settings = load(config)
    world = LocalWorld(settings.storage.data_dir, settings.wheel, starts={P0: 0})
    world.append(TimerRow(0, 1, NOW_MS + 60_000))
    world.stop()
    before = RecoveryRecord.read(settings.storage.data_dir)
    ended = run(config, *options)
    assert ended.returncode == RecoveryRefused.exit_code, ended.stderr
    assert "has the files of shard 0, the configuration says shard 1:" in ended.stderr
    assert RecoveryRecord.read(settings.storage.data_dir) == before


def test_without_room_no_obstacle_of_the_past_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note_obstacles(tmp_path, Obstacles({"bills": "no leader"}))
    assert Obstacles.read(tmp_path) == Obstacles({"bills": "no leader"})

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Obstacles, "write", full)
    note_obstacles(tmp_path, Obstacles())
    assert Obstacles.read(tmp_path) == Obstacles()
