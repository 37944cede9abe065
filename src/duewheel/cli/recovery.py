"""The command `recover`."""

from __future__ import annotations

from typing import Any

import click

from duewheel.cli.command_help import CommandWithExamples
from duewheel.cli.options import with_result
from duewheel.cli.output import Printer, say
from duewheel.clock import SystemClock
from duewheel.config.instants import epoch_ms, parse_instant
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError
from duewheel.ops.recovery import from_mirror as mirror
from duewheel.ops.recovery.preview import preview_start
from duewheel.osutil.terminal import bar_of_count


class _InstantOfTopic(click.ParamType[tuple[str, int]]):
    """The type of TOPIC=INSTANT: the topic, and the instant in epoch ms."""

    name = "topic=instant"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[str, int]:
        topic, _, instant = value.partition("=")
        if not (topic and instant):
            self.fail(f"{value}: write it as TOPIC=INSTANT", param, ctx)
        try:
            return topic, epoch_ms(parse_instant(instant))
        except ConfigError as error:
            self.fail(f"{value}: {error}", param, ctx)


@click.command(cls=CommandWithExamples)
@click.option("--dry-run", is_flag=True, help="required without --from-mirror")
@click.option("--from-mirror", metavar="PREFIX", help="begins the names of the copied topics")
@click.option(
    "--delivered-before",
    type=_InstantOfTopic(),
    multiple=True,
    metavar="TOPIC=INSTANT",
    help="this topic's timers due before then count as delivered, if no receipt decides",
)
@with_result(needs_kafka=True)
def recover(
    settings: Settings,
    *,
    dry_run: bool,
    from_mirror: str | None,
    delivered_before: tuple[tuple[str, int], ...],
    output: Printer,
) -> int:
    """Report which files the next start would keep, and which messages it would read again.

    Changes nothing. Works without a data directory, and beside running processes.

    --from-mirror writes a lost cluster's timers without a receipt, exactly once, from the copies of
    its topics. Exit code 1 after success: some are refused, unclear, or were copied too late.
    """
    if from_mirror is None:
        if delivered_before:
            raise ConfigError("--delivered-before needs --from-mirror")
        if not dry_run:
            text = "every start recovers by itself, and --dry-run shows how"
            raise ConfigError(f"{text}; a lost cluster needs --from-mirror")
        with bar_of_count("offsets") as advanced:
            preview = preview_start(settings, advanced)
        output.show(preview)
        return 0
    before_ms = dict(delivered_before)
    if len(before_ms) < len(delivered_before):
        raise ConfigError("--delivered-before: give one instant for each timer topic")
    if unknown := sorted(topic for topic in before_ms if topic not in settings.timer_topics):
        raise ConfigError(f"--delivered-before: {unknown[0]} is no timer topic")
    with bar_of_count("timers") as advanced:
        result = mirror.recover(
            settings, SystemClock(), from_mirror, before_ms, dry_run=dry_run, advanced=advanced
        )
    output.show(result)
    if result.left_out.get("recurring"):
        say("schedules are left out: set them again, with `duewheel schedule set` or `apply`")
    unclear = result.unclear_cancels or result.unclear_windows
    return 1 if result.refused or result.not_taken or unclear else 0
