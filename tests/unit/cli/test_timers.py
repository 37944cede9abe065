"""The options of `list` and `show`: those that contradict one another, and bounds."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.harness.local_world import NOW_MS
from tests.harness.stopped_shard import stopped_shard
from tests.harness.timer_rows import TimerRow

from duewheel.api.requests import NewTimer, TimerFilter, TimerQuery
from duewheel.api.schedules import NewSchedule
from duewheel.cli.main import cli
from duewheel.cli.request_options import request_of
from duewheel.errors import ConfigError, DiskFull


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


def test_a_key_of_any_length_is_searched_for() -> None:
    key = "k" * 5_000  # longer than the head of an HTTP request permits
    assert request_of(TimerFilter, {"key": key}).key_octets == key.encode()
    with pytest.raises(ConfigError, match="4096"):
        TimerQuery.of({"key": key})


def test_a_problem_names_the_option_as_it_is_written() -> None:
    with pytest.raises(ConfigError, match=r"^--header: "):
        request_of(NewTimer, {"topic": "a", "delay": "1s", "headers": ["=no name"]})
    with pytest.raises(ConfigError, match=r"^--from: "):
        request_of(TimerFilter, {"since": "yesterday"})
    both = {"target": "a", "value": "v", "cron": "0 8 * * *", "every": "1h"}
    with pytest.raises(ConfigError, match="give either --cron or --every"):
        request_of(NewSchedule, both)
    with pytest.raises(ConfigError, match="--deliver-at, --delay and --level"):
        request_of(NewTimer, {"topic": "a", "value": "v"})


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
