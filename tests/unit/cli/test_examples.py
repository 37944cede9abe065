"""Each command's help ends with examples and exit codes; test_snippets.py parses the examples.

Also of cli/developing.py, cli/topics.py.
"""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from duewheel.cli.examples import EXAMPLES
from duewheel.cli.main import cli
from duewheel.errors import EXIT_CODES

REFERENCE: dict[str, Any] = runpy.run_path(
    str(Path(__file__).resolve().parents[3] / "scripts" / "reference.py")
)


def test_each_command_has_examples() -> None:
    assert sorted(" ".join(path) for path, _ in REFERENCE["leaves"](cli)) == sorted(EXAMPLES)


@pytest.mark.parametrize("command", EXAMPLES)
def test_help_has_them(command: str) -> None:
    ended = CliRunner().invoke(cli, [*command.split(), "--help"])
    text = " ".join(ended.output.split())
    codes = (f"{code} {meaning}" for code, meaning in EXIT_CODES.items())
    for line in (*EXAMPLES[command], ", ".join(codes)):
        assert line in text
    assert all(line.startswith(f"duewheel {command}") for line in EXAMPLES[command])
