"""Groups the commands in `duewheel --help` by the purpose of a user."""

from __future__ import annotations

from typing import Any

import click

from duewheel.cli.command_help import CommandGroup


class GroupedCommands(CommandGroup):
    """A click group whose help lists the commands under headings."""

    group_class = CommandGroup

    def __init__(self, *args: Any, **named: Any) -> None:  # click's
        super().__init__(*args, **named)
        self.headings: dict[str, tuple[str, ...]] = {}

    def add_commands(self, heading: str, *commands: click.Command) -> None:
        """Adds commands below a heading. One without a heading would be missing in the help."""
        self.headings[heading] = tuple(command.name or "" for command in commands)
        for command in commands:
            self.add_command(command)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes a list of commands for each heading. All lists have the same first column."""
        width = max(map(len, self.commands))
        limit = formatter.width - width - 6  # of click's indent and gap
        for heading, names in self.headings.items():
            with formatter.section(heading):
                formatter.write_dl(
                    [
                        (name.ljust(width), self.commands[name].get_short_help_str(limit))
                        for name in names
                    ]
                )
