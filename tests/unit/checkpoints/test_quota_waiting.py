"""The file that says how many messages wait because of a quota: for `status` and the metrics."""

from __future__ import annotations

from pathlib import Path

from duewheel.checkpoints.process_role import Role
from duewheel.checkpoints.quota_waiting import QuotaWaiting
from duewheel.clock import SystemClock
from duewheel.config.settings import load
from duewheel.ops.shard.status import read_status
from duewheel.runtime.shard_metrics import ShardMetrics
from duewheel.wheel.storage.data_directory import DataDirectory


def test_what_is_written_is_read(tmp_path: Path) -> None:
    assert QuotaWaiting.read_valid(tmp_path, 5) == QuotaWaiting()
    noted = QuotaWaiting(5, {("a", 0): (7, 9), ("a", 12): (0, 50), ("b", 0): (1, 2)})
    noted.write(tmp_path)
    assert QuotaWaiting.read_valid(tmp_path, 5) == noted
    assert noted.by_topic == {"a": 52, "b": 1}


def test_offsets_that_no_partition_has_are_not_read(tmp_path: Path) -> None:
    for first, end in ((9, 7), (-1, 7)):
        QuotaWaiting(5, {("a", 0): (first, end)}).write(tmp_path)
        assert QuotaWaiting.read_valid(tmp_path, 5) == QuotaWaiting()


def test_status_and_metrics_have_each_topic_with_a_quota(tmp_path: Path) -> None:
    quotas = {"a": {"quota_per_second": 5}, "b": {"quota_per_second": 100}, "c": {}}
    timer = {"topics": ["a", "b", "c"], "slots": 80_000, "roll_window": "1m", "topic": quotas}
    settings = load(None, {"timer": timer, "storage": {"data_dir": tmp_path / "data"}})
    clock, data_dir = SystemClock(), settings.storage.data_dir
    DataDirectory.start(data_dir, settings.wheel, Role.DEQUEUE).stop()
    QuotaWaiting(clock.now_ms(), {("a", 0): (0, 7), ("a", 1): (50, 53)}).write(data_dir)
    assert read_status(settings, SystemClock()).as_json()["quotas"] == {
        "a": {"per_second": 5, "waiting": 10},
        "b": {"per_second": 100, "waiting": 0},
    }
    families = {each.name: each for each in ShardMetrics(settings, clock).families()}
    values = [
        {sample.labels["topic"]: sample.value for sample in families[name].samples}
        for name in ("duewheel_quota_waiting", "duewheel_quota_waiting_seconds")
    ]
    assert values == [{"a": 10, "b": 0}, {"a": 2, "b": 0}]
