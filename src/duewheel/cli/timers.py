"""The commands `list` and `show`: their options, and their text."""

from __future__ import annotations

import json
from itertools import islice

import click

from duewheel.api.requests import TimerFilter
from duewheel.api.timers import TimerWithMessage
from duewheel.cli.examples import CommandWithExamples
from duewheel.cli.options import show, with_output, with_settings
from duewheel.cli.request_options import with_fields, with_request
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError


@click.command("list", cls=CommandWithExamples)
@with_fields(TimerFilter, "topic", "id", "key", "level", "since", "until")
@click.option("--limit", type=click.IntRange(1, 100_000), default=100, help="how many at most")
@click.option("--page", help="the last `page` value of the previous list: continue behind it")
@with_request("wanted", TimerFilter)
@with_output
@with_settings()
def list_timers(
    settings: Settings, wanted: TimerFilter, limit: int, page: str | None, output: str
) -> None:
    """List pending timers in the order in which they leave.

    A cancelled timer is listed until then, with `cancelled`. If more timers follow, a line on
    stderr says how to list them. JSON has times in epoch milliseconds, and recall handles.
    """
    from duewheel.cli.timer_text import timer_line
    from duewheel.clock import SystemClock
    from duewheel.ops.timers.pending import listed

    rows = listed(settings, wanted, limit + 1, page)
    now_ms, last = SystemClock().now_ms(), ""
    for row in islice(rows, limit):
        last = row.page
        click.echo(json.dumps(row.as_json()) if output == "json" else timer_line(row, now_ms))
    if not last:
        click.echo("duewheel: no pending timers", err=True)
    if next(rows, None) is not None:
        click.echo(f"duewheel: more timers follow: --page {last}, or --limit", err=True)


@click.command("show", cls=CommandWithExamples)
@click.option("--handle", help="the timer's recall handle")
@with_fields(
    TimerFilter,
    *("id", "key"),
    id="the timers' id, in any partition",
    key="with an id: only timers with this key",
)
@click.option("--body", is_flag=True, help="also the value and the headers of the message")
@with_request("wanted", TimerFilter)
@with_output
@with_settings()
def show_timers(
    settings: Settings, handle: str | None, wanted: TimerFilter, *, body: bool, output: str
) -> int:
    """Show pending timers by recall handle, or by id.

    Reads the data directory, without Kafka. A timer without an id has its topic-partition@offset
    as its id.

    Exit code 0: shown; 1: no such timer is pending.
    """
    from duewheel.ops.timers import pending

    if (handle is None) == (wanted.id is None):
        raise ConfigError("give either --handle or --id")
    if handle is not None and wanted.key is not None:
        raise ConfigError("--key goes with --id: a handle names one timer")
    if handle is not None:
        timer = pending.by_handle(settings, handle, body=body)
        rows = [] if timer is None else [timer]
    else:
        rows = list(pending.selected(settings, wanted, body=body))
    for number, row in enumerate(rows):
        if number and output == "text":
            click.echo()
        show(row.as_json() if output == "json" else _as_text(row), output)
    if not rows:
        click.echo("duewheel: no such timer is pending here", err=True)
    return 0 if rows else 1


def _as_text(timer: TimerWithMessage) -> dict[str, object]:
    """Replaces the list of headers: a line for each."""
    row = timer.as_json()
    row.pop("headers", None)
    if timer.header_names is not None:
        row["header_names"] = ", ".join(timer.header_names) or None
    for header in timer.headers or []:
        text = header.value if header.value_base64 is None else header.value_base64
        row[f"header {header.name}"] = text
    return row
