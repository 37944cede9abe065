"""The files of a shard that belong to another user."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.harness.no_rights import no_rights_on

from duewheel.cli.main import cli
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
