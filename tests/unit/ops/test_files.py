"""The files of a shard that belong to another user."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.harness.config_file import small_settings
from tests.harness.no_rights import no_rights_on

from duewheel.cli.exit_code import run_to_the_end
from duewheel.cli.main import cli
from duewheel.cli.replies import ReplyWait
from duewheel.errors import NoDataDirectory, Unreadable

COMMANDS = ["status", "list", "show --id any", "stats", "check", "pause ingest"]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_another_user_names_the_user_to_take(command: str, tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    words = [*command.split(), "--set", "timer.topics=timers", "--data-dir", str(data_dir)]
    absent = CliRunner().invoke(cli, words).exception  # imports all that another user may not
    assert isinstance(absent, NoDataDirectory), repr(absent)
    with no_rights_on(tmp_path):
        error = CliRunner().invoke(cli, words).exception
    assert isinstance(error, Unreadable), repr(error)
    assert str(error).startswith(f"{data_dir} cannot be opened: ")
    assert str(error).endswith("run this as the user of the shard's processes")


def test_a_command_that_another_user_may_not_finish_ends_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "config check --set timer.topics=timers --set timer.targets=orders"
    command = [*words.split(), "--data-dir", str(tmp_path / "data")]
    monkeypatch.setattr(sys, "argv", ["duewheel", *command])
    assert CliRunner().invoke(cli, command).exit_code == 0, "imports all that another user may not"
    with no_rights_on(tmp_path), pytest.raises(SystemExit) as ended:
        run_to_the_end(cli)
    assert ended.value.code == Unreadable.exit_code
    (line,) = capsys.readouterr().err.splitlines()
    assert str(tmp_path) in line
    assert line.endswith("run this as the user of the shard's processes")


def test_a_request_of_another_user_waits_for_no_start_on_this_host(tmp_path: Path) -> None:
    settings = small_settings(tmp_path / "data")
    ReplyWait().goes_on(settings)  # imports all that another user may not
    with no_rights_on(tmp_path):
        assert ReplyWait().goes_on(settings)() is False
