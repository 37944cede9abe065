"""A shard on a host without free processors: it starts, delivers, and adapts itself.

Each busy loop is a session of its own, as a service is: the kernel shares the processors among
sessions.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from kafka import KafkaProducer
from tests.harness.launcher import wait_until
from tests.harness.random_timers import Headers
from tests.harness.shared_broker import SharedBroker
from tests.harness.topics import make_timer_topic
from tests.harness.whole_shard import WholeShard

from duewheel.streaming.batch_attempt import SPARK_DIR, Attempt

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.usefixtures("java"),
]

LOOPS_PER_PROCESSOR = 8
PATIENCE_S = 1_500.0
NOW: Headers = [("TIMER_DELAY_MS", b"0")]
PLANNING = "pyspark.sql.streaming.python_streaming_source_runner"


@contextmanager
def busy(loops: int) -> Iterator[None]:
    """Take the processors from all others."""
    command = [sys.executable, "-IS", "-c", "while True: pass"]
    with ExitStack() as until_the_end:
        for _ in range(loops):
            loop = subprocess.Popen(command, start_new_session=True)
            until_the_end.callback(loop.wait)
            until_the_end.callback(loop.kill)
        yield


@pytest.fixture
def shard(
    broker: SharedBroker, unique_name: Callable[[str], str], tmp_path: Path
) -> Iterator[WholeShard]:
    made = WholeShard(
        tmp_path,
        broker.bootstrap_servers,
        unique_name("busy"),
        ingest={"max_bytes_per_trigger": "512KiB"},
    )
    yield made
    made.close()


def deliver(shard: WholeShard, topic: str, *values: bytes) -> None:
    with KafkaProducer(bootstrap_servers=shard.servers, max_request_size=2 << 20) as producer:
        for value in values:
            producer.send(topic, value, headers=[*NOW, ("REAL_TOPIC", shard.target.encode())])
    log = shard.path / "run.log"
    came = lambda: all(value in shard.arrivals.first for value in values)  # noqa: E731
    wait_until(came, lambda: log.read_text()[-6_000:], PATIENCE_S, 0.2)


def below(process: psutil.Process, word: str) -> list[psutil.Process]:
    """The processes below this one with the word in their command line."""
    found = []
    for each in process.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if word in each.cmdline():
                found.append(each)
    return found


def large_ones_and_a_new_topic(shard: WholeShard) -> None:
    """Large messages, of which a batch has fewer, and a new topic of the pattern: all taken in the
    session, and the first in the query, that runs.
    """
    deliver(shard, shard.timers, b"first")
    ingest = psutil.Process(shard.status()["ingest"]["pid"])
    server, *forked = below(ingest, "duewheel.streaming.fork_server")
    assert server.ppid() == ingest.pid
    assert {each.ppid() for each in forked} >= {server.pid}, "Spark's processes are forked"
    planning = below(ingest, PLANNING)
    deliver(shard, shard.timers, *(bytes(900_000) + b"%d" % number for number in range(8)))
    deliver(shard, shard.timers, b"second")
    assert shard.has_ended_early(), "as many as their bytes permit"
    assert below(ingest, PLANNING) == planning, "the same query"
    topic = f"{shard.settings.app.id}.later.new"
    make_timer_topic(shard.servers, topic)
    deliver(shard, topic, b"third")
    (ready,) = shard.events("ingest is ready")
    assert ready["pid"] == shard.status()["ingest"]["pid"] == ingest.pid
    assert not shard.events("process died")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_large_messages_and_a_new_topic_need_no_new_session(shard: WholeShard) -> None:
    shard.launch()
    large_ones_and_a_new_topic(shard)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_planning_process_that_is_killed_costs_no_jvm(shard: WholeShard) -> None:
    shard.launch()
    deliver(shard, shard.timers, b"before")
    ingest = psutil.Process(shard.status()["ingest"]["pid"])
    rows = Attempt.read(shard.settings.storage.data_dir / SPARK_DIR)
    for each in below(ingest, PLANNING):
        each.kill()
    deliver(shard, shard.timers, b"after")
    assert "has ended" in shard.events("another query follows")[0]["reason"]
    assert shard.status()["ingest"]["pid"] == ingest.pid
    now = Attempt.read(shard.settings.storage.data_dir / SPARK_DIR)
    assert rows and now and rows.rows == now.rows


@pytest.mark.crash_matrix
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("niceness", [0, 10])
def test_a_shard_starts_and_delivers_without_a_free_processor(
    shard: WholeShard, niceness: int
) -> None:
    with busy(LOOPS_PER_PROCESSOR * (os.cpu_count() or 1)):
        shard.launch(niceness)
        large_ones_and_a_new_topic(shard)
