"""A broker that stamps days ahead, on real Kafka and Spark: its rows wait, others do not."""

from __future__ import annotations

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import ConfigResource
from tests.harness.whole_shard import CLOCK, Shard

from duewheel.wheel.storage.verify import check

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.usefixtures("spark_jars"),
]

HOUR_MS = 3_600_000
FAR_MS = (72 * HOUR_MS, 73 * HOUR_MS, 10 * 365 * 24 * HOUR_MS)
NOW: list[tuple[str, bytes]] = [("TIMER_DELAY_MS", b"100")]


def stamped(shard: Shard, kind: str) -> None:
    """Whose timestamps the timer topic takes."""
    admin = KafkaAdminClient(bootstrap_servers=shard.servers)
    settings = {
        "message.timestamp.type": kind,
        "message.timestamp.after.max.ms": str(2**62),
    }
    admin.alter_configs([ConfigResource("TOPIC", shard.timers, settings)])
    admin.close()


def send(shard: Shard, name: bytes, count: int, ahead_ms: int = 0) -> None:
    """Timers in all partitions."""
    producer = KafkaProducer(bootstrap_servers=shard.servers)
    stamp_ms = CLOCK.now_ms() + ahead_ms
    for number in range(count):
        value = b"%s %d" % (name, number)
        producer.send(shard.timers, value, headers=NOW, timestamp_ms=stamp_ms).get(timeout=30)
    producer.close()


@pytest.mark.timeout(600)
def test_rows_stamped_days_ahead_hold_back_no_other(shard: Shard) -> None:
    """In every partition, with both processes killed while they are there."""
    shard.start()
    stamped(shard, "CreateTime")
    for ahead_ms in FAR_MS:
        send(shard, b"far %d" % (ahead_ms // HOUR_MS), 20, ahead_ms)
    send(shard, b"near", 50)
    stamped(shard, "LogAppendTime")
    shard.wait(lambda: len(shard.arrivals.first) >= 50)
    for name in ("ingest", "dequeue"):
        shard.kill(name)
        send(shard, b"after the kill of %s" % name.encode(), 50)
    shard.wait(lambda: len(shard.arrivals.first) >= 150)
    assert not [value for value in shard.arrivals.first if value.startswith(b"far")]
    far = 20 * len(FAR_MS)
    shard.wait(lambda: bool(shard.status()["pending"] == far))
    stats = shard.command("stats", "--output", "json")
    assert (stats["pending"], stats["beyond_ring"]) == (far, far)
    listed = shard.command("list", "--limit", "100").splitlines()
    assert sum("far" in line or shard.timers in line for line in listed) >= far
    shard.wait(lambda: shard.scrape("dequeue").get("pending_beyond_ring") == far)
    assert shard.stop() == 0
    assert check(shard.settings.storage.data_dir, shard.settings.wheel).findings == []
