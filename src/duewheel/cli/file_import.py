"""The commands `send-lines` and `import`: a timer for each line of JSON."""

from __future__ import annotations

from collections.abc import Iterable
from typing import BinaryIO

import click

from duewheel.api.file_import import FailedLine, SentLine
from duewheel.api.requests import TimerFields
from duewheel.cli.command_help import CommandWithExamples
from duewheel.cli.options import Command, with_dry_run, with_result, with_writer
from duewheel.cli.output import Printer, printable, say
from duewheel.cli.request_options import OF_NEW_TIMER, with_fields, with_request
from duewheel.clock import SystemClock
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError, KafkaUnavailable, Unacknowledged
from duewheel.ops.changes.timer_writer import TimerWriter
from duewheel.ops.file_import import acknowledged
from duewheel.ops.file_import.exactly_once import Choice, import_lines
from duewheel.ops.recovery.from_mirror import NAME_PREFIX
from duewheel.osutil.terminal import bar_of_count


def _with_lines(command: Command) -> Command:
    """Adds the file, and the fields of lines that do not have them, as the argument `defaults`."""
    command = with_request("defaults", TimerFields)(command)
    command = with_fields(TimerFields, *OF_NEW_TIMER, value="the message, as text")(command)
    return click.argument("file", type=click.File("rb"))(command)


@click.command("send-lines", cls=CommandWithExamples)
@_with_lines
@with_writer()
def send_lines(writer: TimerWriter, file: BinaryIO, defaults: TimerFields, output: Printer) -> int:
    """Schedule a message for each line of FILE; `-` is stdin.

    A line is a JSON object with topic (the target), value or value_base64, key or key_base64,
    headers (a list of name and value), id, tag, expires_at, if_pending, partition, timer_topic,
    window, and deliver_at, delay or level. The options hold for lines without these fields.

    Each line is acknowledged by itself: after an error, the command repeated sends lines twice.
    `import` does not. Exit code 1: some lines were refused.
    """
    return show_lines(acknowledged.send_lines(writer, file, defaults), output)


def show_lines(rows: Iterable[SentLine | FailedLine], output: Printer) -> int:
    """Prints the results of lines, and their counts; returns the exit code.

    Raises:
        ConfigError, Unacknowledged: a record is too large for a broker or has no timer topic, or
            Kafka has failed; with the counts so far.
    """
    written = refused = line = 0

    def so_far() -> str:
        counts = f"{written} written, {refused} refused, up to line {line}"
        return f"{counts}; lines after it may be written"

    try:
        for row in rows:
            line = row.line
            if isinstance(row, FailedLine):
                refused += 1
                say(printable(f"line {line}: {row.error}"))  # its newlines, too
            else:
                written += 1
            if output.is_json:
                output.row(row)
    except (ConfigError, KafkaUnavailable, Unacknowledged) as error:
        text = f"{so_far()}: {error}"
        if isinstance(error, KafkaUnavailable):  # of one line: those before it may be written
            raise Unacknowledged(text) from error
        error.reword(text)
        raise
    except KeyboardInterrupt:
        say(so_far())
        raise
    output.line(f"{written} written, {refused} refused")
    return 1 if refused else 0


@click.command("import", cls=CommandWithExamples)
@click.option("--name", required=True, help="of the import: its position is kept under it")
@click.option(
    "--skip-refused", is_flag=True, help="leave out lines that ingest would reject, and continue"
)
@with_dry_run
@_with_lines
@with_result(needs_kafka=True)
def import_(
    settings: Settings,
    file: BinaryIO,
    defaults: TimerFields,
    name: str,
    output: Printer,
    *,
    skip_refused: bool,
    dry_run: bool,
) -> int:
    """Schedule a message for each line of FILE, exactly once.

    The lines are those of `send-lines`, or of `topic read --for-send`. Whatever is killed and
    however often the command runs, each is sent once: the position in the file is committed with
    the timers. The first line that ingest would reject ends the import. Exit code 1: some lines
    were refused.
    """
    if name.startswith(NAME_PREFIX):
        raise ConfigError(f"names that begin with {NAME_PREFIX} are those of `recover`")
    with bar_of_count("lines") as advanced:
        choice = Choice(name, dry_run=dry_run, skip_refused=skip_refused, advanced=advanced)
        verdict = import_lines(settings, SystemClock(), file, defaults, choice)
    for each in verdict.refused_first:
        output.line(f"refused: line {each.line}  {each.code}  {each.reason}")
    if (more := sum(verdict.refused.values()) - len(verdict.refused_first)) > 0:
        output.line(f"refused: {more} more lines, counted below")
    output.show(verdict, hidden=("refused_first",))
    if not verdict.complete:
        say(
            "stopped before the first refused line: change the settings or the line and run it "
            "again, or leave such lines out with --skip-refused"
        )
    return 1 if verdict.refused else 0
