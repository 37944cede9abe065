"""The commands of the group `schedule`: recurring schedules."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar
from zoneinfo import ZoneInfo

import click

from duewheel.api.schedules import NewSchedule, Pause, ScheduleDifference, ScheduleSummary
from duewheel.cli.command_help import CommandGroup
from duewheel.cli.options import Command, with_dry_run, with_result, with_writer
from duewheel.cli.output import Printer, say
from duewheel.cli.pages import show_rows
from duewheel.cli.replies import DEFAULT_S, say_if_missing, say_if_recovering, why_late
from duewheel.cli.request_options import with_fields, with_request
from duewheel.clock import SystemClock
from duewheel.config.durations import format_duration_ms
from duewheel.config.instants import instant_text, utc_text
from duewheel.config.settings import Settings
from duewheel.ops.changes.timer_writer import TimerWriter
from duewheel.ops.schedules import apply_file, changes, listing, steps
from duewheel.ops.schedules.changes import WrittenSchedule
from duewheel.ops.schedules.read_before_change import LogEnds

P = ParamSpec("P")
T = TypeVar("T")


@click.group(cls=CommandGroup)
def schedule() -> None:
    """Set, list, pause and stop recurring schedules."""


def _with_name(command: Command) -> Command:
    return click.argument("name")(with_fields(NewSchedule, "timer_topic")(command))


def _with_ingest_wait(command: Command) -> Command:
    """Adds --no-wait, as the argument `wait_s`: how long to wait for ingest."""

    @click.option("--no-wait", is_flag=True, help="do not wait for ingest")
    @functools.wraps(command)
    def waiting(*, no_wait: bool, **others: Any) -> Any:
        return command(wait_s=0.0 if no_wait else DEFAULT_S, **others)

    return waiting


@schedule.command("set")
@click.argument("name")
@_with_ingest_wait
@with_fields(
    NewSchedule,
    *("cron", "zone", "every", "missed", "starts", "ends", "jitter"),
    *("target", "value", "key", "headers", "timer_topic"),
    required=("target", "value"),
    value="the message, as text",
)
@with_request("new", NewSchedule)
@with_writer(from_files=True)
def set_(writer: TimerWriter, name: str, new: NewSchedule, wait_s: float, output: Printer) -> int:
    """Set a schedule, or replace the one of this name. It begins now, or at --starts.

    Refuses one that ingest would dead-letter, and says why. Runs where the shard's files are.

    Exit code 1: ingest has not taken it within 10 s; it is written, and takes effect then. Or
    ingest has not read earlier records of the timer topic within 5 s; nothing is written.
    """
    written = steps.completed(steps.put(steps.BlockingCalls(writer), name, new))
    say_if_missing(writer.settings, new.target)
    return _applied(writer, written, wait_s, output)


@schedule.command("list")
@with_result(is_list=True)
def list_(settings: Settings, output: Printer) -> None:
    """List the schedules of this shard.

    Reads the data directory, without Kafka. One that fires at this moment is missing. By name; of
    more than 10,000, the first ones that fire come first.
    """
    say_if_recovering(settings)
    schedules = listing.all_schedules(settings, SystemClock())
    if show_rows(schedules, ScheduleSummary, output, _line) is None:
        say("no schedules")


@schedule.command("next")
@_with_name
@with_result()
def next_(settings: Settings, name: str, timer_topic: str | None, output: Printer) -> None:
    """Show the next ten instants of a schedule, in UTC and in its zone."""
    say_if_recovering(settings)
    look = partial(listing.next_instants, settings, SystemClock(), name, timer_topic)
    found = steps.read_patiently(look)
    if found.paused:
        say(f"{name} is paused: none of these fires before `duewheel schedule resume`")
    if not found.due_ms:
        say(f"{name} has no instant from now on")
    zone = ZoneInfo(found.zone or "UTC")
    for due_ms in found.due_ms:
        local = instant_text(due_ms, zone)
        output.row({"due_ms": due_ms, "local": local}, f"{utc_text(due_ms)}  {local}")


@schedule.command()
@_with_name
@_with_ingest_wait
@with_fields(Pause, "note")
@with_request("given", Pause)
@with_writer(from_files=True)
def pause(
    writer: TimerWriter,
    name: str,
    timer_topic: str | None,
    given: Pause,
    wait_s: float,
    output: Printer,
) -> int:
    """Pause a schedule: no instant fires until `resume`."""
    written = _changed(changes.pause, writer, name, timer_topic, given.note)
    return _applied(writer, written, wait_s, output)


@schedule.command()
@_with_name
@_with_ingest_wait
@with_writer(from_files=True)
def resume(
    writer: TimerWriter, name: str, timer_topic: str | None, wait_s: float, output: Printer
) -> int:
    """End the pause of a schedule: the instants from now on fire."""
    written = _changed(changes.resume, writer, name, timer_topic)
    return _applied(writer, written, wait_s, output)


@schedule.command()
@_with_name
@_with_ingest_wait
@with_writer(from_files=True)
def stop(
    writer: TimerWriter, name: str, timer_topic: str | None, wait_s: float, output: Printer
) -> int:
    """End a schedule for good."""
    written = _changed(changes.stop, writer, name, timer_topic)
    return _applied(writer, written, wait_s, output)


@schedule.command()
@_with_name
@with_writer(from_files=True)
def trigger(writer: TimerWriter, name: str, timer_topic: str | None, output: Printer) -> None:
    """Fire a schedule once more, now; its next instant stays.

    Writes an ordinary timer with its message, also while it is paused.
    """
    output.show(_changed(changes.trigger, writer, name, timer_topic))


@schedule.command()
@click.option(
    *("-f", "--file"),
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="TOML, a table for each name",
)
@click.option("--prune", is_flag=True, help="also stop those that the file lacks")
@with_dry_run
@_with_ingest_wait
@with_writer(from_files=True)
def apply(
    writer: TimerWriter, file: Path, wait_s: float, output: Printer, *, prune: bool, dry_run: bool
) -> int:
    """Set the schedules of a file.

    The keys of a table are the options of `set`, `headers` a list of tables with `name` and
    `value`. Writes the differences alone: a schedule that is as in the file keeps its next instant,
    and one that is paused stays so. A defect anywhere writes nothing. --prune stops only schedules
    in the timer topics of the file, and refuses a file without a schedule.

    Exit code 1: ingest has not taken all of them within 10 s.
    """
    found = apply_file.apply(writer, file, prune=prune, dry_run=dry_run, wait_s=wait_s)
    if output.rows(found, _difference) is None:
        say(f"{file} has no schedule")
    if dry_run:
        say("--dry-run: nothing was written")
        return 0
    waiting = [row.name for row in found if not row.applied and row.change != "elsewhere"]
    return _end_of_ingest_wait(writer, waiting, wait_s)


def _difference(row: ScheduleDifference) -> str:
    parts = [f"{row.change:<9}  {row.name}"]
    if row.change == "changed":
        parts += (f"{each.field} {each.old or '-'} -> {each.new or '-'}" for each in row.fields)
    if row.change == "elsewhere":
        parts.append("another shard has its partition: apply the file on that host, too")
    return "  ".join(parts)


def _changed(
    make: Callable[Concatenate[TimerWriter, str, str, LogEnds, P], T],
    writer: TimerWriter,
    name: str,
    timer_topic: str | None,
    *args: P.args,
    **named: P.kwargs,
) -> T:
    calls = steps.BlockingCalls(writer)
    return steps.completed(steps.change(calls, make, name, timer_topic, *args, **named))


def _applied(writer: TimerWriter, written: WrittenSchedule, wait_s: float, output: Printer) -> int:
    row = steps.completed(steps.applied(steps.BlockingCalls(writer), written, wait_s))
    output.show(row)
    return _end_of_ingest_wait(writer, [] if row.applied else [row.name], wait_s)


def _end_of_ingest_wait(writer: TimerWriter, late: Sequence[str], wait_s: float) -> int:
    """Names the schedules that ingest has not taken within the wait; returns the exit code."""
    if not late or not wait_s:
        return 0
    why = why_late(writer.settings)
    say(f"{', '.join(late)}: written, and takes effect once ingest has taken it{why}")
    return 1


def _line(row: ScheduleSummary) -> str:
    every = row.every_ms
    when = f"{row.cron} {row.zone}" if every is None else f"every {format_duration_ms(every)}"
    upcoming = "" if row.next_due_ms is None else f"next {utc_text(row.next_due_ms)}"
    to = f"{row.timer_topic} to {row.target}"
    parts = (row.name, row.state, when, to, upcoming, row.note)
    return "  ".join(filter(None, parts))
