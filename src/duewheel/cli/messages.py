"""The commands that write into a timer topic, `send`, `cancel` and `reschedule`: their options."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from typing import Any

import click

from duewheel.api.changes import Answered, RescheduledTimer
from duewheel.cli.examples import CommandWithExamples
from duewheel.cli.files import (
    import_file,
    needed_without_file,
    require_file,
    send_file,
    with_file,
)
from duewheel.cli.filters import cancel_matching, require_one, with_filter
from duewheel.cli.options import Command, show, with_output, with_settings
from duewheel.config.durations import parse_duration_ms
from duewheel.config.instants import epoch_ms, parse_instant
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError

_WAIT_S = 10.0
_START_S = 60.0  # a reply is awaited so long while the processes start
_NO_REPLY_TOPIC = (
    "written, and takes effect; timer.reply_topic names no topic, so that no reply says whether it "
    "stopped a timer"
)


def _with_time(command: Command) -> Command:
    """Adds the three options of the due time, and refuses wrong ones by their names."""

    @functools.wraps(command)
    def checked(**options: Any) -> Any:
        _require_time(options)
        return command(**options)

    with_options: Command = checked
    for option in (
        click.option("--level", type=click.IntRange(1), help="one of the delay levels"),
        click.option("--delay", help="such as 90s, 15m or 1h30m"),
        click.option("--deliver-at", help="epoch milliseconds, or ISO-8601 with a zone"),
    ):
        with_options = option(with_options)
    return with_options


def _require_time(options: Mapping[str, Any]) -> None:
    given = [name for name in ("deliver_at", "delay", "level") if options[name] is not None]
    if len(given) > 1 or not (given or options.get("file")):
        raise ConfigError("give one of --deliver-at, --delay and --level")
    try:
        if options["deliver_at"] is not None:
            epoch_ms(parse_instant(options["deliver_at"]))
    except ConfigError as error:
        raise ConfigError(f"--deliver-at: {error}") from error
    try:
        if options["delay"] is not None:
            parse_duration_ms(options["delay"])
    except ValueError as error:
        raise ConfigError(f"--delay: {error}") from error


def _with_timer(command: Command) -> Command:
    """Adds the options that name timers, and the longest wait for the reply."""
    for option in (
        click.option("--no-wait", is_flag=True, help="do not wait for the reply"),
        click.option(
            "--wait", help="the longest wait; by default 10s, from the end of a start on this host"
        ),
        click.option("--timer-topic", help="their topic; by default the first of timer.topics"),
        click.option("--key", help="the timers' key: with an id it determines their partition"),
        click.option("--id", "timer_id", help="the timers' id"),
        click.option("--handle", help="the timer's recall handle"),
    ):
        command = option(command)
    return command


@click.command(cls=CommandWithExamples)
@with_file
@click.option("--topic", callback=needed_without_file, help="the target")
@click.option("--value", callback=needed_without_file, help="the message, as text")
@click.option("--key", help="the message's key; timers of a key keep their order")
@click.option("--header", "headers", multiple=True, help="name=value; may be repeated")
@_with_time
@click.option("--id", "timer_id", help="the timer's id")
@click.option("--timer-topic", help="by default the first of timer.topics")
@with_output
@with_settings(needs_kafka=True)
def send(
    settings: Settings,
    file: str | None,
    import_name: str | None,
    value: str | None,
    key: str | None,
    headers: tuple[str, ...],
    output: str,
    *,
    skip_refused: bool,
    dry_run: bool,
    **options: Any,
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
        given = {"value": value, "key": key, "id": options.pop("timer_id"), **options}
        named = [dict(zip(("name", "value"), text.split("=", 1), strict=False)) for text in headers]
        defaults = {"headers": named or None, **given}
        defaults = {name: each for name, each in defaults.items() if each is not None}
        if import_name is None:
            return send_file(settings, file, defaults, output)
        choice = {"name": import_name, "skip_refused": skip_refused, "dry_run": dry_run}
        return import_file(settings, file, defaults, choice, output)
    from duewheel.ops import changes as sender
    from duewheel.ops.acceptance import is_missing

    sent = sender.send(
        settings,
        value=_encoded(value),
        key=_encoded(key),
        headers=[as_header(text) for text in headers],
        **options,
    )
    show(sent, output)
    if is_missing(settings, options["topic"]):
        click.echo(
            f"duewheel: there is no topic {options['topic']!r} yet. `duewheel topic create "
            f"{options['topic']}` makes it; until then a timer that is due becomes a dead letter",
            err=True,
        )
    return 0


@click.command(cls=CommandWithExamples)
@_with_timer
@with_filter
@click.option("--partition", type=click.IntRange(0), help="with an id, instead of the key")
@with_output
@with_settings(needs_kafka=True)
def cancel(settings: Settings, output: str, **options: Any) -> int:
    """Cancel timers by recall handle, by id, or all that match.

    Give --handle HANDLE, or --id ID with --key KEY or --partition NUMBER. With --matching the
    pending timers are read from the data directory, and each is cancelled by its handle.

    Exit code 0: the reply is "cancelled"; 1: another reply, or none in time. With --no-wait, and
    without `timer.reply_topic`, 0: the cancel is written and takes effect; no reply says how.
    """
    from duewheel.ops import changes as sender

    wait_s = _wait_s(options)
    if options["matching"]:
        return cancel_matching(settings, options, wait_s, output)
    require_one(options)
    goes_on = while_starting(settings, options)
    result = sender.cancel(settings, _timer(options), wait_s, goes_on)
    return answered(settings, result, wait_s, output)


@click.command(cls=CommandWithExamples)
@_with_timer
@_with_time
@click.option("--topic", help="the target; not needed with --handle")
@click.option("--value", help="the message; with --handle by default the old one")
@click.option("--header", "headers", multiple=True, help="name=value; may be repeated")
@with_output
@with_settings(needs_kafka=True)
def reschedule(
    settings: Settings,
    topic: str | None,
    value: str | None,
    headers: tuple[str, ...],
    deliver_at: str | None,
    delay: str | None,
    level: int | None,
    output: str,
    **options: Any,
) -> int:
    """Replace timers by a new one.

    Give --handle HANDLE, or --id ID with --key KEY.

    With --handle the message is read back from the timer topic, unless --topic and --value give it.
    The new timer is delivered whatever the reply is. Exit codes as for `cancel`.
    """
    from duewheel.ops import changes as sender

    wait_s = _wait_s(options)
    result = sender.reschedule(
        settings,
        _timer(options),
        wait_s,
        while_starting(settings, options),
        topic=topic,
        value=_encoded(value),
        headers=[as_header(text) for text in headers],
        deliver_at=deliver_at,
        delay=delay,
        level=level,
    )
    return answered(settings, result, wait_s, output)


def _timer(options: dict[str, Any]) -> Any:
    from duewheel.ops.changes import NamedTimer

    return NamedTimer(
        options["handle"],
        options["timer_id"],
        _encoded(options["key"]),
        options.get("partition"),
        options["timer_topic"],
    )


def _wait_s(options: dict[str, Any]) -> float | None:
    """Parses the longest wait; None: do not wait."""
    if options["no_wait"]:
        return None
    if options["wait"] is None:
        return _WAIT_S
    try:
        return parse_duration_ms(options["wait"]) / 1000
    except ValueError as error:
        raise ConfigError(f"--wait: {error}") from error


def while_starting(settings: Settings, options: dict[str, Any]) -> Callable[[], bool]:
    """Whether to wait once more: until a start on this host has ended, and one wait beyond it."""
    from duewheel.ops.reply_delay import is_starting

    if options["wait"] is not None:
        return lambda: False
    end_s, was_starting, is_announced = time.monotonic() + _START_S, is_starting(settings), False

    def goes_on() -> bool:
        nonlocal was_starting, is_announced
        before, was_starting = was_starting, is_starting(settings)
        if time.monotonic() >= end_s or not (before or was_starting):
            return False
        if not is_announced:
            text = f"the shard is starting: waiting for the reply, {_START_S:g} s at most"
            click.echo(f"duewheel: written; {text}", err=True)
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
        click.echo(f"duewheel: {_NO_REPLY_TOPIC}", err=True)
        return 0
    if result.answer is None:
        from duewheel.ops.reply_delay import reasons

        why = "".join(f"; {reason}" for reason in reasons(settings))
        click.echo(
            f"duewheel: written, but no reply in time: it takes effect without one{why}", err=True
        )
    return 0 if result.answer == "cancelled" else 1


def _encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def as_header(text: str) -> tuple[str, bytes]:
    """Parses name=value.

    Raises:
        ConfigError: it has another form.
    """
    name, given, value = text.partition("=")
    if not given:
        raise ConfigError(f"--header {text}: write it as name=value")
    return name, value.encode()
