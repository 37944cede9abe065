"""The ingest process on a disk with less free space than `storage.min_free`."""

from __future__ import annotations

import signal

import pytest
from tests.harness.ingest_shard import LATER, IngestShard, shard

from duewheel.clock import SystemClock
from duewheel.config.settings import load
from duewheel.ops.shard.status import read_status

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.crash_matrix,
    pytest.mark.usefixtures("java"),
]


__all__ = ["shard"]


def test_ingest_holds_back_what_the_disk_must_not_take_and_says_so(shard: IngestShard) -> None:
    usual = shard.config.read_text()
    data_dir = f'data_dir = "{shard.data_dir}"\n'
    shard.config.write_text(usual.replace(data_dir, data_dir + 'min_free = "99.9%"\n'))
    settings = load(shard.config)
    shard.begin({(shard.topic, 0): 0, (shard.topic, 1): 0})
    shard.send(0, LATER, 300)
    shard.start()
    clock = SystemClock()
    shard.wait_for("all wait", lambda: read_status(settings, clock).disk.rows_without_room == 300)
    found = read_status(settings, clock)
    assert found.disk.free_bytes < found.disk.min_free_bytes
    assert found.bounds["min_free"].source == f"storage.min_free ({shard.config})"
    assert shard.marks == {0: 0, 1: 0}
    told = shard.events("the disk is nearly full: ingest takes no row, see storage.min_free")
    assert [line["rows_without_room"] for line in told] == [300]
    assert shard.end(signal.SIGTERM) == 0, shard.tail()
    shard.config.write_text(usual)
    shard.start()
    shard.wait_for_marks({0: 300, 1: 0})
    assert read_status(load(shard.config), clock).disk.rows_without_room == 0
    shard.require_taken_once({0: range(300), 1: range(0)})
