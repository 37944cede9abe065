"""Commands whose help ends with examples and exit codes."""

from __future__ import annotations

import click

from duewheel.cli.examples import EXAMPLES
from duewheel.errors import EXIT_CODES


class CommandWithExamples(click.Command):
    """A click command whose help ends with examples and exit codes."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes both sections."""
        with formatter.section("Examples"):
            indent = " " * formatter.current_indent
            for line in EXAMPLES.get(_path(ctx), ()):
                formatter.write(f"{indent}{line}\n")
        with formatter.section("Exit codes"):
            codes = (f"{code} {meaning}" for code, meaning in EXIT_CODES.items())
            formatter.write_text(", ".join(codes))


def _path(ctx: click.Context) -> str:
    """The words of a command, without the program's name, which may be several."""
    names: list[str] = []
    while ctx.parent is not None:
        names.insert(0, ctx.info_name or "")
        ctx = ctx.parent
    return " ".join(names)


class CommandGroup(click.Group):
    """A click group of such commands."""

    command_class = CommandWithExamples
