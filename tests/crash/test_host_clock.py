"""`duewheel dequeue` on a host whose clock is wrong, at boot or from one moment to the next.

Real Kafka and Spark; the consumer, the producers and the brokers have the right time. No process is
started again: once the clock is right, everything goes on by itself.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.crash.fault_shard import CLOCK, LOAD, REPLACING
from tests.crash.wrong_shard import WrongShard
from tests.harness.shared_broker import SharedBroker

from duewheel.clock import SystemClock
from duewheel.ops.shard.status import read_status
from duewheel.wheel.slots import HOUR_MS

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.crash_matrix,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("java"),
]

ALL_DUE_S = 3.0  # more than the longest delay of a load


@pytest.fixture
def shard(broker: SharedBroker, tmp_path: Path) -> Iterator[WrongShard]:
    name = f"clock-{CLOCK.now_ms()}"
    shard = WrongShard(tmp_path, broker.bootstrap_servers, name, slots=100_000, margin="5m")
    with closing(shard):
        yield shard


def test_nothing_is_early_and_all_goes_on_when_the_clock_is_right(shard: WrongShard) -> None:
    shard.step_to(HOUR_MS)
    shard.init()
    for name in ("dequeue", "ingest"):
        shard.start(name)
    for error_ms in (HOUR_MS, -HOUR_MS, HOUR_MS):
        shard.step_to(error_ms)
        shard.wait_until_blocked(error_ms > 0)
        before = len(shard.seen)
        shard.send()
        shard.wait(lambda: read_status(shard.settings, SystemClock()).pending == LOAD + REPLACING)
        time.sleep(ALL_DUE_S)
        assert len(shard.seen) == before
        assert abs(shard.dequeue_says("clock_skew_ms") - error_ms) < HOUR_MS / 2
        shard.step_to(0)
        shard.judge_all()
        shard.wait_until_blocked(False)
    log = shard.log("dequeue")
    assert "clock is ahead of the brokers'" in log
    assert "clock agrees with the brokers' again" in log
