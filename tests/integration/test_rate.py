"""A target with a rate, on the real processes and a real broker, with a kill -9 in between."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from kafka import KafkaProducer
from tests.harness.kafka_shard import CLOCK
from tests.harness.launcher import wait_until
from tests.harness.reader import read_topic
from tests.harness.shared_broker import SharedBroker
from tests.harness.whole_shard import WholeShard

from duewheel.kafka.topics.admin import KafkaAdmin
from duewheel.wheel.policies.rate import BURST_US, Rate

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.usefixtures("java"),
    pytest.mark.timeout(300),
]

# So slow that timers still wait after a restart on a busy host.
COUNT, KEYS, PER_SECOND = 200, 10, 8


@pytest.fixture
def shard(tmp_path: Path, broker: SharedBroker) -> Iterator[WholeShard]:
    name = f"rate-{uuid.uuid4().hex[:8]}"
    rated = {f"{name}.mails": {"rate": f"{PER_SECOND}/s"}}
    shard = WholeShard(tmp_path, broker.bootstrap_servers, name, target=rated)
    try:
        with KafkaAdmin(shard.settings.kafka.client_options("admin")) as admin:
            admin.create_topic(f"{name}.mails", 1)
        shard.start()
        yield shard
    finally:
        shard.close()


def test_the_rate_holds_over_a_kill(shard: WholeShard) -> None:
    (mails,) = shard.settings.rates
    producer = KafkaProducer(bootstrap_servers=shard.servers)
    for number in range(COUNT):
        headers = [("TIMER_DELAY_MS", b"0"), ("REAL_TOPIC", mails.encode())]
        key = b"%d" % (number % KEYS)
        producer.send(shard.timers, b"%d" % number, key=key, headers=headers)
    producer.flush()
    wait_until(lambda: len(read_topic(shard.servers, mails)) >= COUNT // 4, "none comes")
    view = shard.status()["rates"][mails]
    assert view["waiting"] > 0 and view["wait_ms"] > 0
    assert any("timers wait for" in each["text"] for each in shard.status()["conditions"])
    killed_ms = CLOCK.now_ms()
    shard.kill("dequeue")
    shard.deliver_one(b"to another target")
    stopped_ms = CLOCK.now_ms() - killed_ms
    waiting = len(read_topic(shard.servers, mails))
    assert waiting < COUNT, "the other one has not waited behind them"
    wait_until(lambda: len(read_topic(shard.servers, mails)) >= COUNT, "some never come")
    records = read_topic(shard.servers, mails)
    assert sorted(int(record.value) for record in records) == list(range(COUNT))
    # The turns of the stop leave at once behind it.
    slack_ms = BURST_US // 1_000 + Rate({}).lead_ms + stopped_ms + 500
    at_ms = np.array([record.timestamp for record in records])
    for first in range(COUNT):
        most = 1 + PER_SECOND * (at_ms[first:] - at_ms[first] + slack_ms) / 1_000
        assert (np.arange(1, len(most) + 1) <= most).all()
