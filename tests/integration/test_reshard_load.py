"""1 → 2 → 4 → 2 shards of real processes, under load, with an independent consumer."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient
from tests.harness.launcher import launch, tail, wait_until
from tests.harness.loaded_shard import LoadedShard
from tests.harness.shared_broker import SharedBroker
from tests.harness.whole_shard import CLOCK

from duewheel.config.settings import load
from duewheel.errors import Fenced
from duewheel.kafka.progress.all_shards import all_shards
from duewheel.osutil.child_process import Child
from duewheel.wheel.storage.full_check import check

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.crash_matrix,
    pytest.mark.usefixtures("java"),
    pytest.mark.timeout(1_500),
]

PENDING = 4_000
END_S = 60.0
STARTS_S = 400.0


class RunningShards:
    """As many `duewheel run` as there are shards, each in a directory of its own."""

    def __init__(self, shard: LoadedShard) -> None:
        self._shard = shard
        self.running: list[Child] = []

    def data_dir(self, index: int) -> Path:
        return self._shard.data if index == 0 else self._shard.path / f"data{index}"

    def start(self, count: int) -> None:
        for index in range(count):
            flags = ["--data-dir", str(self.data_dir(index))]
            for pair in (f"shard.index={index}", f"shard.count={count}"):
                flags += ["--set", pair]
            self.running.append(launch(self._shard.config, "run", *flags))
        self._shard.supervisors += self.running

    def await_fenced(self) -> None:
        """All of them end by themselves, and say why."""
        for child in self.running:
            assert child.wait(END_S)
            assert child.exit_code == Fenced.exit_code
        self.running = []

    def stop(self, count: int) -> None:
        for child in self.running:
            child.stop(30)
            assert child.exit_code == 0
        for index in range(count):
            settings = load(
                self._shard.config,
                {
                    "storage": {"data_dir": str(self.data_dir(index))},
                    "shard": {"index": index, "count": count},
                },
            )
            report = check(settings.storage.data_dir, settings.wheel)
            assert report.ok, report.findings


@pytest.fixture
def shard(tmp_path: Path, broker: SharedBroker) -> Iterator[LoadedShard]:
    shard = LoadedShard(tmp_path, broker.bootstrap_servers, f"reshard-{uuid.uuid4().hex[:8]}")
    # The progress knows three partitions by now.
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    admin.create_partitions({shard.timers: 4})
    admin.close()
    try:
        yield shard
    finally:
        shard.close()


def test_more_and_fewer_shards_under_load(shard: LoadedShard) -> None:
    shards = RunningShards(shard)
    shards.start(1)
    shard.load.start()
    shard.wait(lambda: len(shard.arrivals.first) > 100)
    told: list[dict[str, Any]] = []
    for step, count in enumerate((2, 4, 2)):
        later_ms = CLOCK.now_ms() + 30_000
        shard.load.write({b"pending %d %d" % (step, n): later_ms + n for n in range(PENDING)})
        result = shard.command("reshard", "--to", str(count), "--output", "json")
        at_ms = CLOCK.now_ms()
        shards.await_fenced()
        shards.start(count)
        await_arrivals(shard)
        away_s = (min(at for *_, at in arrived(shard, at_ms)) - at_ms) / 1000
        told.append({"to": count, "took_s": result["took_s"], "away_s": away_s})
        records = all_shards(shard.settings)
        for index in range(count):
            progress = records[index].progress
            assert {number % count for _, number in progress.partitions} == {index}
    print(told)
    time.sleep(2)  # a double would come with the next chunk
    shard.load.stop()
    shard.await_arrivals()
    shard.judge()
    shards.stop(2)


def await_arrivals(shard: LoadedShard) -> None:
    """All that Kafka has had until now, though as many Sparks have to start as there are shards."""
    sent = list(shard.load.due_ms)
    wait_until(
        lambda: all(value in shard.arrivals.first for value in sent),
        lambda: tail(shard.path / "run.log"),
        STARTS_S,
    )


def arrived(shard: LoadedShard, after_ms: int) -> list[tuple[Any, ...]]:
    return [seen for seen in list(shard.arrivals.first.values()) if seen[-1] > after_ms + 1_000]
