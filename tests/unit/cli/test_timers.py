"""The options of `list`, `show` and `stats`, and the text of timers."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.harness.cancel_world import cancel
from tests.harness.config_file import small_settings, write_config
from tests.harness.local_world import NOW_MS, LocalWorld
from tests.harness.stopped_shard import stopped_shard
from tests.harness.timer_rows import P0, TimerRow

from duewheel.api.requests import TimerFilter
from duewheel.api.timers import TimerSummary, TimerWithMessage
from duewheel.cli.main import cli
from duewheel.cli.output import Printer, printable
from duewheel.cli.timers import timer_line, with_header_lines
from duewheel.config.settings import Settings, load
from duewheel.errors import ConfigError, DiskFull
from duewheel.ops.timers.pending import list_timers

# Of a summary with nothing special
ROW = {
    "id": "a",
    "source": "a-0@1",
    "due_ms": NOW_MS,
    "leaves_ms": NOW_MS,
    "topic": "orders",
    "level": None,
    "value_bytes": 1,
    "rolled": False,
    "cancelled": False,
    "paused": False,
    "page": "1-2",
    "handle": None,
}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ([], "give either --handle or --id"),
        (["--handle", "h", "--id", "a"], "give either --handle or --id"),
        (["--handle", "h", "--key", "k"], "a handle names one timer"),
    ],
)
def test_a_timer_is_named_once(
    options: list[str], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DUEWHEEL_KAFKA__BOOTSTRAP_SERVERS", "127.0.0.1:1")
    monkeypatch.setenv("DUEWHEEL_TIMER__TOPICS", "timers")
    ended = CliRunner().invoke(cli, ["show", *options], standalone_mode=False)
    assert isinstance(ended.exception, ConfigError)
    assert reason in str(ended.exception)


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    """The settings of a shard that was stopped, with 101 timers of the id `many`."""
    rows = (TimerRow(0, n, NOW_MS + 1_000, timer_id=b"many") for n in range(101))
    return stopped_shard(tmp_path, rows)


def said(config: Path, *words: str) -> tuple[list[str], str]:
    """Lines of standard output, and standard error."""
    ended = CliRunner().invoke(cli, [*words, "--config", str(config)], standalone_mode=False)
    assert ended.exception is None
    return ended.stdout.splitlines(), ended.stderr


def test_a_list_that_is_cut_says_so(shard: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, more = said(shard, "show", "--id", "many", "--output", "json")
    assert len(rows) == 100
    assert (
        more == "duewheel: more than 100 timers match: `duewheel list --id` shows all, in pages\n"
    )
    rows, more = said(shard, "show", "--id", "many", "--key", "k", "--output", "json")
    assert (rows, more) == ([], "duewheel: no such timer is pending here\n")
    monkeypatch.setattr(shutil, "copyfileobj", lambda *_: None)
    assert (
        "more pending timers follow: --page "
        in said(shard, "list", "--limit", "100", "--output", "parquet")[1]
    )
    assert said(shard, "list", "--limit", "101", "--output", "parquet")[1] == ""
    assert said(shard, "list", "--output", "parquet")[1] == ""


def test_a_list_without_rows_says_so(tmp_path: Path) -> None:
    config = stopped_shard(tmp_path, ())
    for words, text in (
        (["list"], "no pending timers"),
        (["stats", "--by", "topic"], "no pending timers"),
        (["schedule", "list"], "no schedules"),
        (["show", "--id", "a"], "no such timer is pending here"),
    ):
        assert said(config, *words) == ([], f"duewheel: {text}\n")


def test_a_full_disk_of_the_output_is_not_that_of_the_shard(shard: Path) -> None:
    words = [sys.executable, "-P", "-m", "duewheel", "list", "--config", str(shard)]
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert ended.returncode == DiskFull.exit_code
    (line,) = ended.stderr.splitlines()
    assert line.endswith(
        "the disk of the output or of temporary files is full, or a quota is used up"
    )


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return small_settings(tmp_path / "data")


def pending(settings: Settings) -> list[TimerSummary]:
    return list(list_timers(settings, TimerFilter(), 100))


def test_a_line_of_a_timer(settings: Settings) -> None:
    world = LocalWorld(settings.storage.data_dir, settings.wheel, starts={P0: 0})
    due_ms = NOW_MS + 5_000
    world.append(*(TimerRow(0, n, due_ms, timer_id=b"id-%d" % n) for n in range(2)))
    world.append(cancel(2, timer_id=b"id-1"))
    world.stop()
    first, second = (timer_line(row, NOW_MS) for row in pending(settings))
    assert first.startswith("2027-01-15T08:00:05.000Z  in 5s  ")
    assert "id id-0" in first and "CANCELLED" not in first
    assert second.endswith("CANCELLED: will not be delivered")


def test_what_is_special_about_a_timer() -> None:
    row = {
        **ROW,
        "id": "a-0@1",
        "due_ms": NOW_MS + 86_400_000 * 3,
        "leaves_ms": NOW_MS + 3_600_000,
        "level": 4,
        "key_base64": "/wA=",
        "value_bytes": None,
        "rolled": True,
    }
    assert timer_line(TimerSummary.model_validate(row), NOW_MS) == (
        "2027-01-15T09:00:00.000Z  in 1h  orders  key (base64) /wA=  id a-0@1  no value  level 4  "
        "rolls; due 2027-01-18T08:00:00.000Z (in 3d)"
    )
    dead = {**row, "due_ms": None, "rolled": False, "value_bytes": 3, "level": None}
    assert timer_line(TimerSummary.model_validate(dead), NOW_MS).endswith(
        "id a-0@1  3 bytes  dead letter"
    )


def test_headers_of_one_name_are_all_shown() -> None:
    headers = [
        {"name": "trace", "value": "1"},
        {"name": "trace", "value": "2"},
        {"name": "octets", "value_base64": "/w=="},
    ]
    row = {**ROW, "partition": None, "headers": headers}
    shown = with_header_lines(TimerWithMessage.model_validate(row))
    assert {label: text for label, text in shown.items() if label.startswith("header.")} == {
        "header.0 trace": "1",
        "header.1 trace": "2",
        "header.2 octets (base64)": "/w==",
    }


def test_a_long_name_of_a_header_widens_no_other_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Of 60 KB, beside 999 short ones, it made 61 MB."""
    headers = [{"name": name, "value": ""} for name in ("x" * 60_000, *[""] * 99)]
    timer = TimerWithMessage.model_validate({**ROW, "partition": None, "headers": headers})
    Printer(is_json=False).show(with_header_lines(timer))
    assert len(capsys.readouterr().out) < 70_000


def test_no_producer_writes_to_the_terminal() -> None:
    row = {**ROW, "key": "k\x1b[2J", "id": "a\n2027-01-15  false \u202e line é"}
    line = printable(timer_line(TimerSummary.model_validate(row), NOW_MS))
    assert r"key k\x1b[2J  id a\n2027-01-15  false \u202e line é" in line


def test_stats_says_that_cancelled_timers_count(tmp_path: Path) -> None:
    config = write_config(tmp_path, "127.0.0.1:1", "app")
    settings = load(config)
    world = LocalWorld(settings.storage.data_dir, settings.wheel, starts={P0: 0})
    world.append(TimerRow(0, 1, NOW_MS + 5_000, timer_id=b"a"))
    world.append(cancel(2, timer_id=b"a"))
    world.stop()
    words = ["stats", "--config", str(config)]
    first = CliRunner().invoke(cli, words).output.splitlines()[1]
    assert first.split(maxsplit=1) == ["pending", "1, cancelled ones included"]
    counts = json.loads(CliRunner().invoke(cli, [*words, "--output", "json"]).output)
    assert counts["pending"] == 1
