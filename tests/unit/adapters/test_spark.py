"""The data source of Spark, as far as it needs no session; integration/test_spark_source.py has the
rest.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType
from tests.harness.local_world import NOW_MS
from tests.harness.stopped_shard import stopped_shard
from tests.harness.timer_rows import TimerRow

from duewheel.adapters.spark import DuewheelSource
from duewheel.client.request_headers import rejected_headers
from duewheel.errors import ConfigError
from duewheel.tables import LISTS

PAGE = Path(__file__).resolve().parents[3] / "docs" / "spark.md"
COUNT = 100


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Of a shard that was stopped, with a timer each second."""
    return stopped_shard(tmp_path, (TimerRow(0, n, NOW_MS + 1000 * n) for n in range(1, COUNT + 1)))


@pytest.mark.parametrize(
    ("conditions", "count"),
    [
        ({}, COUNT),
        ({"since": str(NOW_MS + 50_001)}, 50),
        ({"until": "2027-01-15T08:00:50Z", "topic": "bills", "level": "1"}, 0),
        ({"until": "2027-01-15T08:00:50Z", "topic": "bills"}, 25),
    ],
)
def test_the_options_of_a_table_are_conditions(
    config: Path, conditions: dict[str, str], count: int
) -> None:
    options = {"table": "pending", "config": str(config), **conditions}
    source = DuewheelSource(options)
    batches: Iterator[Any] = source.reader(StructType()).read(InputPartition(None))
    assert sum(len(batch) for batch in batches) == count
    assert source.schema().startswith("`id` string, `source` string, `due` timestamp, ")


def test_an_option_is_named_as_it_was_given() -> None:
    for name, wrong in {"since": "yesterday", "until": "2027-01-15T08:00"}.items():
        with pytest.raises(ConfigError, match=f"^{name}: "):
            DuewheelSource({"table": "receipts", name: wrong}).schema()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"table": "pending"}, "the table pending cannot be a stream, only receipts can"),
        ({"table": "receipts", "until": "0"}, "leave out the option until"),
    ],
)
def test_a_stream_has_receipts_and_no_end(options: dict[str, str], reason: str) -> None:
    reader: Any = DuewheelSource(options).streamReader(StructType())
    calls = (
        reader.initialOffset,
        reader.latestOffset,
        lambda: list(reader.read(InputPartition((0, 0, 1)))),
    )
    for call in calls:
        with pytest.raises(ConfigError, match=reason):
            call()


def test_a_stream_reads_each_partition_up_to_its_end() -> None:
    reader = DuewheelSource({"table": "receipts"}).streamReader(StructType())
    ranges = reader.partitions({"0": 5, "2": 7}, {"0": 5, "2": 9, "10": 4})
    assert [each.value for each in ranges] == [(2, 7, 9), (10, 0, 4)]
    for end in ({"0": 4, "2": 7}, {"2": 7}):
        with pytest.raises(ConfigError, match=r"partition 0 .* ends at ., .* up to 5:"):
            reader.partitions({"0": 5, "2": 7}, end)


def test_the_page_has_the_columns_of_each_table() -> None:
    _, _, rest = PAGE.read_text("utf-8").partition("```\npending:")
    block = "pending:" + "".join(rest.partition("```")[0].split())
    schemas = ((name, DuewheelSource({"table": name}).schema()) for name in LISTS)
    columns = (f"{name}:{schema.replace('` ', ':').replace('`', '')}" for name, schema in schemas)
    assert block == "".join(columns).replace(" ", "")


def test_a_message_that_makes_no_timer_requests_nothing_but_its_rejection() -> None:
    own = [("own", b"1"), ("TIMER_DEL_UNIQKEY", b"x"), ("scheduler-epoch", b"1"), ("DELAY", b"1")]
    assert rejected_headers("because", "a topic!", "id", own) == [
        ("own", b"1"),
        ("UNIQ_KEY", b"id"),
        ("REAL_TOPIC", b"a topic!"),
        ("TIMER_DELIVER_MS", b"a row makes no timer: because"),
    ]


def test_a_session_that_looks_for_data_sources_imports_little() -> None:
    """Spark imports it for every application in whose Python duewheel is."""
    code = "import pyspark_duewheel, sys; print(*sys.modules); pyspark_duewheel.DefaultSource"
    run = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True
    )
    assert not {"kafka", "pydantic", "pyarrow", "duewheel.tables"} & set(run.stdout.split())


def test_it_hides_no_other_data_source_where_pyspark_is_too_old() -> None:
    code = "import sys; sys.modules['pyspark.sql.datasource'] = None; import pyspark_duewheel as m"
    command = [sys.executable, "-P", "-c", f"{code}; print(hasattr(m, 'DefaultSource'))"]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"
