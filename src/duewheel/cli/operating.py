"""Commands that change a shard: `init`, `promote`, `pause`, `resume`, `reconfigure`, `reshard`."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from duewheel.cli.examples import CommandWithExamples
from duewheel.cli.options import one_of, show, with_output, with_settings
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError


@click.command(cls=CommandWithExamples)
@click.option(
    "--partitions",
    type=click.IntRange(1),
    help="of new timer topics; by default the brokers' setting",
)
@click.option(
    "--replication-factor",
    type=int,
    default=-1,
    help="of new topics; by default the brokers' setting",
)
@click.option(
    "--create-targets", is_flag=True, help="create the missing targets that the settings name"
)
@with_output
@with_settings(needs_kafka=True)
def init(
    settings: Settings,
    *,
    partitions: int | None,
    replication_factor: int,
    create_targets: bool,
    output: str,
) -> int:
    """Create or check duewheel's topics, and begin a new shard.

    A new shard schedules every message that is in the timer topics: none may have been scheduled
    before. On a terminal it offers to create the missing targets that the settings name.
    """
    from duewheel.ops.topics.creation import begin_shard, init_topics

    def is_wanted(target: str) -> bool:
        question = f"The target {target} does not exist. Create it?"
        asks = output == "text" and sys.stdin.isatty()
        return create_targets or (asks and click.confirm(question, default=True, err=True))

    differs = False
    for topic in init_topics(settings, partitions, replication_factor, is_wanted):
        line = topic.as_json()
        differs |= topic.state == "differs"
        if output == "json":
            click.echo(json.dumps(line))
        else:
            click.echo("  ".join(str(value) for value in line.values() if value != ""))
    if differs:
        return 1
    began = begin_shard(settings)
    if output == "text":
        click.echo("the shard has begun" if began else "the shard has progress: nothing is changed")
        for name, opened in settings.timer.open_targets.items():
            names = ", ".join(opened) or "no target: name some in timer.targets or timer.mapping"
            click.echo(f"{name} is open for {names}")
    return 0


@click.command(cls=CommandWithExamples)
@with_output
@with_settings()
def promote(settings: Settings, output: str) -> None:
    """Make this directory's standby take over, and wait for that."""
    from duewheel.clock import SystemClock
    from duewheel.ops.promote import promote as promote_standby

    show(promote_standby(settings, SystemClock()), output)


_process = click.argument("process", type=one_of("ingest", "dequeue"))


@click.command(cls=CommandWithExamples)
@_process
@with_output
@with_settings()
def pause(settings: Settings, process: Any, output: str) -> None:
    """Pause ingest or dequeue until `resume`, over restarts, too."""
    from duewheel.ops.pause import set_paused

    show(set_paused(settings, process, on=True), output)


@click.command(cls=CommandWithExamples)
@_process
@with_output
@with_settings()
def resume(settings: Settings, process: Any, output: str) -> None:
    """End the pause of ingest or dequeue."""
    from duewheel.ops.pause import set_paused

    show(set_paused(settings, process, on=False), output)


@click.command(cls=CommandWithExamples)
@click.option("--dry-run", is_flag=True, help="only report the changes")
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
@with_output
@with_settings(needs_kafka=True)
def reconfigure(
    settings: Settings,
    *,
    dry_run: bool,
    lost: tuple[str, ...],
    skipped: tuple[str, ...],
    rotate_key: bool,
    output: str,
) -> None:
    """Apply changed settings from the next message on.

    Needed for targets, mapping, levels, roll window, topics of replies and receipts, and others. A
    running shard takes them while it runs. Pending timers stay as they are. With --accept-loss or
    --skip no setting changes; for these and --rotate-key both processes must be stopped.
    """
    from duewheel.ops import reconfigure as change

    if bool(lost) + bool(skipped) + rotate_key > 1:
        raise ConfigError("--accept-loss, --skip and --rotate-key: use one after the other")
    if skipped:
        show(change.skip(settings, skipped, dry_run=dry_run), output)
        return
    if lost:
        show(change.accept_loss(settings, lost, dry_run=dry_run), output)
        return
    result = change.reconfigure(settings, dry_run=dry_run, rotate_key=rotate_key)
    if output == "text" and not result.changes and not rotate_key:
        click.echo("the shard has these settings already: nothing to change")
    else:
        show(result, output)


@click.command(cls=CommandWithExamples)
@click.option("--to", type=click.IntRange(1), required=True, help="the new number of shards")
@click.option("--dry-run", is_flag=True, help="only report the new assignment")
@with_output
@with_settings(needs_kafka=True)
def reshard(settings: Settings, to: int, *, dry_run: bool, output: str) -> None:
    """Reassign partitions to another number of shards.

    Runs on any host, without a data directory. Running shards are fenced, and end with exit code 4;
    start the new number of shards afterwards, with the new [shard] count. After a kill, run it
    again: it continues.
    """
    from duewheel.ops.reshard import reshard as run_reshard

    result = run_reshard(settings, to, dry_run=dry_run)
    if output == "text" and result.from_shards == to:
        click.echo(f"there are {to} shards")
    else:
        show(result, output)
