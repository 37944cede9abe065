"""Options that select pending timers by their properties."""

from __future__ import annotations

import click

from duewheel.api.requests import TimerFilter
from duewheel.cli.options import Command, show
from duewheel.cli.request_options import Options, request_of, with_fields
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError

AT_MOST = 1_000
_TOPIC = "with --matching: those with this target"


def with_filter(command: Command) -> Command:
    """Adds the options of a bulk cancel."""
    for option in (
        click.option("--dry-run", is_flag=True, help="with --matching: only count"),
        click.option(
            "--at-most",
            type=click.IntRange(1, 100_000),
            default=AT_MOST,
            help="if more timers match, none is cancelled",
        ),
        with_fields(TimerFilter, "topic", "level", "since", "until", topic=_TOPIC),
        click.option(
            "--matching",
            is_flag=True,
            help="cancel all pending timers that the other options select, --id and --key, too",
        ),
    ):
        command = option(command)
    return command


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
    show(result, output, without=() if output == "json" else ("sample",))
    awaits = settings.timer.reply_topic is not None and wait_s is not None and not dry_run
    cancelled = result.answers.get("cancelled", 0)
    return 1 if awaits and cancelled < result.written else 0


def require_one(options: Options) -> None:
    """Refuses options of a bulk cancel without --matching.

    Raises:
        ConfigError: names one of them.
    """
    for name, flag in (("topic", "--topic"), ("level", "--level"), ("since", "--from")):
        if options[name] is not None:
            raise ConfigError(f"{flag} selects several timers: give --matching, too")
    if options["until"] is not None or options["dry_run"]:
        raise ConfigError("--to and --dry-run go with --matching")
