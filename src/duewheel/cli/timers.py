"""The command `show`: its options, and its text."""

from __future__ import annotations

from typing import Any

import click

from duewheel.cli.examples import CommandWithExamples
from duewheel.cli.options import show, with_output, with_settings
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError


@click.command("show", cls=CommandWithExamples)
@click.option("--handle", help="the timer's recall handle")
@click.option("--id", "timer_id", help="the timers' id, in any partition")
@click.option("--key", help="with an id: only timers with this key")
@click.option("--body", is_flag=True, help="also the value and the headers of the message")
@with_output
@with_settings()
def show_timers(
    settings: Settings,
    handle: str | None,
    timer_id: str | None,
    key: str | None,
    *,
    body: bool,
    output: str,
) -> int:
    """Show pending timers by recall handle, or by id.

    Reads the data directory, without Kafka. A timer without an id has its topic-partition@offset
    as its id.

    Exit code 0: shown; 1: no such timer is pending.
    """
    from duewheel.ops import timers

    if (handle is None) == (timer_id is None):
        raise ConfigError("give either --handle or --id")
    if handle is not None:
        timer = timers.by_handle(settings, handle, body=body)
        rows = [] if timer is None else [timer]
    else:
        by_key = None if key is None else key.encode()
        rows = list(timers.by_id(settings, timer_id or "", by_key, body=body))
    for number, row in enumerate(rows):
        if number and output == "text":
            click.echo()
        show(row if output == "json" else _as_text(row), output)
    if not rows:
        click.echo("duewheel: no such timer is pending here", err=True)
    return 0 if rows else 1


def _as_text(row: dict[str, Any]) -> dict[str, Any]:
    """Replaces the list of headers: a line for each."""
    headers = row.pop("headers", None)
    names = row.pop("header_names", None)
    if names is not None:
        row["header_names"] = ", ".join(names) or None
    for header in headers or []:
        row[f"header {header.pop('name')}"] = next(iter(header.values()))
    return row
