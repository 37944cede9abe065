"""Few bytes in Kafka that are many in memory: ingest takes them a part at a time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer
from tests.harness.shared_broker import SharedBroker
from tests.harness.whole_shard import WholeShard

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

LARGE, SMALL, BYTES = 60, 300, 512 << 10


@pytest.fixture
def shard(tmp_path: Path, broker: SharedBroker, unique_name: Callable[[str], str]) -> Any:
    name = unique_name("app")[-40:].lstrip("-")
    ingest = {"max_bytes_per_trigger": 4 << 20}
    with closing(WholeShard(tmp_path, broker.bootstrap_servers, name, ingest=ingest)) as shard:
        yield shard


def test_batches_end_where_their_bytes_are_reached(shard: WholeShard) -> None:
    """30 MiB in 60 kB on the wire: seven batches and more, of which none is lost or read twice."""
    shard.start()
    now = ("TIMER_DELAY_MS", b"0")
    producer = KafkaProducer(bootstrap_servers=shard.servers, compression_type="zstd", linger_ms=50)
    for number in range(LARGE):
        value = b"large %d " % number
        producer.send(shard.timers, value.ljust(BYTES), headers=[now])
    for number in range(SMALL):
        producer.send(shard.timers, b"small %d" % number, headers=[now])
    producer.close()
    shard.wait(lambda: len(shard.arrivals.first) == LARGE + SMALL)
    shard.await_taken()
    assert set(shard.arrivals.count.values()) == {1}
    assert shard.has_ended_early()
