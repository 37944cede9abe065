"""Groups the commands in `duewheel --help` by the purpose of a user, and loads one when it runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

import click

from duewheel.cli.command_help import CommandGroup

# By heading and name: the module in this package that has the command, and its help in the list.
Headings = Mapping[str, Mapping[str, tuple[str, str]]]


class _Modules(Mapping[str, click.Command]):
    """Commands by name, each imported when it is read."""

    def __init__(self, modules: Mapping[str, str]) -> None:
        self._modules = modules

    def __getitem__(self, name: str) -> click.Command:
        made = vars(import_module(f"{__package__}.{self._modules[name]}")).values()
        return next(each for each in made if isinstance(each, click.Command) and each.name == name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)


class GroupedCommands(CommandGroup):
    """A click group whose help lists the commands under headings, without their modules."""

    group_class = CommandGroup

    def __init__(self, *args: Any, headings: Headings, **named: Any) -> None:  # click's
        super().__init__(*args, **named)
        self.headings = headings
        rows = [each for below in headings.values() for each in below.items()]
        self.commands = _Modules({name: module for name, (module, _) in rows})  # type: ignore[assignment]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes a list of commands for each heading. All lists have the same first column."""
        width = max(map(len, self.commands))
        limit = formatter.width - width - 6  # of click's indent and gap
        for heading, below in self.headings.items():
            with formatter.section(heading):
                formatter.write_dl(
                    [
                        (
                            name.ljust(width),
                            click.Command(name, help=text).get_short_help_str(limit),
                        )
                        for name, (_, text) in below.items()
                    ]
                )
