"""Ingest on a standalone Spark cluster whose master comes late, and which loses a worker."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.harness.config_file import write_config
from tests.harness.launcher import tail, wait_until
from tests.harness.reader import read_topic
from tests.harness.shared_broker import SharedBroker
from tests.harness.spark_cluster import CONF, SparkCluster, kill_all_of
from tests.harness.sparkless_shard import SparklessShard
from tests.harness.whole_shard import WholeShard, judge, schedule

from duewheel.config.settings import load
from duewheel.dev.listeners import free_ports
from duewheel.java.find import Java

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.crash_matrix,
    pytest.mark.usefixtures("java"),
]


def executors(shard: WholeShard) -> list[int]:
    """Their numbers, as they changed."""
    return [each["now"] for each in shard.events("the number of Spark's executors has changed")]


@pytest.fixture
def cluster(tmp_path: Path, java: Java) -> Iterator[SparkCluster]:
    """Without a master yet."""
    with SparkCluster(tmp_path, java) as cluster:
        yield cluster


@pytest.fixture
def shard(
    cluster: SparkCluster,
    tmp_path: Path,
    broker: SharedBroker,
    unique_name: Callable[[str], str],
    request: pytest.FixtureRequest,
) -> Iterator[WholeShard]:
    name = unique_name("app")[-40:].lstrip("-")
    ingest = {"spark_master": cluster.url}
    if getattr(request, "param", None) == "shared folder":
        ingest["shared_folder"] = str(tmp_path / "shared")
    with closing(
        WholeShard(tmp_path, broker.bootstrap_servers, name, ingest=ingest, spark=CONF)
    ) as shard:
        yield shard


def test_the_master_comes_late(shard: WholeShard, cluster: SparkCluster) -> None:
    """Without it ingest ends with the reason, and is started again."""
    shard.launch()
    shard.wait(lambda: bool(shard.events("process died")))
    reason = shard.events("process died")[0]["reason"]
    assert f"no Spark master answers at {cluster.url} (" in reason
    cluster.start_master()
    cluster.add_workers(1)
    known = schedule(shard, 200, seed=1)
    shard.wait(lambda: len(shard.arrivals.first) >= len(known))
    judge(shard, known)
    assert executors(shard) == [1]
    assert shard.stop() == 0


@pytest.mark.timeout(600)
@pytest.mark.parametrize("shard", ["Spark's result", "shared folder"], indirect=True)
def test_a_worker_dies_while_timers_come_in(shard: WholeShard, cluster: SparkCluster) -> None:
    """One of two, with its executor. Ingest itself goes on, and each timer leaves once. Timers come
    through Spark, or by files, of which those of failed tasks alone are left.
    """
    cluster.start_master()
    doomed, _ = cluster.add_workers(2)
    shard.launch()
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


def test_tasks_of_an_application_write_timers_and_read_tables(
    cluster: SparkCluster, tmp_path: Path, broker: SharedBroker, java: Java
) -> None:
    """`format("duewheel")` on two workers: the data source is pickled, and finds its package."""
    config = write_config(tmp_path, broker.bootstrap_servers, "clustered")
    cluster.start_master()
    cluster.add_workers(2)
    program = f"""
from pyspark.sql import SparkSession
builder = SparkSession.builder.master({cluster.url!r})
for name, value in {CONF!r}.items():
    builder = builder.config(name, value)
spark = builder.config("spark.ui.enabled", "false").getOrCreate()
rows = spark.range(0, 200, 1, 4).selectExpr(
    "'{{target}}' target", "'2h' delay", "concat('key ', id) key", "'v' value",
    "concat('id ', id) id",
)
rows.write.format("duewheel").mode("append").option("topic", "{{topic}}").option(
    "kafka.bootstrap.servers", {broker.bootstrap_servers!r}
).save()
input()  # the shard takes them
read = spark.read.format("duewheel").options(table="pending", config={str(config)!r}).load()
print(read.count())
spark.stop()
"""
    log = tmp_path / "application.log"
    with closing(SparklessShard(load(config), 1)) as shard, log.open("wb") as errors:
        text = program.replace("{target}", shard.target).replace("{topic}", shard.timers)
        environment = os.environ | {"JAVA_HOME": str(java.home), "PYSPARK_PYTHON": sys.executable}
        application = subprocess.Popen(
            [sys.executable, "-c", text],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
        )
        try:
            wait_until(
                lambda: len(read_topic(shard.servers, shard.timers)) >= 200,
                lambda: tail(log),
                120,
            )
            shard.take()
            out, _ = application.communicate(b"\n", 120)
        finally:
            application.kill()
            application.wait()
    assert out.split()[-1:] == [b"200"]


def test_sparks_web_interface_listens_on_loopback(
    cluster: SparkCluster, tmp_path: Path, java: Java
) -> None:
    """It has no login. On a cluster Spark itself would open it on all interfaces."""
    cluster.start_master()
    cluster.add_workers(1)
    (port,) = free_ports(1)
    program = f"""
import psutil
from pathlib import Path
from duewheel.streaming.session import SessionOptions, start_session, stop_session
conf = {{"spark.ui.enabled": "true", "spark.ui.port": "{port}"}}
work, java = Path({str(tmp_path / "ui")!r}), Path({str(java.home)!r})
session = start_session(SessionOptions("ui", work, java, {cluster.url!r}, conf=conf))
(jvm,) = psutil.Process().children()
found = [c.laddr for c in jvm.net_connections("tcp") if c.status == psutil.CONN_LISTEN]
print(sorted({{ip for ip, port in found if port == {port}}}))
stop_session(session)
"""
    environment = {name: value for name, value in os.environ.items() if name != "SPARK_LOCAL_IP"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    *_, listening = done.stdout.splitlines() or [""]  # behind the lines of the log
    assert listening in {"['127.0.0.1']", "['::ffff:127.0.0.1']"}, done.stderr[-3_000:]
