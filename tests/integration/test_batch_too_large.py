"""A batch that exceeds the memory: ingest fails, then takes fewer rows, until it has all."""

from __future__ import annotations

import re
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.harness.ingest_shard import DEADLINE_S, Headers, IngestShard
from tests.harness.launcher import wait_until
from tests.harness.shared_broker import SharedBroker

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.crash_matrix]

VALUE_BYTES = 900_000
COUNT = 300  # 270 MB
ROOM_BYTES = 250 << 20  # for batches; ingest has one more than once
ROWS_MAX = 240
STARTS_MAX = 8


@pytest.fixture
def shard(
    broker: SharedBroker, unique_name: Callable[[str], str], tmp_path: Path
) -> Iterator[IngestShard]:
    made = IngestShard(tmp_path, broker.bootstrap_servers, unique_name("delayed"))
    limits = f'= {ROWS_MAX}\nmax_bytes_per_trigger = "240MiB"'  # the default fits
    made.config.write_text(made.config.read_text().replace("= 2000", limits))
    yield made
    made.close()


def start_with_little_memory(shard: IngestShard) -> None:
    """The limit is set behind the start of the JVM, which would inherit it."""
    before = len(shard.events("timer topics"))
    shard.start()
    wait_until(lambda: len(shard.events("timer topics")) > before, shard.tail, every_s=0.05)
    found = re.search(r"VmData:\s+(\d+) kB", Path(f"/proc/{shard.pid}/status").read_text())
    assert found is not None
    most = int(found[1]) * 1024 + ROOM_BYTES
    resource.prlimit(shard.pid, resource.RLIMIT_DATA, (most, most))


@pytest.mark.timeout(1_200)
def test_messages_that_exceed_the_memory_come_in_with_fewer_at_a_time(shard: IngestShard) -> None:
    shard.begin({(shard.topic, 0): 0, (shard.topic, 1): 0})
    hour: Headers = [("TIMER_DELAY_SEC", b"3000"), ("REAL_TOPIC", b"orders")]
    shard.send(0, hour, COUNT, bytes(VALUE_BYTES))
    starts, give_up = 0, time.monotonic() + 10 * DEADLINE_S
    while shard.marks[0] < COUNT:
        assert starts < STARTS_MAX, shard.tail()
        start_with_little_memory(shard)
        starts += 1
        while shard.marks[0] < COUNT and shard.is_running:
            assert time.monotonic() < give_up, shard.tail()
            time.sleep(0.2)
        if not shard.is_running:
            assert shard.wait_for_the_end() == 1
    fewer = shard.events("the last batch did not finish: taking fewer rows at a time")
    assert fewer, "it failed at first"
    assert starts == len(fewer) + 1, "a batch that has failed for its size is not tried again"
    assert fewer[-1]["next_rows"] < COUNT
    shard.require_taken_once({0: range(COUNT)})
    assert not any(timer.rejected for timer in shard.taken())

    small = 10 * ROWS_MAX
    shard.send(1, hour, small)
    shard.wait_for_marks({0: COUNT, 1: small})
    wanted = {0: range(COUNT), 1: range(small)}
    shard.require_taken_once(wanted)
