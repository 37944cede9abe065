"""The commands of recurring schedules: `recur`, their process, and the group `schedule`."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from zoneinfo import ZoneInfo

import click

from duewheel.api.schedules import NewSchedule, ScheduleSummary
from duewheel.cli.examples import CommandGroup, CommandWithExamples
from duewheel.cli.options import Command, with_output, with_result, with_settings
from duewheel.cli.output import say, show, show_row
from duewheel.cli.request_options import with_fields, with_request
from duewheel.config.durations import format_duration_ms
from duewheel.config.instants import utc_text
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError

_WAIT_S = 10.0


@click.command(cls=CommandWithExamples)
@with_settings("recur")
def recur(settings: Settings) -> None:
    """Write the firings of recurring schedules.

    One process for all shards of an application. A second one stands by, and takes over once the
    first is silent for `shard.take_over_after`. Needs `timer.schedules_topic`.
    """
    from duewheel.recurring.process import run_recur

    run_recur(settings)


@click.group(cls=CommandGroup)
def schedule() -> None:
    """Set, list, pause and stop recurring schedules."""


def _with_name(command: Command) -> Command:
    command = click.option("--no-wait", is_flag=True, help="do not wait for the scheduler")(command)
    return click.argument("name")(command)


@schedule.command("set")
@_with_name
@with_fields(
    NewSchedule,
    *("cron", "zone", "every", "target", "value", "key", "headers", "missed", "timer_topic"),
    required=("target", "value"),
    value="the message, as text",
)
@with_request("new", NewSchedule)
@with_output
@with_settings(needs_kafka=True)
def set_(settings: Settings, name: str, new: NewSchedule, *, no_wait: bool, output: str) -> int:
    """Set a schedule, or replace the one of this name. It begins now.

    Exit code 1: no scheduler has applied it within 10 s; it is written, and will be.
    """
    from duewheel.ops.schedules import put

    if "zone" in new.model_fields_set and new.cron is None:
        raise ConfigError("--zone belongs to --cron: an interval is elapsed time")
    return _applied(put(settings, name, new, _wait_s(no_wait)), output, no_wait=no_wait)


@schedule.command("list")
@with_output
@with_settings(needs_kafka=True)
def list_(settings: Settings, output: str) -> None:
    """List all schedules."""
    from duewheel.ops.schedules import overview

    found = overview(settings)
    for row in found.schedules:
        click.echo(json.dumps(row.as_json()) if output == "json" else _line(row))
    if found.scheduler != "running":
        click.echo("duewheel: no scheduler runs: `duewheel recur` writes the firings", err=True)


@schedule.command("next")
@click.argument("name")
@with_output
@with_settings(needs_kafka=True)
def next_(settings: Settings, name: str, output: str) -> None:
    """Show the next ten instants of a schedule, in UTC and in its zone."""
    from duewheel.ops.schedules import next_instants, schedule_of

    found = schedule_of(settings, name)
    if found.paused:
        text = "none of these fires before `duewheel schedule resume`"
        click.echo(f"duewheel: {name} is paused: {text}", err=True)
    zone = ZoneInfo(found.zone)
    for instant_ms in next_instants(found):
        local = datetime.fromtimestamp(instant_ms / 1000, zone).isoformat(timespec="seconds")
        row = {"due_ms": instant_ms, "local": local}
        text = f"{utc_text(instant_ms)}  {local}"
        click.echo(json.dumps(row) if output == "json" else text)


def _change(
    name: str, text: str, change: Callable[[Settings, str, float], ScheduleSummary]
) -> None:
    """Adds a command that changes one schedule."""

    @schedule.command(name, help=text)
    @_with_name
    @with_output
    @with_settings(needs_kafka=True)
    def command(settings: Settings, name: str, *, no_wait: bool, output: str) -> int:
        return _applied(change(settings, name, _wait_s(no_wait)), output, no_wait=no_wait)


def _pause(settings: Settings, name: str, wait_s: float) -> ScheduleSummary:
    from duewheel.ops.schedules import pause

    return pause(settings, name, wait_s, on=True)


def _resume(settings: Settings, name: str, wait_s: float) -> ScheduleSummary:
    from duewheel.ops.schedules import pause

    return pause(settings, name, wait_s, on=False)


def _stop(settings: Settings, name: str, wait_s: float) -> ScheduleSummary:
    from duewheel.ops.schedules import stop

    return stop(settings, name, wait_s)


_change("pause", "Pause a schedule: no instant fires until `resume`.", _pause)
_change("resume", "End the pause of a schedule: the instants from now on fire.", _resume)
_change("stop", "End a schedule for good.", _stop)


@schedule.command("move")
@click.option("--from", "topic", required=True, help="the former `timer.schedules_topic`")
@click.option("--dry-run", is_flag=True, help="only show, write nothing")
@with_result(needs_kafka=True)
def move(settings: Settings, topic: str, *, dry_run: bool, output: str) -> int:
    """Move the schedules of a former `duewheel recur` to recurring timers, each once, however
    often the command runs.

    Exit code 1: some stay, for the reason that their line has.
    """
    from duewheel.ops.schedule_move.move import move

    stay = False
    for row in move(settings, topic, dry_run=dry_run):
        show_row(row, output)
        stay |= row.state == "stays"
    if dry_run:
        say("nothing is written: it is a dry run")
    return int(stay)


def _wait_s(no_wait: bool) -> float:
    return 0.0 if no_wait else _WAIT_S


def _applied(row: ScheduleSummary, output: str, *, no_wait: bool) -> int:
    show(row, output)
    if row.applied or no_wait:
        return 0
    text = "written, but not applied yet: does `duewheel recur` run, do ingest and dequeue?"
    click.echo(f"duewheel: {text}", err=True)
    return 1


def _line(row: ScheduleSummary) -> str:
    if row.state == "unreadable":
        return f"{row.name}  unreadable"
    every = row.every_ms
    when = f"{row.cron} {row.zone}" if every is None else f"every {format_duration_ms(every)}"
    upcoming = "" if row.next_due_ms is None else f"next {utc_text(row.next_due_ms)}"
    applied = "" if row.applied else "not applied yet"
    parts = (row.name, row.state, when, f"to {row.target}", upcoming, applied)
    return "  ".join(filter(None, parts))
