"""Commands whose help ends with examples and exit codes."""

from __future__ import annotations

import click

from duewheel.cli.examples import EXAMPLES

EXIT_CODES = (
    "0 ok, 1 findings or another failure, 2 usage or configuration, 3 no answer from Kafka "
    "(the message says if records may be written), "
    "4 fenced, 5 recovery refused or a file damaged, 6 locked, 130 interrupted"
)


class CommandWithExamples(click.Command):
    """A click command whose help ends with examples and exit codes."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes both sections."""
        with formatter.section("Examples"):
            indent = " " * formatter.current_indent
            for line in EXAMPLES.get(_path(ctx), ()):
                formatter.write(f"{indent}{line}\n")
        with formatter.section("Exit codes"):
            formatter.write_text(EXIT_CODES)


def _path(ctx: click.Context) -> str:
    """Returns the words of a command, without the program's name, which may be several."""
    names: list[str] = []
    while ctx.parent is not None:
        names.insert(0, ctx.info_name or "")
        ctx = ctx.parent
    return " ".join(names)


class CommandGroup(click.Group):
    """A click group of such commands."""

    command_class = CommandWithExamples
