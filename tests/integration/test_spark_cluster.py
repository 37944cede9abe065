"""Ingest on a standalone Spark cluster whose master comes late, and which loses a worker."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from tests.harness.spark_cluster import CONF, SparkCluster, kill_all_of
from tests.harness.whole_shard import WholeShard, judge, schedule

from duewheel.dev.broker import DevBroker
from duewheel.java.find import Java

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.usefixtures("spark_jars"),
]


def executors(shard: WholeShard) -> list[int]:
    """Their numbers, as they changed."""
    return [each["now"] for each in shard.events("the number of Spark's executors has changed")]


@pytest.mark.timeout(600)
def test_a_worker_dies_while_timers_come_in(
    tmp_path: Path, java: Java, broker: DevBroker, unique_name: Callable[[str], str]
) -> None:
    """One of two, with its executor. Ingest itself goes on, and each timer leaves once. Before,
    without a master, it ends with the reason and is started again.
    """
    name = unique_name("app")[-40:].lstrip("-")
    with (
        SparkCluster(tmp_path, java) as cluster,
        closing(
            WholeShard(
                tmp_path,
                broker.bootstrap_servers,
                name,
                ingest={"spark_master": cluster.url},
                spark=CONF,
            )
        ) as shard,
    ):
        shard.launch()
        shard.wait(lambda: bool(shard.events("process died")))
        reason = shard.events("process died")[0]["reason"]
        assert f"no Spark master answers at {cluster.url} (" in reason
        cluster.start_master()
        doomed, _ = cluster.add_workers(2)
        shard.wait(lambda: executors(shard)[-1:] == [2])
        ingest = shard.status()["ingest"]["pid"]
        known = schedule(shard, 2_000, seed=1)
        shard.wait(lambda: bool(shard.arrivals.first))
        kill_all_of(doomed)
        known |= schedule(shard, 2_000, seed=2, prefix=b"later")
        shard.wait(lambda: len(shard.arrivals.first) >= len(known))
        time.sleep(1)  # a double would come with the next chunk
        judge(shard, known)
        assert executors(shard)[-1] == 1
        assert shard.status()["ingest"]["pid"] == ingest
        assert shard.stop() == 0
