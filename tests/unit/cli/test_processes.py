"""The flags that `run` and `standby` give their processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from duewheel.cli.main import cli
from duewheel.runtime import supervisor


@pytest.mark.parametrize("words", [["run", "--take-over"], ["standby"]])
def test_the_processes_get_the_flags_of_the_command_line(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []
    monkeypatch.setattr(supervisor, "run", lambda _, flags, **_role: given.append(flags))
    flags = ["--set", "timer.topics=timers", "--bootstrap-servers=a:1", "--data-dir", str(tmp_path)]
    assert CliRunner().invoke(cli, [*words, *flags]).exit_code == 0
    assert given == [flags]
