"""What `cancel-matching` prints, and its bound."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.harness.config_file import write_config
from tests.harness.local_world import NOW_MS, LocalWorld
from tests.harness.newest_progress import NewestProgress, removed, taken_over
from tests.harness.served import without_progress
from tests.harness.timer_rows import P0, TimerRow

from duewheel.checkpoints.progress import Progress
from duewheel.cli.main import cli
from duewheel.config.settings import load
from duewheel.dev.listeners import HOST
from duewheel.errors import ConfigError, Fenced, Reassigned
from duewheel.ops import connection


@pytest.fixture
def with_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Makes a shard with timers of these ids; returns its settings."""
    monkeypatch.setattr(connection, "require_kafka", lambda _: nullcontext())

    def make(*ids: bytes) -> str:
        path = write_config(tmp_path, f"{HOST}:1", "app")
        settings = load(path)
        world = LocalWorld(settings.storage.data_dir, settings.wheel, starts={P0: 0})
        world.append(*(TimerRow(0, n, NOW_MS + 5_000, timer_id=i) for n, i in enumerate(ids)))
        world.stop()
        without_progress(monkeypatch)
        return str(path)

    return make


@pytest.fixture
def with_many(with_ids: Callable[..., str]) -> str:
    return with_ids(*[b"many"] * 3)


def test_a_filter_that_selects_too_many_names_the_options(with_many: str) -> None:
    words = ["cancel-matching", "--id", "many", "--at-most", "2", "--dry-run"]
    with pytest.raises(ConfigError) as raised:
        cli([*words, "--config", with_many], standalone_mode=False)
    text = str(raised.value)
    assert text.startswith("more than 2 timers match")
    assert "--at-most" in text and "--dry-run" in text


def test_a_dry_run_of_a_bulk_cancel_counts_as_the_call_would(with_many: str) -> None:
    words = ["cancel-matching", "--id", "many", "--dry-run", "--config", with_many]
    as_text = CliRunner().invoke(cli, words).stdout.splitlines()
    assert [line.split() for line in as_text if "3" in line] == [
        ["matched", "3"],
        ["would", "write", "3"],
    ]
    as_json = json.loads(CliRunner().invoke(cli, [*words, "--output", "json"]).stdout)
    assert (as_json["dry_run"], as_json["matched"], as_json["written"]) == (True, 3, 3)


def test_timers_that_no_handle_names_are_no_success(
    with_ids: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["cancel-matching", "--to", str(NOW_MS + 9_000)]
    words += ["--config", with_ids(b"\xff0", b"\xff1")]
    for more in ([], ["--dry-run"]):
        assert cli([*words, *more], standalone_mode=False) == 1
        assert "2 more match, and stay: their ids are no UTF-8" in capsys.readouterr().err


@pytest.mark.parametrize(("after", "error"), [(removed, Reassigned), (taken_over, Fenced)])
def test_no_timer_of_outdated_files_is_cancelled(
    config: Path,
    kafka: NewestProgress,
    after: Callable[[Progress], Progress],
    error: type[Exception],
) -> None:
    assert kafka.progress is not None
    kafka.progress = after(kafka.progress)
    with pytest.raises(error, match="nothing was written"):
        cli(
            ["cancel-matching", "--target", "orders", "--config", str(config)],
            standalone_mode=False,
        )
