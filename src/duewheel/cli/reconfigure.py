"""The commands `reconfigure` and `config check`."""

from __future__ import annotations

import click

from duewheel.audit.topic_suites import TopicSuites
from duewheel.cli.command_help import CommandGroup, CommandWithExamples
from duewheel.cli.options import with_dry_run, with_result
from duewheel.cli.output import Printer, with_sources, with_units
from duewheel.config.differences import differing
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError
from duewheel.ops.changes.acceptance import require_contract
from duewheel.ops.reconfigure import accept_loss, apply_settings, skip
from duewheel.ops.shard.bounds_in_force import bounds_in_force


@click.command(cls=CommandWithExamples)
@with_dry_run
@click.option(
    "--accept-loss",
    "lost",
    multiple=True,
    metavar="TOPIC-PARTITION",
    help="continue without the lost records of a deleted, recreated or truncated timer partition",
)
@click.option(
    "--skip",
    "skipped",
    multiple=True,
    metavar="TOPIC-PARTITION@OFFSET",
    help="make a dead letter of a record on which ingest fails",
)
@click.option(
    "--rotate-key", is_flag=True, help="draw a new key for the copies that duewheel writes"
)
@with_result(needs_kafka=True)
def reconfigure(
    settings: Settings,
    *,
    dry_run: bool,
    lost: tuple[str, ...],
    skipped: tuple[str, ...],
    rotate_key: bool,
    output: Printer,
) -> None:
    """Apply changed settings from the next message on.

    Needed for settings that decide about a message, such as targets and levels. A running shard
    takes them. They do not change pending timers, but targets are checked again when a timer rolls
    or is parked. With --accept-loss or --skip no setting changes; for these and --rotate-key both
    processes must be stopped.
    """
    if bool(lost) + bool(skipped) + rotate_key > 1:
        raise ConfigError("--accept-loss, --skip and --rotate-key: use one after the other")
    if skipped:
        output.show(skip(settings, skipped, dry_run=dry_run))
        return
    if lost:
        output.show(accept_loss(settings, lost, dry_run=dry_run))
        return
    result = apply_settings(settings, dry_run=dry_run, rotate_key=rotate_key)
    nothing = ["the shard has these settings already: nothing to change"]
    output.show(result, None if result.changes or rotate_key else nothing)


@click.group(cls=CommandGroup)
def config() -> None:
    """Check the configuration."""


@config.command("check")
@click.option("--all", "everything", is_flag=True, help="also the defaults, and all bounds")
@with_result()
def config_check(settings: Settings, *, everything: bool, output: Printer) -> None:
    """Read the settings as the processes do; print those that differ from the defaults,
    and the targets that each timer topic is open for.

    Secrets are shown as stars. JSON has all that --all shows.
    """
    require_contract(settings)
    settings.kafka.client_options("admin")  # reads the files that it names
    TopicSuites(settings.by_topic("suite"))  # likewise
    opened, differs = {"open_targets": settings.timer.open_targets}, differing(settings)
    bounds = {name: each.as_json() for name, each in bounds_in_force(settings).items()}
    sections = settings.redacted()
    if output.is_json:
        output.show({"differs": differs, **opened, **sections, "bounds": bounds})
        return
    output.show({**with_sources(differs), **opened})
    if everything:
        output.line()
        named = {name: with_units(section) for name, section in sections.items()}
        output.show({**named, "bounds": with_sources(bounds)})
    else:
        output.line("no contradictions; the other settings have their defaults: --all shows them")
