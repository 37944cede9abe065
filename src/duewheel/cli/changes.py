"""The commands that write into a timer topic: `send`, `cancel` and `reschedule`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import click

from duewheel.api.changes import Answered, RescheduledTimer
from duewheel.api.requests import NamedTimers, NewTimer, Replacement, TimerFields, TimerFilter
from duewheel.cli.examples import CommandWithExamples
from duewheel.cli.file_import import import_file, require_file, send_file, with_file
from duewheel.cli.options import Command, with_result
from duewheel.cli.output import say, show
from duewheel.cli.request_options import Options, request_of, with_fields, with_request
from duewheel.config.durations import parse_duration_ms
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError

_WAIT_S = 10.0
_START_S = 60.0  # a reply is awaited so long while the processes start
_NO_REPLY_TOPIC = (
    "written, and takes effect; timer.reply_topic names no topic, so that no reply says whether it "
    "stopped a timer"
)
AT_MOST = 1_000
_TOPIC = "with --matching: those with this target"


def _with_timers(command: Command) -> Command:
    """Adds the options that name timers, and the longest wait for the reply."""
    for option in (
        click.option("--no-wait", is_flag=True, help="do not wait for the reply"),
        click.option(
            "--wait", help="the longest wait; by default 10s, from the end of a start on this host"
        ),
        with_fields(NamedTimers, "handle", "id", "key", "timer_topic"),
    ):
        command = option(command)
    return command


@click.command(cls=CommandWithExamples)
@with_file
@with_fields(
    NewTimer,
    *("topic", "value", "key", "headers", "deliver_at", "delay", "level", "id", "tag"),
    "timer_topic",
    required=("topic", "value"),
    or_file=True,
    value="the message, as text",
)
@with_request("timer", NewTimer, of_lines=TimerFields)
@with_result(needs_kafka=True)
def send(
    settings: Settings,
    timer: Any,
    file: str | None,
    import_name: str | None,
    output: str,
    *,
    skip_refused: bool,
    dry_run: bool,
) -> int:
    """Schedule one message, or with --file one for each line.

    Refuses a timer that ingest would dead-letter, and says why.

    A line is a JSON object with topic, value or value_base64, key, headers (a list of name and
    value), id, partition, timer_topic, window, and deliver_at, delay or level. The options hold for
    lines without these fields. Exit code 1: some lines were refused.

    With --name each line is sent exactly once, whatever is killed and however often the command
    runs: the position in the file is committed with the timers. The first refused line ends it.
    """
    require_file(file, import_name, has_choice=skip_refused or dry_run)
    if file is not None:
        if import_name is None:
            return send_file(settings, file, timer, output)
        return import_file(
            settings, file, timer, output, import_name, skip_refused=skip_refused, dry_run=dry_run
        )
    from duewheel.ops.changes import requests
    from duewheel.ops.changes.acceptance import is_missing

    show(requests.send(settings, timer), output)
    if is_missing(settings, timer.topic):
        say(
            f"there is no topic {timer.topic!r} yet. `duewheel topic create {timer.topic}` makes "
            "it; until then a timer that is due becomes a dead letter"
        )
    return 0


def _with_filter(command: Command) -> Command:
    """Adds the options of a bulk cancel."""
    for option in (
        click.option("--dry-run", is_flag=True, help="with --matching: only count"),
        click.option(
            "--at-most",
            type=click.IntRange(1, 100_000),
            default=AT_MOST,
            help="if more timers match, none is cancelled",
        ),
        with_fields(TimerFilter, "topic", "tag", "level", "since", "until", topic=_TOPIC),
        click.option(
            "--matching",
            is_flag=True,
            help="cancel all pending timers that the other options select, --id and --key, too",
        ),
    ):
        command = option(command)
    return command


@click.command(cls=CommandWithExamples)
@_with_timers
@_with_filter
@with_fields(NamedTimers, "partition")
@with_result(needs_kafka=True)
def cancel(settings: Settings, output: str, **options: Any) -> int:
    """Cancel timers by recall handle, by id, or all that match.

    Give --handle HANDLE, or --id ID with --key KEY or --partition NUMBER. With --matching the
    pending timers are read from the data directory, and each is cancelled by its handle.

    Exit code 0: the reply is "cancelled"; 1: another reply, or none in time. With --no-wait, and
    without `timer.reply_topic`, 0: the cancel is written and takes effect; no reply says how.
    """
    from duewheel.ops.changes import requests

    wait_s = _wait_s(options)
    if options["matching"]:
        return cancel_matching(settings, options, wait_s, output)
    _require_one(options)
    goes_on = while_starting(settings, options)
    result = requests.cancel(settings, request_of(NamedTimers, options), wait_s, goes_on)
    return answered(settings, result, wait_s, output)


@click.command(cls=CommandWithExamples)
@_with_timers
@with_fields(Replacement, "deliver_at", "delay", "level", "topic", "value", "headers")
@with_request("new", Replacement)
@with_result(needs_kafka=True)
def reschedule(settings: Settings, new: Replacement, output: str, **options: Any) -> int:
    """Replace timers by a new one.

    Give --handle HANDLE, or --id ID with --key KEY.

    With --handle the message is read back from the timer topic, unless --topic and --value give it.
    The new timer is delivered whatever the reply is. Exit codes as for `cancel`.
    """
    from duewheel.ops.changes import requests

    wait_s = _wait_s(options)
    named, goes_on = request_of(NamedTimers, options), while_starting(settings, options)
    result = requests.reschedule(settings, named, new, wait_s, goes_on)
    return answered(settings, result, wait_s, output)


def cancel_matching(settings: Settings, options: Options, wait_s: float | None, output: str) -> int:
    """Runs `cancel --matching`; returns its exit code."""
    from duewheel.ops.changes.pending_timers import Unchangeable, cancel_all

    if any(options[name] is not None for name in ("handle", "partition", "timer_topic")):
        raise ConfigError("--matching goes with --topic, --id, --key, --level, --from and --to")
    wanted = request_of(TimerFilter, options)
    dry_run, at_most = options["dry_run"], options["at_most"]
    try:
        result = cancel_all(settings, wanted, wait_s, at_most=at_most, dry_run=dry_run)
    except Unchangeable as error:
        allow = "or allow more with --at-most; --dry-run beside it only counts them"
        raise ConfigError(f"{error}, {allow}") from error
    show(result, output, hidden=("sample",))
    awaits = settings.timer.reply_topic is not None and wait_s is not None and not dry_run
    cancelled = result.answers.get("cancelled", 0)
    return 1 if awaits and cancelled < result.written else 0


def _require_one(options: Options) -> None:
    """Refuses options of a bulk cancel without --matching.

    Raises:
        ConfigError: names one of them.
    """
    for name, flag in (("topic", "--topic"), ("level", "--level"), ("since", "--from")):
        if options[name] is not None:
            raise ConfigError(f"{flag} selects several timers: give --matching, too")
    if options["until"] is not None or options["dry_run"]:
        raise ConfigError("--to and --dry-run go with --matching")


def _wait_s(options: Options) -> float | None:
    """Parses the longest wait; None: do not wait."""
    if options["no_wait"]:
        return None
    if options["wait"] is None:
        return _WAIT_S
    try:
        return parse_duration_ms(options["wait"]) / 1000
    except ValueError as error:
        raise ConfigError(f"--wait: {error}") from error


def while_starting(settings: Settings, options: Options) -> Callable[[], bool]:
    """Whether to wait once more: until a start on this host has ended, and one wait beyond it."""
    from duewheel.ops.shard.processes import is_starting

    if options["wait"] is not None:
        return lambda: False
    end_s, was_starting, is_announced = time.monotonic() + _START_S, is_starting(settings), False

    def goes_on() -> bool:
        nonlocal was_starting, is_announced
        before, was_starting = was_starting, is_starting(settings)
        if time.monotonic() >= end_s or not (before or was_starting):
            return False
        if not is_announced:
            say(f"written; the shard is starting: waiting for the reply, {_START_S:g} s at most")
            is_announced = True
        return True

    return goes_on


def answered(
    settings: Settings, result: Answered | RescheduledTimer, wait_s: float | None, output: str
) -> int:
    """Prints the outcome of a request; returns the exit code."""
    show(result, output)
    if wait_s is None:
        return 0
    if settings.timer.reply_topic is None:
        say(_NO_REPLY_TOPIC)
        return 0
    if result.answer is None:
        from duewheel.ops.shard.why_not_ready import why_no_reply

        why = "".join(f"; {reason}" for reason in why_no_reply(settings))
        say(f"written, but no reply in time: it takes effect without one{why}")
    return 0 if result.answer == "cancelled" else 1
