"""Timers that are due in several windows: written to the timer topic again and again, delivered
once; or, where their target has gone meanwhile, dead letters that say so.

With a real broker and without Spark, which has no part in a roll: rolled copies come in again as
other records do. test_fault_points.py has rolls on real processes, and so has `make crash-matrix`,
with all that is judged here.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.harness.config_file import write_config
from tests.harness.random_timers import PARTITIONS
from tests.harness.reader import read_topic
from tests.harness.rolls import WINDOW_MS, Rolls, heard
from tests.harness.shared_broker import SharedBroker
from tests.harness.sparkless_shard import SparklessShard
from tests.harness.whole_shard import WholeShard

from duewheel.config.settings import load
from duewheel.wheel.storage.full_check import check

pytestmark = pytest.mark.kafka

LATER_S = 1.0  # a double would come within that
EVERY_S = 0.3


@pytest.fixture
def shard(
    tmp_path: Path, broker: SharedBroker, unique_name: Callable[[str], str]
) -> Iterator[SparklessShard]:
    name, timer = unique_name("app")[-40:].lstrip("-"), {"roll_window": f"{WINDOW_MS}ms"}
    config = write_config(tmp_path, broker.bootstrap_servers, name, timer=timer)
    with closing(SparklessShard(load(config), 1)) as shard:
        yield shard


@pytest.mark.slow
def test_a_delay_beyond_the_window_is_rolled(shard: SparklessShard) -> None:
    def wait(done: Callable[[], bool]) -> None:
        while not done():
            shard.pump()
            time.sleep(EVERY_S)

    rolls = Rolls(shard.servers, shard.timers, shard.target)
    rolls.send(wait, partitions=2)
    wait(lambda: shard.left >= rolls.count)
    end_s = time.monotonic() + LATER_S
    wait(lambda: time.monotonic() > end_s)
    rolls.judge(heard([*read_topic(shard.servers, shard.target), *shard.letters()]))
    report = check(shard.settings.storage.data_dir, shard.settings.wheel)
    assert report.findings == []


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.crash_matrix
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("java")
def test_the_same_by_real_processes(tmp_path: Path, broker: SharedBroker) -> None:
    name, window = f"rolled-{uuid.uuid4().hex[:8]}", f"{WINDOW_MS}ms"
    with closing(WholeShard(tmp_path, broker.bootstrap_servers, name, window=window)) as shard:
        shard.start()
        rolls = Rolls(shard.servers, shard.timers, shard.target)
        rolls.send(shard.wait, PARTITIONS)
        shard.wait(lambda: len(shard.arrivals.first) >= rolls.count)
        time.sleep(2 * LATER_S)
        rolls.judge(shard.arrivals)
        shard.command("check")
