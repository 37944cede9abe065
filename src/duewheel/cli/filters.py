"""Options that select pending timers by their properties."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from duewheel.cli.options import Command, show
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError

if TYPE_CHECKING:  # it imports numpy and pyarrow
    from duewheel.ops.listed_timers import Selection

AT_MOST = 1_000


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
        click.option("--to", "until", help="those that leave until then"),
        click.option("--from", "since", help="those that leave from then on: epoch ms, ISO-8601"),
        click.option("--level", type=click.IntRange(1), help="those of this delay level"),
        click.option("--topic", help="with --matching: those with this target"),
        click.option(
            "--matching",
            is_flag=True,
            help="cancel all pending timers that the other options select, --id and --key, too",
        ),
    ):
        command = option(command)
    return command


def selected(settings: Settings, options: Mapping[str, Any], page: str | None = None) -> Selection:
    """Translates the options of `list` and of `cancel --matching`.

    Raises:
        ConfigError: an instant does not parse.
    """
    from duewheel.config.instants import parse_instant
    from duewheel.ops.listed_timers import selection

    since, until, key = options["since"], options["until"], options["key"]
    return selection(
        settings,
        topic=options["topic"],
        level=options["level"],
        timer_id=options["timer_id"],
        key=None if key is None else key.encode(),
        since=None if since is None else parse_instant(since),
        until=None if until is None else parse_instant(until),
        page=page,
    )


def cancel_matching(
    settings: Settings, options: Mapping[str, Any], wait_s: float | None, output: str
) -> int:
    """Runs `cancel --matching`; returns its exit code."""
    from duewheel.ops.pending_changes import Unchangeable, cancel_all

    if any(options[name] is not None for name in ("handle", "partition", "timer_topic")):
        raise ConfigError("--matching goes with --topic, --id, --key, --level, --from and --to")
    wanted = selected(settings, options)
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


def require_one(options: Mapping[str, Any]) -> None:
    """Refuses options of a bulk cancel without --matching.

    Raises:
        ConfigError: names one of them.
    """
    for name, flag in (("topic", "--topic"), ("level", "--level"), ("since", "--from")):
        if options[name] is not None:
            raise ConfigError(f"{flag} selects several timers: give --matching, too")
    if options["until"] is not None or options["dry_run"]:
        raise ConfigError("--to and --dry-run go with --matching")
