"""The commands `list`, `show` and `stats`: their options, and their text."""

from __future__ import annotations

from collections.abc import Iterator

import click

from duewheel.api.requests import TimerFilter
from duewheel.api.timers import TimerSummary, TimerWithMessage
from duewheel.cli import times
from duewheel.cli.command_help import CommandWithExamples
from duewheel.cli.options import one_of, with_result
from duewheel.cli.output import Printer, key_text, labelled, say
from duewheel.cli.pages import show_page, with_page
from duewheel.cli.replies import say_if_recovering
from duewheel.cli.request_options import OF_PENDING_TIMERS, with_fields, with_request
from duewheel.cli.status_text import WITH_CANCELLED
from duewheel.clock import SystemClock
from duewheel.config.instants import utc_text
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError
from duewheel.ops.timers import pending, pending_stats

_SHOWN_MAX = 100  # timers of one id


@click.command("list", cls=CommandWithExamples)
@with_fields(TimerFilter, *OF_PENDING_TIMERS)
@with_page
@with_request("wanted", TimerFilter)
@with_result(is_list=True)
def list_timers(
    settings: Settings, wanted: TimerFilter, limit: int | None, page: str | None, output: Printer
) -> None:
    """List pending timers in the order in which they leave.

    A cancelled timer is listed until it would have left, marked as cancelled. The timer of a paused
    schedule has `paused` in place of a due time. JSON has times in epoch milliseconds, and recall
    handles.
    """
    now_ms = SystemClock().now_ms()
    say_if_recovering(settings)
    show_page(
        lambda most: pending.list_timers(settings, wanted, most, page),
        TimerSummary,
        limit,
        output,
        lambda row: timer_line(row, now_ms),
        lambda row: row.page,
        of="pending timers",
    )


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
@with_result()
def show_timers(
    settings: Settings, handle: str | None, wanted: TimerFilter, *, body: bool, output: Printer
) -> int:
    """Show pending timers by recall handle, or by id.

    Reads the data directory, without Kafka. A timer without an id has its topic-partition@offset
    as its id. Of one id it shows 100 timers; `list --id` shows all.

    Of a long message it shows the start: 64 KiB of a key, 1,000 headers, 1 MiB of a value.
    `key_bytes`, `header_count` and `value_bytes` have the whole length.

    Exit code 0: shown; 1: no such timer is pending.
    """
    if (handle is None) == (wanted.id is None):
        raise ConfigError("give either --handle or --id")
    if handle is not None and wanted.key is not None:
        raise ConfigError("--key goes with --id: a handle names one timer")
    say_if_recovering(settings)
    if handle is not None:
        timer = pending.by_handle(settings, handle, body=body)
        rows = [] if timer is None else [timer]
    else:
        rows = list(pending.matching_timers(settings, wanted, _SHOWN_MAX + 1, body=body))
    for number, row in enumerate(rows[:_SHOWN_MAX]):
        if number:
            output.line()
        output.show(row, with_header_lines(row))
    if not rows:
        say("no such timer is pending here")
    if len(rows) > _SHOWN_MAX:
        say(f"more than {_SHOWN_MAX} timers match: `duewheel list --id` shows all, in pages")
    return 0 if rows else 1


def with_header_lines(timer: TimerWithMessage) -> dict[str, object]:
    """Replaces the list of headers, by a line for each, and the due time of a paused schedule."""
    row = labelled(timer)
    if timer.paused:
        row["due"] = "paused"
    row.pop("headers", None)
    if timer.header_names is not None:
        row["header_names"] = ", ".join(timer.header_names) or None
    for number, header in enumerate(timer.headers or []):  # several may have one name
        octets = header.value_base64
        label = f"header.{number} {header.name}" + ("" if octets is None else " (base64)")
        row[label] = header.value if octets is None else octets
    return row


@click.command(cls=CommandWithExamples)
@click.option(
    "--by", type=one_of("topic", "time", "level"), help="only this breakdown; topic: the target"
)
@with_result()
def stats(settings: Settings, by: str | None, output: Printer) -> None:
    """Count pending timers by target, level and seconds to wait.

    A cancelled timer counts until it would have left; `list` marks it.
    """
    say_if_recovering(settings)
    if by == "level":
        output.rows(pending_stats.levels(settings))
        return
    found = pending_stats.stats(settings, SystemClock())
    if by is None:
        counted = f"{found.pending}, {WITH_CANCELLED}"
        output.show(found, {**labelled(found), "pending": counted})
        return
    label, by_label = ("topic", found.by_topic) if by == "topic" else ("within_s", found.within_s)
    rows = ({label: value, "pending": pending} for value, pending in by_label.items())
    if output.rows(rows) is None:
        say("no pending timers")


def timer_line(row: TimerSummary, now_ms: int) -> str:
    """Describes a pending timer: when it leaves, for which target, and its peculiarities."""
    return "  ".join(_parts(row, now_ms))


def _parts(row: TimerSummary, now_ms: int) -> Iterator[str]:
    leaves_ms, due_ms = row.leaves_ms, row.due_ms
    yield utc_text(leaves_ms)
    yield times.distance(leaves_ms, now_ms)
    yield row.topic
    if key := key_text(row.key, row.key_base64, row.key_bytes):
        yield key
    yield f"id {row.id}"
    yield "no value" if row.value_bytes is None else f"{row.value_bytes} bytes"
    if row.level is not None:
        yield f"level {row.level}"
    if due_ms is None:
        yield "dead letter"
    elif row.paused:
        yield "paused"
    elif row.rolled:
        yield f"rolls; due {times.moment(due_ms, now_ms)}"
    if row.cancelled:
        yield "CANCELLED: will not be delivered"
