"""The copies of a shard, and forged ones, over the loss of its data directory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from kafka import KafkaProducer
from tests.harness.loaded_shard import remove
from tests.harness.random_timers import PARTITIONS, Headers
from tests.harness.reader import everything_in
from tests.harness.whole_shard import WholeShard

from duewheel.dev.broker import DevBroker

pytestmark = [pytest.mark.kafka, pytest.mark.crash_matrix]

COUNT = 200
DELAYS_MS = range(60_000, 60_000 + COUNT * 500, 500)  # some are due after the loss


@pytest.mark.timeout(900)
def test_copies_count_as_such_after_the_directory_is_lost(
    tmp_path: Path, broker: DevBroker, unique_name: Callable[[str], str]
) -> None:
    """The key is in the progress; a forged copy is read again as it was read at first."""
    shard = WholeShard(tmp_path, broker.bootstrap_servers, unique_name("copies"), window="20s")
    try:
        shard.start()
        producer = KafkaProducer(bootstrap_servers=shard.servers, linger_ms=5)
        origin: Headers = [("TIMER_ORIGIN", b"0"), ("TIMER_COPY_MAC", bytes(16))]
        sent = {}
        for number, delay_ms in enumerate(DELAYS_MS):
            forged = origin if number % 10 == 0 else []
            headers: Headers = [("TIMER_DELAY_MS", b"%d" % delay_ms), *forged]
            value = b"%d" % number
            sent[value] = delay_ms, producer.send(shard.timers, value, b"k", headers=headers)
        producer.flush(timeout=60)

        def rolled() -> set[bytes]:
            records = everything_in(shard.servers, shard.timers, PARTITIONS)
            return {r.value for r in records if "TIMER_ROLL_TIMES" in dict(r.headers)}

        shard.wait(lambda: rolled() >= sent.keys())
        assert shard.scrape("ingest")[f"forged_copies_total:{shard.timers}"] == COUNT // 10
        shard.stop()
        assert len(shard.arrivals.first) < COUNT
        remove(shard.settings.storage.data_dir)
        shard.start()
        shard.wait(lambda: len(shard.arrivals.first) == COUNT)
        assert set(shard.arrivals.count.values()) == {1}
        for value, (delay_ms, future) in sent.items():
            record = future.get(timeout=1)
            added = dict(shard.arrivals.first[value][1])
            source = f"{record.topic}-{record.partition}@{record.offset}".encode()
            due_ms = b"%d" % (record.timestamp + delay_ms)
            assert (added["TIMER_SOURCE"], added["TIMER_DUE_MS"]) == (source, due_ms)
            assert int(added["TIMER_ROLL_TIMES"]) >= 1
            assert "TIMER_ORIGIN" not in added
        shard.command("check")
        producer.close()
    finally:
        shard.close()
