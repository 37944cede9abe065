"""The status of a standby, and its promotion; no Kafka, no Spark."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.core import Metric
from tests.harness.config_file import small_settings
from tests.harness.local_world import NOW_MS, LocalWorld
from tests.harness.timer_rows import P0, TIMER_TOPIC, TimerRow

from duewheel.api.shard import Promoted
from duewheel.checkpoints.process_role import Role
from duewheel.errors import ConfigError, Misconfigured, RecoveryPending
from duewheel.ops.files import open_files
from duewheel.ops.shard.promote import promote_standby
from duewheel.ops.shard.status import read_status
from duewheel.ops.timers import pending_stats as inspection
from duewheel.runtime.dequeue_metrics import DequeueMetrics
from duewheel.wheel.dequeue.lifecycle import Dequeue
from duewheel.wheel.dequeue.standby import Follower
from duewheel.wheel.dequeue.statistics import Statistics
from duewheel.wheel.dequeue_config import DequeueConfig
from duewheel.wheel.storage.data_directory import DataDirectory

CONFIG = DequeueConfig(0, 1, {})
ROWS = 8


class Pair:
    """An owner that has delivered 2 of 8 timers, and a standby that has taken nothing yet."""

    def __init__(self, path: Path) -> None:
        self.settings = small_settings(path / "standby")
        wheel, self.path = self.settings.wheel, self.settings.storage.data_dir
        self.owner = LocalWorld(path / "owner", wheel, starts={P0: 0})
        self.clock, self.publisher = self.owner.clock, self.owner.publisher
        self.timers = [TimerRow(0, row, NOW_MS + 1_000 * row) for row in range(ROWS)]
        self.owner.append(*self.timers)
        self.clock.set(NOW_MS + 1_000)
        self.owner.drain()
        directory = DataDirectory.start(self.path, wheel, Role.DEQUEUE)
        self.directory: DataDirectory | None = directory
        self.follower = Follower(directory, self.publisher, self.clock, CONFIG)
        assert self.follower.tick() is None
        self.standby = self.owner.beside(self.path)
        self.standby.offsets_at = lambda _: {(TIMER_TOPIC, 0): 0}
        self.standby.start_ingest()

    def stop_follower(self) -> None:
        directory, self.directory = self.directory, None
        if directory is not None:
            directory.close()

    def catch_up(self) -> None:
        self.standby.append(self.timers, {(TIMER_TOPIC, 0): ROWS})
        self.follower.tick()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(tmp_path)
    yield pair
    pair.stop_follower()
    pair.owner.kill()
    pair.standby.kill(Role.INGEST)


def test_status_says_what_a_standby_lacks(pair: Pair) -> None:
    pair.clock.sleep(2)
    pair.follower.tick()
    found = read_status(pair.settings, pair.clock)
    assert (found.role, found.recovering, found.pending) == ("standby", None, 0)
    assert found.standby is not None
    assert found.standby.missing == {f"{TIMER_TOPIC}-0": ROWS}
    assert found.standby.behind_ms == 2_000
    pair.catch_up()
    found = read_status(pair.settings, pair.clock)
    assert found.standby is not None
    assert (found.standby.missing, found.standby.behind_ms) == ({}, 0)
    # The two that the owner has delivered are none of its own.
    assert found.pending == ROWS - 2
    stats = inspection.stats(pair.settings, pair.clock)
    assert (stats.role, stats.pending) == ("standby", ROWS - 2)


def test_metrics_say_what_a_standby_lacks(pair: Pair) -> None:
    beside = DataDirectory(pair.path, pair.settings.wheel)
    source = DequeueMetrics(beside, pair.clock, Statistics)
    assert values(source)["standby_missing_messages"] == ROWS
    pair.catch_up()
    found = values(source)
    assert (found["standby"], found["standby_missing_messages"], found["pending"]) == (1, 0, 6)
    assert (found["standby_behind_seconds"], found["recovering"]) == (0, 0)
    assert "dequeue_behind_seconds" not in found
    beside.close()


def values(source: DequeueMetrics) -> dict[str, float]:
    families: list[Metric] = list(source.families())
    return {
        family.name.removeprefix("duewheel_"): family.samples[0].value
        for family in families
        if family.samples
    }


def test_a_promotion_waits_until_the_standby_delivers(pair: Pair) -> None:
    pair.catch_up()
    assert pair.directory is not None
    answers: list[Promoted] = []
    told = threading.Thread(
        target=lambda: answers.append(promote_standby(pair.settings, pair.clock))
    )
    told.start()
    while not pair.directory.state.live.promotion_wanted(pair.clock.now_ms()):
        told.join(0.01)
    assert pair.follower.tick() is not None
    dequeue = Dequeue(pair.directory, pair.publisher, pair.clock, CONFIG)
    dequeue.start(take_over=True)
    told.join(60)
    (answer,) = answers
    assert answer.data_dir == str(pair.path)
    assert read_status(pair.settings, pair.clock).standby is None
    dequeue.close()
    with pytest.raises(ConfigError, match="is no standby"):
        promote_standby(pair.settings, pair.clock)


def test_a_promotion_that_takes_too_long_is_withdrawn(pair: Pair) -> None:
    with pytest.raises(RecoveryPending, match="has not taken over"):
        promote_standby(pair.settings, pair.clock, wait_ms=100)
    assert pair.directory is not None
    assert not pair.directory.state.live.promotion_wanted(pair.clock.now_ms())


def test_a_call_withdraws_its_own_request_alone(pair: Pair) -> None:
    assert pair.directory is not None
    live, now_ms = pair.directory.state.live, pair.clock.now_ms()
    first = live.want_promotion(now_ms)
    live.want_promotion(now_ms + 1)
    live.withdraw_promotion(first)
    assert live.promotion_wanted(now_ms + 1)


def test_a_directory_that_cannot_be_written_is_no_standby_to_promote(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tests may run as root, so the double refuses."""

    def reading(path: Path, *_: int) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(os, "open", reading)
    with pytest.raises(Misconfigured, match="cannot be written here"):
        promote_standby(pair.settings, pair.clock)


def test_a_standby_that_does_not_run_cannot_be_promoted(pair: Pair) -> None:
    assert pair.directory is not None
    pair.directory.state.live.want_promotion(pair.clock.now_ms())
    pair.stop_follower()
    with pytest.raises(ConfigError, match=r"no standby runs .*--take-over"):
        promote_standby(pair.settings, pair.clock)
    with open_files(pair.settings) as directory:
        wanted = directory.state.live.promotion_wanted(pair.clock.now_ms())
        assert wanted, "of another call, which waits for its next start"
    shutil.rmtree(pair.path)
    with pytest.raises(ConfigError, match="there is no data directory"):
        promote_standby(pair.settings, pair.clock)
