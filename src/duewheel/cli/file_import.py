"""`duewheel send --file`: a timer for each line, acknowledged one by one, or exactly once."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import click

from duewheel.api.requests import TimerFields
from duewheel.cli.options import Command
from duewheel.cli.output import printable, say, show
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError, KafkaUnavailable, Unacknowledged


def with_file(command: Command) -> Command:
    """Adds the options of a file."""
    for option in (
        click.option("--dry-run", is_flag=True, help="with --name: read and judge, write nothing"),
        click.option(
            "--skip-refused",
            is_flag=True,
            help="with --name: leave out lines that ingest would reject",
        ),
        click.option("--name", "import_name", help="of the file: each line is sent exactly once"),
        click.option("--file", is_eager=True, help="JSON lines, `-` for stdin: a timer each"),
    ):
        command = option(command)
    return command


def require_file(file: str | None, import_name: str | None, *, has_choice: bool) -> None:
    """Refuses options that do not go together.

    Raises:
        ConfigError: names them.
    """
    if import_name is not None and file is None:
        raise ConfigError("--name goes with --file")
    if has_choice and import_name is None:
        raise ConfigError("--skip-refused and --dry-run go with --file and --name")


def send_file(settings: Settings, file: str, defaults: TimerFields, output: str) -> int:
    """Runs `send --file` without a name; returns its exit code."""
    from duewheel.api.file_import import FailedLine
    from duewheel.ops.file_import.acknowledged import send_lines

    written = refused = line = 0
    with opened(file) as lines:
        try:
            for row in send_lines(settings, lines, defaults):
                line = row.line
                if isinstance(row, FailedLine):
                    refused += 1
                    say(f"line {line}: {row.error}")
                else:
                    written += 1
                if output == "json":
                    click.echo(json.dumps(row.as_json()))
        except (KafkaUnavailable, Unacknowledged) as error:
            so_far = f"{written} written, {refused} refused, up to line {line}"
            raise Unacknowledged(f"{so_far}; lines after it may be written: {error}") from error
    if output == "text":
        click.echo(f"{written} written, {refused} refused")
    return 1 if refused else 0


def import_file(
    settings: Settings,
    file: str,
    defaults: TimerFields,
    output: str,
    name: str,
    *,
    skip_refused: bool,
    dry_run: bool,
) -> int:
    """Runs `send --file --name`; returns its exit code."""
    from duewheel.ops.file_import.exactly_once import Choice, import_lines

    choice = Choice(name, dry_run, skip_refused)
    with opened(file) as lines:
        verdict = import_lines(settings, lines, defaults, choice)
    if output != "json":
        for each in verdict.refused_first:
            click.echo(printable(f"refused: line {each.line}  {each.code}  {each.reason}"))
    show(verdict, output, hidden=("refused_first",))
    if not verdict.complete:
        say(
            "stopped before the first refused line: change the settings or the line and run it "
            "again, or leave such lines out with --skip-refused"
        )
    return 1 if verdict.refused else 0


@contextmanager
def opened(file: str) -> Iterator[BinaryIO]:
    """Opens a file for reading; `-` is stdin.

    Raises:
        ConfigError: it cannot be opened.
    """
    if file == "-":
        yield sys.stdin.buffer
        return
    try:
        content = Path(file).open("rb")  # noqa: SIM115 - only its own errors name the file
    except OSError as error:
        raise ConfigError(f"--file {file}: {error.strerror}") from error
    with content:
        yield content
