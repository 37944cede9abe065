"""The options of `init`, and the line of a record that `topic read` prints."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from tests.harness.local_world import NOW_MS

from duewheel.api.topics import ReadRecord
from duewheel.cli.main import cli
from duewheel.cli.topics import record_line
from duewheel.errors import ConfigError


def test_a_value_that_is_cut_says_so() -> None:
    row = ReadRecord(
        partition=0, offset=7, timestamp_ms=NOW_MS, value="v" * 600, headers=[], late_ms=None
    )
    assert record_line(row).endswith(f"0@7  no key  {'v' * 600}")
    early = row.model_copy(update={"value": "v", "late_ms": -900, "key_base64": "/w=="})
    assert record_line(early).endswith("0@7  -900ms late  key (base64) /w==  v")
    longer = row.model_copy(update={"value": "é" * 601})
    assert record_line(longer).endswith(f"  {'é' * 600}… (601 characters)")


@pytest.mark.parametrize("factor", ["0", "-7", "32768"])
def test_no_broker_is_asked_for_an_impossible_replication(factor: str) -> None:
    ended = CliRunner().invoke(cli, ["init", "--replication-factor", factor])
    assert ended.exit_code == ConfigError.exit_code
    assert "is not in the range 1<=x<=32767" in ended.output
