"""Groups the commands in `duewheel --help` by the purpose of a user."""

from __future__ import annotations

import click

from duewheel.cli.examples import CommandGroup

# Each command has a group; a command without one would be missing in the help.
GROUPS = {
    "Run a shard": ("init", "run", "standby", "pause", "resume", "ingest", "dequeue"),
    "Look": (
        "status",
        "health",
        "stats",
        "list",
        "show",
        "receipts",
        "serve",
        "check",
        "doctor",
        "audit",
        "config",
    ),
    "Send and change timers": ("send", "cancel", "reschedule", "schedule", "recur"),
    "Change a shard": ("reconfigure", "reshard"),
    "Recover": ("recover", "promote", "dlq"),
    "Try it": ("demo", "prove", "dev-broker", "topic"),
}


class GroupedCommands(CommandGroup):
    """A click group whose help lists the commands under the headings of GROUPS."""

    group_class = CommandGroup

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes a list of commands for each heading. All lists have the same first column."""
        width = max(map(len, self.commands))
        limit = formatter.width - width - 6  # of click's indent and gap
        for heading, names in GROUPS.items():
            with formatter.section(heading):
                formatter.write_dl(
                    [
                        (name.ljust(width), self.commands[name].get_short_help_str(limit))
                        for name in names
                    ]
                )
