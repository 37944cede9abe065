"""The commands that write one timer, or change timers: `send`, `cancel`, `cancel-matching` and
`reschedule`.
"""

from __future__ import annotations

import click

from duewheel.api.limits import COMMAND_BULK_DEFAULT, COMMAND_BULK_MAX
from duewheel.api.requests import KeyedTimers, NamedTimers, NewTimer, Replacement, TimerFilter
from duewheel.cli.command_help import CommandWithExamples
from duewheel.cli.options import with_dry_run, with_writer
from duewheel.cli.output import Printer, say
from duewheel.cli.replies import (
    ReplyWait,
    end_of_reply_wait,
    say_if_missing,
    say_if_recovering,
    say_what_keep_does,
    show_outcome,
    with_wait,
)
from duewheel.cli.request_options import OF_NEW_TIMER, OF_PENDING_TIMERS, with_fields, with_request
from duewheel.errors import ConfigError, Conflict
from duewheel.ops.changes import requests
from duewheel.ops.changes.cancel_matching import cancel_all, find_matching
from duewheel.ops.changes.timer_writer import TimerWriter


@click.command(cls=CommandWithExamples)
@with_fields(
    NewTimer,
    *OF_NEW_TIMER,
    required=("topic", "value"),
    value="the message, as text",
)
@with_request("timer", NewTimer)
@with_writer()
def send(writer: TimerWriter, timer: NewTimer, output: Printer) -> None:
    """Schedule one message.

    Refuses a timer that ingest would dead-letter, and says why.
    """
    output.show(requests.send(writer, timer))
    if timer.if_pending == "keep":
        say_what_keep_does(writer.settings)
    say_if_missing(writer.settings, timer.topic)


@click.command(cls=CommandWithExamples)
@with_fields(NamedTimers, "handle", "id", "key", "partition", "timer_topic")
@with_wait
@with_request("named", NamedTimers)
@with_writer()
def cancel(writer: TimerWriter, named: NamedTimers, wait: ReplyWait, output: Printer) -> int:
    """Cancel timers by recall handle, or by id.

    Give --handle HANDLE, or --id ID with --key KEY or --partition NUMBER.

    Exit code 0: the reply is "cancelled"; 1: another reply, or none in time. With --no-wait, and
    without `timer.reply_topic`, 0: the cancel is written and takes effect; no reply says how.
    """
    goes_on = wait.goes_on(writer.settings)
    written = requests.cancel(writer, named, reply=wait.seconds > 0)
    result = written.after(wait.seconds, goes_on)
    return show_outcome(writer.settings, result, wait, output)


@click.command("cancel-matching", cls=CommandWithExamples)
@with_fields(TimerFilter, *OF_PENDING_TIMERS)
@click.option(
    "--at-most",
    type=click.IntRange(1, COMMAND_BULK_MAX),
    default=COMMAND_BULK_DEFAULT,
    help="if more timers match, none is cancelled",
)
@with_dry_run
@with_wait
@with_request("wanted", TimerFilter)
@with_writer(from_files=True)
def cancel_matching(
    writer: TimerWriter,
    wanted: TimerFilter,
    at_most: int,
    wait: ReplyWait,
    output: Printer,
    *,
    dry_run: bool,
) -> int:
    """Cancel all pending timers that match the options.

    They are read from the data directory, and each is cancelled by its handle. Recurring ones
    stay: `schedule stop` ends them. --from and --to select by when a timer leaves; `rolling` counts
    those that only roll then, and are due later. Other timer topics may have the same ids and keys:
    --timer-topic leaves their timers out.

    Exit code 1: as for `cancel`, or some that match are left: the shard recovers, or no handle
    names them. A start does not extend the wait. Also --dry-run needs Kafka.
    """
    say_if_recovering(writer.settings)
    try:
        matching = find_matching(writer.settings, wanted, at_most=at_most)
    except Conflict as error:
        allow = "or allow more with --at-most; --dry-run beside it only counts them"
        raise ConfigError(f"{error}, {allow}") from error
    if dry_run:
        result = matching.result(dry_run=True)
    else:
        result = cancel_all(writer, matching, reply=wait.seconds > 0).after(wait.seconds)
    output.show(result, hidden=("sample",))
    if result.unreachable:
        say(
            f"{result.unreachable} more match, and stay: their ids are no UTF-8, so no handle "
            "names them. A client cancels them by id; a pause of their target holds them"
        )
    missed = int(result.unreachable > 0 or result.recovering)
    if dry_run or not result.written:
        return missed
    late, done = "none_in_time" in result.answers, result.answers.get("cancelled") == result.written
    return end_of_reply_wait(writer.settings, wait, late=late, done=done) or missed


@click.command(cls=CommandWithExamples)
@with_fields(KeyedTimers, "handle", "id", "key", "timer_topic")
@with_wait
@with_fields(Replacement, "deliver_at", "delay", "level", "topic", "value", "headers")
@with_request("named", KeyedTimers)
@with_request("new", Replacement)
@with_writer()
def reschedule(
    writer: TimerWriter, named: KeyedTimers, new: Replacement, wait: ReplyWait, output: Printer
) -> int:
    """Replace timers by a new one.

    Give --handle HANDLE, or --id ID with --key KEY.

    With --handle the message is read back from the timer topic: --value alone keeps its key and
    headers. With --target beside it nothing is read back: key and headers are those of the options.
    The new timer is delivered whatever the reply is. Exit codes as for `cancel`.
    """
    goes_on = wait.goes_on(writer.settings)
    written = requests.reschedule(writer, named, new, reply=wait.seconds > 0)
    if new.topic is not None:
        say_if_missing(writer.settings, new.topic)
    result = written.after(wait.seconds, goes_on)
    return show_outcome(writer.settings, result, wait, output)
