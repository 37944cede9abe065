"""What `config check` prints."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner
from tests.harness.config_file import write_config

from duewheel.cli.main import cli


def test_a_setting_keeps_its_name_in_text(tmp_path: Path) -> None:
    config = write_config(tmp_path, "127.0.0.1:1", "app", timer={"precision_ms": 100})
    for words in ([], ["--all"]):
        shown = CliRunner().invoke(cli, ["config", "check", *words, "--config", str(config)])
        rows = [line.split()[:2] for line in shown.output.splitlines()]
        assert ["timer.precision_ms", "100ms"] in rows
