"""The commands of the group `schedule`: recurring schedules."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TypeVar
from zoneinfo import ZoneInfo

import click

from duewheel.api.schedules import NewSchedule, Pause, ScheduleDifference, ScheduleSummary
from duewheel.cli.examples import CommandGroup
from duewheel.cli.options import Command, with_result
from duewheel.cli.output import say, show, show_row, show_rows
from duewheel.cli.request_options import with_fields, with_request
from duewheel.config.durations import format_duration_ms
from duewheel.config.instants import utc_text
from duewheel.config.settings import Settings
from duewheel.errors import NoSuchSchedule

_WAIT_S = 10.0

T = TypeVar("T")


@click.group(cls=CommandGroup)
def schedule() -> None:
    """Set, list, pause and stop recurring schedules."""


def _with_name(command: Command) -> Command:
    return click.argument("name")(with_fields(NewSchedule, "timer_topic")(command))


def _with_wait(command: Command) -> Command:
    return click.option("--no-wait", is_flag=True, help="do not wait for ingest")(command)


@schedule.command("set")
@click.argument("name")
@_with_wait
@with_fields(
    NewSchedule,
    *("cron", "zone", "every", "missed", "starts", "ends", "jitter"),
    *("target", "value", "key", "headers", "timer_topic"),
    required=("target", "value"),
    value="the message, as text",
)
@with_request("new", NewSchedule)
@with_result(needs_kafka=True)
def set_(settings: Settings, name: str, new: NewSchedule, *, no_wait: bool, output: str) -> int:
    """Set a schedule, or replace the one of this name. It begins now.

    Refuses one that ingest would dead-letter, and says why. Runs where the shard's files are.

    Exit code 1: ingest has not taken it within 10 s; it is written, and takes effect then.
    """
    from duewheel.ops.schedules import changes, listing

    put = partial(changes.put, settings, name, new, _wait_s(no_wait))
    try:
        row = listing.patiently(partial(put, may_add=False), listing.READ_PAUSES_S)
    except NoSuchSchedule:
        row = put()
    return _applied(settings, row, output, no_wait=no_wait)


@schedule.command("list")
@with_result()
def list_(settings: Settings, output: str) -> None:
    """List the schedules of this shard.

    Reads the data directory, without Kafka: recurring timers that are pending. One that fires at
    this moment is missing until ingest has taken the copy of its next instant.
    """
    from duewheel.ops.schedules.listing import listed

    if show_rows(listed(settings).schedules, output, _line) is None:
        say("no schedules")


@schedule.command("next")
@_with_name
@with_result()
def next_(settings: Settings, name: str, timer_topic: str | None, output: str) -> None:
    """Show the next ten instants of a schedule, in UTC and in its zone."""
    from duewheel.ops.schedules import listing

    look = partial(listing.next_instants, settings, name, timer_topic)
    found = listing.patiently(look, listing.READ_PAUSES_S)
    if found.paused:
        say(f"{name} is paused: none of these fires before `duewheel schedule resume`")
    zone = ZoneInfo(found.zone or "UTC")
    for instant_ms in found.due_ms:
        local = datetime.fromtimestamp(instant_ms / 1000, zone).isoformat(timespec="seconds")
        row = {"due_ms": instant_ms, "local": local}
        text = f"{utc_text(instant_ms)}  {local}"
        click.echo(json.dumps(row) if output == "json" else text)


@schedule.command()
@_with_name
@_with_wait
@with_fields(Pause, "note")
@with_request("given", Pause)
@with_result(needs_kafka=True)
def pause(
    settings: Settings,
    name: str,
    timer_topic: str | None,
    given: Pause,
    *,
    no_wait: bool,
    output: str,
) -> int:
    """Pause a schedule: no instant fires until `resume`."""
    from duewheel.ops.schedules import changes

    note, wait_s = given.note, _wait_s(no_wait)
    row = _patiently(lambda: changes.pause(settings, name, timer_topic, note, wait_s))
    return _applied(settings, row, output, no_wait=no_wait)


@schedule.command()
@_with_name
@_with_wait
@with_result(needs_kafka=True)
def resume(
    settings: Settings, name: str, timer_topic: str | None, *, no_wait: bool, output: str
) -> int:
    """End the pause of a schedule: the instants from now on fire."""
    from duewheel.ops.schedules import changes

    row = _patiently(lambda: changes.resume(settings, name, timer_topic, _wait_s(no_wait)))
    return _applied(settings, row, output, no_wait=no_wait)


@schedule.command()
@_with_name
@_with_wait
@with_result(needs_kafka=True)
def stop(
    settings: Settings, name: str, timer_topic: str | None, *, no_wait: bool, output: str
) -> int:
    """End a schedule for good."""
    from duewheel.ops.schedules import changes

    row = _patiently(lambda: changes.stop(settings, name, timer_topic, _wait_s(no_wait)))
    return _applied(settings, row, output, no_wait=no_wait)


@schedule.command()
@_with_name
@with_result(needs_kafka=True)
def trigger(settings: Settings, name: str, timer_topic: str | None, output: str) -> None:
    """Fire a schedule once more, now; its next instant stays.

    Writes an ordinary timer with its message, also while it is paused.
    """
    from duewheel.ops.schedules import changes

    show(_patiently(lambda: changes.trigger(settings, name, timer_topic)), output)


@schedule.command()
@click.option(
    *("-f", "--file"),
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="TOML, a table for each name",
)
@click.option("--prune", is_flag=True, help="also stop those that the file lacks")
@click.option("--dry-run", is_flag=True, help="only show the differences")
@click.option("--no-wait", is_flag=True, help="do not wait for ingest")
@with_result(needs_kafka=True)
def apply(
    settings: Settings, file: Path, output: str, *, prune: bool, dry_run: bool, no_wait: bool
) -> int:
    """Make the schedules of this shard those of a file.

    The keys of a table are the options of `set`, `headers` a list of name and value. Writes the
    differences alone: a schedule that is as in the file keeps its next instant, and one that is
    paused stays so. A defect anywhere writes nothing. --prune stops only schedules in the timer
    topics of the file.

    Exit code 1: ingest has not taken all of them within 10 s.
    """
    from duewheel.ops.schedules.apply import apply

    wait_s = _wait_s(no_wait)
    found = apply(settings, file, prune=prune, dry_run=dry_run, wait_s=wait_s)
    show_rows(found, output, _difference)
    if dry_run or no_wait or all(row.applied for row in found):
        return 0
    say(_not_applied(settings))
    return 1


def _difference(row: ScheduleDifference) -> str:
    parts = [f"{row.change:<9}  {row.name}"]
    if row.change == "changed":
        parts += (f"{each.field} {each.old or '-'} -> {each.new or '-'}" for each in row.fields)
    return "  ".join(parts)


@schedule.command("move")
@click.option("--from", "topic", required=True, help="the former `timer.schedules_topic`")
@click.option("--dry-run", is_flag=True, help="only show, write nothing")
@with_result(needs_kafka=True)
def move(settings: Settings, topic: str, *, dry_run: bool, output: str) -> int:
    """Move the schedules of a former `recur` to recurring timers, each once, however
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


def _patiently(change: Callable[[], T]) -> T:
    from duewheel.ops.schedules.listing import CHANGE_PAUSES_S, patiently

    return patiently(change, CHANGE_PAUSES_S)


def _wait_s(no_wait: bool) -> float:
    return 0.0 if no_wait else _WAIT_S


def _applied(settings: Settings, row: ScheduleSummary, output: str, *, no_wait: bool) -> int:
    show(row, output)
    if row.applied or no_wait:
        return 0
    say(_not_applied(settings))
    return 1


def _not_applied(settings: Settings) -> str:
    from duewheel.ops.shard.why_not_ready import why_no_reply

    why = "".join(f"; {reason}" for reason in why_no_reply(settings))
    return f"it is written, and takes effect once ingest has taken it{why}"


def _line(row: ScheduleSummary) -> str:
    every = row.every_ms
    when = f"{row.cron} {row.zone}" if every is None else f"every {format_duration_ms(every)}"
    upcoming = "" if row.next_due_ms is None else f"next {utc_text(row.next_due_ms)}"
    to = f"{row.timer_topic} to {row.target}"
    parts = (row.name, row.state, when, to, upcoming, row.note)
    return "  ".join(filter(None, parts))
