"""`status` and the metrics while ingest is stuck, for any reason: the true lag, not 0."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer
from tests.harness.fault_proxy import ALWAYS, Action, Fault, FaultProxy
from tests.harness.launcher import paused
from tests.harness.whole_shard import WholeShard

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.slow,
    pytest.mark.crash_matrix,  # nothing may be taken for half a minute: the lag is an alarm then
]

ROWS = 500
FETCH = "1"  # its api key: the proxy has no name for it


@pytest.fixture
def shard(shard: WholeShard, proxy: FaultProxy) -> WholeShard:
    """Which reaches the broker through the proxy; its consumer and producers do not."""
    text = shard.config.read_text()
    shard.config.write_text(text.replace(shard.servers, proxy.bootstrap_servers))
    return shard


def descendants(pid: int) -> dict[int, str]:
    """Process ids and names."""
    found: dict[int, str] = {}
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, children.read_text().split()):
            found |= {child: Path(f"/proc/{child}/comm").read_text().strip()} | descendants(child)
    return found


def jvm(shard: WholeShard) -> int:
    (found,) = [p for p, n in descendants(shard.status()["ingest"]["pid"]).items() if n == "java"]
    return found


def write(shard: WholeShard) -> None:
    """Timers that are due at once."""
    producer = KafkaProducer(bootstrap_servers=shard.servers)
    for number in range(ROWS):
        producer.send(shard.timers, b"%d" % number, headers=[("TIMER_DELAY_MS", b"0")])
    producer.flush(60)
    producer.close()


def await_alarm(shard: WholeShard, *reasons: str) -> dict[str, Any]:
    """Until it is said that nothing is taken: by `status`, by its exit code, by both endpoints."""
    shard.wait(lambda: not set(reasons) - set(shard.status()["not_ready"]))
    shard.wait(lambda: shard.status()["ingest"]["lag"] >= ROWS)  # the first is counted before
    found = shard.status()
    assert not found["ready"]
    assert found["ingest"]["lag_ms"] > 30_000
    assert found["ingest"]["batch_age_ms"] > 30_000
    shard.command("health", code=1)
    for name in ("ingest", "dequeue"):
        served = shard.scrape(name)
        assert served["ready"] == 0
        assert served["ingest_lag_messages"] >= ROWS
        assert served["ingest_lag_seconds"] > 30
        assert all(served[f"not_ready:{reason}"] == 1 for reason in reasons)
    return found


def await_ready(shard: WholeShard) -> None:
    """Until all are delivered, and that is said."""
    shard.wait(lambda: len(shard.arrivals.first) == ROWS)
    shard.wait(lambda: bool(shard.status()["ready"]))
    assert shard.status()["ingest"]["lag"] == 0
    shard.command("health")
    assert shard.scrape("ingest")["ready"] == 1


def test_a_jvm_that_stands_still(shard: WholeShard) -> None:
    shard.start()
    shard.wait(lambda: bool(shard.status()["ready"]))
    with paused(jvm(shard)):
        write(shard)
        await_alarm(shard, "ingest_lag", "ingest_silent", "batch_stuck")
    await_ready(shard)


def test_a_reader_that_hangs(shard: WholeShard, proxy: FaultProxy) -> None:
    """Fetches are never answered; other requests are."""
    shard.start()
    shard.wait(lambda: bool(shard.status()["ready"]))
    proxy.inject(Fault(FETCH, Action.SWALLOW, times=ALWAYS))
    write(shard)
    await_alarm(shard, "ingest_lag")
    proxy.clear()
    await_ready(shard)


def test_kafka_that_is_away_is_the_only_reason(shard: WholeShard, proxy: FaultProxy) -> None:
    """Dequeue gives no sign then, ingest may end: neither is the cause."""
    shard.start()
    shard.wait(lambda: bool(shard.status()["ready"]))
    proxy.away()
    shard.wait(lambda: not shard.status()["ready"])
    found = shard.status()["not_ready"]
    assert found.keys() == {"ends_unknown"}
    assert found["ends_unknown"].startswith("Kafka does not answer")
    proxy.back()
    shard.wait(lambda: bool(shard.status()["ready"]))


def test_a_process_that_stands_still(shard: WholeShard) -> None:
    """All of ingest: its own endpoint says nothing, that of dequeue does."""
    shard.start()
    shard.wait(lambda: bool(shard.status()["ready"]))
    pid = shard.status()["ingest"]["pid"]
    with paused(pid):
        write(shard)
        shard.wait(lambda: "ingest_lag" in shard.status()["not_ready"])
        served = shard.scrape("dequeue")
        assert (served["ready"], served["not_ready:ingest_silent"]) == (0, 1)
        assert served["ingest_lag_messages"] >= ROWS
    await_ready(shard)
