"""Lists as Arrow and Parquet: the rows of their JSON, in columns."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.harness.local_world import NOW_MS
from tests.harness.stopped_shard import stopped_shard
from tests.harness.timer_rows import TimerRow

from duewheel.api.arrow_columns import batches_of, schema_of
from duewheel.api.dead_letters import DeadLetterSummary
from duewheel.api.receipts import DeliveryReceipt
from duewheel.api.timers import TimerSummary
from duewheel.config.range_ends import Bound
from duewheel.errors import ConfigError
from duewheel.tables import LISTS, pending_table
from duewheel.wheel.recurrence import PAUSED_MS

COUNT = 250


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """The settings of a shard that was stopped, with a timer each second; one is a dead letter."""
    rows = (TimerRow(0, n, NOW_MS + 1000 * n, rejected=n == 7) for n in range(1, COUNT + 1))
    return stopped_shard(tmp_path, rows)


def listed(config: Path, output: str, *options: str) -> bytes:
    """The output of `duewheel list`, through a pipe."""
    line = ["list", "--output", output, "--config", str(config), *options]
    command = [sys.executable, "-P", "-m", "duewheel", *line]
    return subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout


def as_json(table: pa.Table) -> list[dict[str, Any]]:
    """The rows of a table, as the JSON of a command has them."""
    rows = table.to_pylist()
    for row in rows:
        for name in ("due", "leaves"):
            instant = row.pop(name)
            row[f"{name}_ms"] = None if instant is None else round(1000 * instant.timestamp())
    return rows


def test_a_table_has_the_rows_and_fields_of_the_json(config: Path) -> None:
    rows = [json.loads(line) for line in listed(config, "json", "--limit", "1000").splitlines()]
    assert len(rows) == COUNT
    fields = [{**dict.fromkeys(TimerSummary.model_fields), **row} for row in rows]
    arrow = pa.ipc.open_stream(listed(config, "arrow")).read_all()
    parquet = pq.read_table(pa.BufferReader(listed(config, "parquet")))
    assert as_json(arrow) == fields
    assert as_json(parquet) == fields
    assert arrow.schema == schema_of(TimerSummary)
    assert arrow["due"][1].as_py() == datetime.fromtimestamp(NOW_MS / 1000 + 1, UTC)
    assert pending_table(config) == arrow


def test_a_table_has_the_rows_that_match(config: Path) -> None:
    odd = pending_table(config, topic="bills", limit=3)
    assert odd["topic"].to_pylist() == ["bills"] * 3
    late = pending_table(config, since=str(NOW_MS + 240_000))
    assert len(late) == COUNT - 240 + 1
    for since in (NOW_MS + 240_000, datetime.fromtimestamp(NOW_MS / 1000 + 240, UTC)):
        assert pending_table(config, since=since) == late
    with pytest.raises(ConfigError, match=r"^until: .* zone"):
        pending_table(config, until=datetime(2027, 1, 15))  # noqa: DTZ001
    for since, text in ((17, "17"), (datetime(2027, 1, 15, tzinfo=UTC), "2027-01-15T00:00Z")):
        letters = (LISTS["dead-letters"].wanted({"since": each}) for each in (since, text))
        first, last = (Bound.parse("", vars(each)["since"]) for each in letters)
        assert first == last
    none = pa.ipc.open_stream(listed(config, "arrow", "--id", "unknown")).read_all()
    assert (len(none), none.schema) == (0, schema_of(TimerSummary))
    with pytest.raises(ConfigError, match="topics"):
        pending_table(config, topics="bills")
    with pytest.raises(ConfigError, match=r"^until: "):
        pending_table(config, until="tomorrow")
    with pytest.raises(ConfigError, match="limit"):
        pending_table(config, limit=0)


@pytest.mark.parametrize("due_ms", [-(2**63), -(10**18), 2**62 - 1, 2**63 - 1])
def test_a_due_time_that_no_calendar_has_harms_no_other_row(due_ms: int) -> None:
    given = {"due_ms": due_ms, "delivered_ms": NOW_MS, "lateness_ms": NOW_MS - due_ms}
    texts = dict.fromkeys(DeliveryReceipt.model_fields, "")
    row = DeliveryReceipt.model_validate({**texts, **given, "target_partition": 0})
    (batch,) = batches_of(DeliveryReceipt, [row])
    (found,) = batch.to_pylist()
    assert found["due"].astimezone(ZoneInfo("Asia/Kolkata")).year in {2, 9999}
    assert found["delivered"] == datetime.fromtimestamp(NOW_MS / 1000, UTC)
    assert found["lateness_ms"] == min(NOW_MS - due_ms, 2**63 - 1), "the most that a column holds"
    batch.column("due").cast(pa.timestamp("us", "UTC"))  # as Spark has it


def test_a_paused_timer_has_no_due_time() -> None:
    texts = dict.fromkeys(["id", "source", "topic", "page"], "")
    flags = {"rolled": True, "cancelled": False, "value_bytes": 0, "handle": None}
    given = {**texts, **flags, "due_ms": PAUSED_MS, "leaves_ms": NOW_MS}
    rows = [TimerSummary.model_validate({**given, "paused": each}) for each in (True, False)]
    (batch,) = batches_of(TimerSummary, rows)
    paused, far = batch.to_pylist()
    assert (paused["due"], far["due"].year) == (None, 9999)
    assert paused["leaves"] == datetime.fromtimestamp(NOW_MS / 1000, UTC)
    assert rows[0].as_json()["due_ms"] == PAUSED_MS


def test_columns_of_receipts_and_dead_letters() -> None:
    receipts = schema_of(DeliveryReceipt)
    assert receipts.field("delivered") == pa.field("delivered", pa.timestamp("ms", "UTC"), False)
    assert receipts.field("lateness_ms").type == pa.int64()
    letters = schema_of(DeadLetterSummary)
    assert letters.field("key") == pa.field("key", pa.string())
    given = {"partition": 1, "offset": 2, "written_ms": NOW_MS + 7, "replayed": True}
    letter = {**dict.fromkeys(DeadLetterSummary.model_fields), **given}
    row = DeadLetterSummary.model_validate(letter)
    (batch,) = batches_of(DeadLetterSummary, [row])
    written = datetime.fromtimestamp(NOW_MS / 1000, UTC) + timedelta(milliseconds=7)
    shown = row.model_dump(exclude={"written_ms"})
    assert batch.to_pylist() == [{**shown, "written": written}]


@pytest.mark.parametrize("time_ms", [-1, 10**15, -(2**63)])
def test_the_time_of_a_dead_letter_is_what_its_producer_wrote(time_ms: int) -> None:
    given = {"partition": 1, "offset": 2, "written_ms": time_ms, "replayed": True}
    letter = {**dict.fromkeys(DeadLetterSummary.model_fields), **given}
    (batch,) = batches_of(DeadLetterSummary, [DeadLetterSummary.model_validate(letter)])
    (found,) = batch.column("written").cast(pa.int64()).to_pylist()
    assert found == time_ms or batch.to_pylist()[0]["written"].year in {2, 9999}
