"""The list of bounds: complete, with the values in effect, and their sources."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from duewheel.api.shard import BoundInForce
from duewheel.cli.main import cli
from duewheel.config.settings import load
from duewheel.factory import dequeue_config
from duewheel.kafka.transaction_limits import TransactionLimits
from duewheel.ops.shard.bounds_in_force import bounds_in_force
from duewheel.streaming.batch_attempt import SPARK_DIR, Attempt
from duewheel.wheel.dequeue_config import PARTITIONS_MAX, RECURRING_MAX
from duewheel.wheel.policies.hot_slots import HotSlots

pytestmark = pytest.mark.usefixtures("clean_surroundings")

BOUNDS = Path(__file__).resolve().parents[4] / "docs" / "bounds.md"
# Queues and buffers that no operator sets, and beyond which nothing is rejected: `--all` has them.
INNER = {
    *("rows_per_trigger_now", "batches_in_flight", "ring_slots", "far_index_bytes"),
    *("skipped_records", "scan_records", "queues", "queue_records", "queue_bytes"),
    *("chunks_in_memory", "topic_series", "transactions_in_flight", "transaction_partitions"),
    *("transaction_recurring", "transaction_answers", "batch_bytes"),
}


def test_bounds_are_those_in_force_and_name_what_has_set_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "duewheel.toml"
    file.write_text(
        '[timer]\ntopics = ["a"]\n[ingest]\ndriver_memory = "1g"\n'
        '[dequeue]\nchunk_records = 7\nhot_slot = "spread"\n'
    )
    monkeypatch.setenv("DUEWHEEL_DEQUEUE__HOT_SLOT_LIMIT", "70")
    flags = {"dequeue": {"chunk_records": 9}, "storage": {"min_free": "5%", "data_dir": tmp_path}}
    settings = load(file, flags)
    found = bounds_in_force(settings)
    assert found["transaction_records"] == BoundInForce(
        value=9, source="dequeue.chunk_records (flags)"
    )
    assert found["queue_records"] == found["transaction_records"]
    assert found["hot_slot_rows"] == BoundInForce(
        value=70, source="dequeue.hot_slot_limit (environment)"
    )
    assert found["min_free"] == BoundInForce(value="5%", source="storage.min_free (flags)")
    heap = BoundInForce(value=1 << 30, source=f"ingest.driver_memory ({file})")
    assert found["driver_heap_bytes"] == heap
    assert found["transaction_bytes"].source == "dequeue.chunk_bytes (default)"
    config = dequeue_config(settings)
    assert config.chunk_records == 9
    assert HotSlots("spread", 70) in config.policies
    assert found["transaction_partitions"] == BoundInForce(value=PARTITIONS_MAX, source="fixed")
    assert found["transaction_recurring"].value == RECURRING_MAX
    assert found["batch_bytes_max"].value == TransactionLimits().batch_bytes_max


def test_rows_per_trigger_tell_of_batches_that_were_too_large(tmp_path: Path) -> None:
    settings = load(None, {"timer": {"topics": "a"}, "storage": {"data_dir": tmp_path}})
    assert bounds_in_force(settings)["rows_per_trigger_now"].value == 300_000
    (tmp_path / SPARK_DIR).mkdir()
    Attempt({}, 12_500).write(tmp_path / SPARK_DIR)
    found = bounds_in_force(settings)
    assert found["rows_per_trigger_now"].value == 12_500
    assert found["rows_per_trigger"].value == 300_000


def test_without_a_limit_no_slot_is_hot() -> None:
    found = bounds_in_force(load(None, {"timer": {"topics": "a"}}))["hot_slot_rows"]
    assert found == BoundInForce(value=None, source="dequeue.hot_slot (default)")


def test_config_check_shows_them_and_the_docs_list_them(tmp_path: Path) -> None:
    flags = ["--set", "timer.topics=a", "--data-dir", str(tmp_path), "--output", "json"]
    done = CliRunner().invoke(cli, ["config", "check", *flags], standalone_mode=False)
    shown = json.loads(done.output)["bounds"]
    found = bounds_in_force(load(None, {"timer": {"topics": "a"}}))
    assert shown == {name: json.loads(json.dumps(one.as_json())) for name, one in found.items()}
    table = BOUNDS.read_text().split("## Limits\n")[1].split("\n## ")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    listed = [name for cell in rows for name in re.findall(r"`(\w+)`", cell)]
    assert set(shown) >= INNER
    assert listed == [name for name in shown if name not in INNER]
