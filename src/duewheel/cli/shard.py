"""Commands for a shard as a whole: `status`, `health`, `pause`, `resume`, `promote`, `check`,
`doctor`, `audit`, `recover` and `reshard`.
"""

from __future__ import annotations

from typing import Any

import click

from duewheel.cli.examples import CommandWithExamples
from duewheel.cli.options import one_of, with_result, with_settings
from duewheel.cli.output import show
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError


@click.command(cls=CommandWithExamples)
@click.option("--all", "everything", is_flag=True, help="every field, and all bounds")
@with_result()
def status(settings: Settings, *, everything: bool, output: str) -> None:
    """Show the state of the shard, from its data directory.

    JSON has every field, and the bounds that follow from the settings. If Kafka has not reported
    for too long, text also says whether it takes connections from this host.
    """
    from duewheel.cli.status_text import status_lines
    from duewheel.clock import SystemClock
    from duewheel.ops.shard.status import status as read_status

    found = read_status(settings)
    if everything or output == "json":
        show(found, output)
    else:
        unreachable = ""
        if "ends_unknown" in found.not_ready:
            from duewheel.ops.connection import why_unreachable

            unreachable = why_unreachable(settings)
        for line in status_lines(found, SystemClock().now_ms(), unreachable):
            click.echo(line)


@click.command(cls=CommandWithExamples)
@with_settings()
def health(settings: Settings) -> int:
    """Show whether the shard is ready: for health checks.

    Prints `ready`, or a line for each reason why not, with exit code 1. Without options it costs
    a tenth of the processor time of any other command: settings come from file and environment,
    and only those that it needs are read.
    """
    from duewheel.runtime.health import report_of

    return report_of(settings)


_process = click.argument("process", type=one_of("ingest", "dequeue"), required=False)
_target = click.option("--target", help="in its place: a target, in all shards")
_timer_topic = click.option("--timer-topic", help="in its place: a timer topic, in all shards")
_tag = click.option("--tag", help="in its place: timers with this TIMER_TAG, in all shards")


@click.command(cls=CommandWithExamples)
@_process
@_target
@_timer_topic
@_tag
@click.option("--for", "duration", help="of a topic or tag: until it resumes, as 2h or 30m")
@click.option("--note", default="", show_default=False, help="of a topic or tag: why")
@with_result()
def pause(settings: Settings, output: str, **given: Any) -> None:
    """Pause ingest or dequeue, or the deliveries of one topic or tag.

    Ingest and dequeue are paused on this host until `resume`, over restarts, too. The pause of a
    topic or tag is in Kafka: it holds in all shards, also after a loss of the disk, until `resume`
    or for the time of --for. The due timers then wait in their timer topics.
    """
    from duewheel.api.requests import SelectivePause
    from duewheel.clock import SystemClock
    from duewheel.ops.shard.pause import set_paused
    from duewheel.ops.shard.selective_pause import pause_selection

    kind, name = _paused_part(given)
    if kind != "process":
        request = SelectivePause.of({"duration": given["duration"], "note": given["note"]})
        show(pause_selection(settings, kind, name, request, SystemClock()), output)
    elif given["duration"] or given["note"]:
        raise ConfigError("--for and --note are for --target, --timer-topic and --tag")
    else:
        show(set_paused(settings, name, on=True), output)


@click.command(cls=CommandWithExamples)
@_process
@_target
@_timer_topic
@_tag
@with_result()
def resume(settings: Settings, output: str, **given: Any) -> None:
    """End a pause.

    Timers that a paused topic has parked leave when they return: within five minutes.
    """
    from duewheel.ops.shard.pause import set_paused
    from duewheel.ops.shard.selective_pause import resume_selection

    kind, name = _paused_part(given)
    if kind == "process":
        show(set_paused(settings, name, on=False), output)
    else:
        show(resume_selection(settings, kind, name), output)


def _paused_part(given: dict[str, Any]) -> tuple[Any, Any]:
    """Returns the kind and the name of the part to pause or resume."""
    kinds = {"process": "process", "target": "target", "timer_topic": "timer-topic", "tag": "tag"}
    named = [(kind, given[option]) for option, kind in kinds.items() if given[option]]
    if len(named) != 1:
        raise ConfigError("name one of: ingest, dequeue, --target, --timer-topic, --tag")
    return named[0]


@click.command(cls=CommandWithExamples)
@with_result()
def promote(settings: Settings, output: str) -> None:
    """Make this directory's standby take over, and wait for that."""
    from duewheel.clock import SystemClock
    from duewheel.ops.shard.promote import promote as promote_standby

    show(promote_standby(settings, SystemClock()), output)


@click.command(cls=CommandWithExamples)
@with_result()
def check(settings: Settings, output: str) -> int:
    """Verify all files on disk. The processes may run meanwhile."""
    from duewheel.ops.files import check as check_files

    checked = check_files(settings)
    if output == "json":
        show(checked, output)
    else:
        for each in checked.findings:
            click.echo(each.text)
        click.echo(f"{checked.records} records, {len(checked.findings)} findings")
    return 0 if checked.ok else 1


@click.command(cls=CommandWithExamples)
@with_result()
def doctor(settings: Settings, output: str) -> int:
    """Examine host and cluster; print each finding with its remedy.

    The trial of real transactions uses a scratch topic, which is deleted afterwards. Nothing of a
    shard changes: it may be running, or not exist yet.
    """
    from duewheel.cli.examination import report
    from duewheel.clock import SystemClock
    from duewheel.doctor import examination

    return report(examination.run(settings, SystemClock()), output)


@click.command(cls=CommandWithExamples)
@click.option("--topic", "topics", multiple=True, help="a timer topic; by default all")
@click.option(
    "--from", "since", help="an offset, ISO-8601 with a zone, or `last`; by default an hour ago"
)
@click.option("--to", "until", help="an offset, or ISO-8601 with a zone; by default the end")
@with_result("audit", needs_kafka=True)
def audit(
    settings: Settings, topics: tuple[str, ...], since: str | None, until: str | None, output: str
) -> int:
    """Compare ingest's rules with Great Expectations.

    Writes Data Docs. `--from last` continues at the end of the last audit. Exit code 1: the rules
    of ingest disagree with the suite, or a critical expectation across rows fails.
    """
    from duewheel.audit.run import Wanted, run_audit

    result = run_audit(settings, Wanted(topics, since, until))
    show(result if output == "json" else result.summary, output)
    return 0 if result.ok else 1


@click.command(cls=CommandWithExamples)
@click.option("--dry-run", is_flag=True, help="required: recovery itself is part of every start")
@with_result(needs_kafka=True)
def recover(settings: Settings, *, dry_run: bool, output: str) -> None:
    """Report which files the next start would keep, and which messages it would read again.

    Changes nothing. Works without a data directory, and beside running processes.
    """
    from duewheel.ops import recovery

    if not dry_run:
        raise ConfigError("every start recovers by itself: `recover` only has --dry-run")
    show(recovery.dry_run(settings), output)


@click.command(cls=CommandWithExamples)
@click.option("--to", type=click.IntRange(1), required=True, help="the new number of shards")
@click.option("--dry-run", is_flag=True, help="only report the new assignment")
@with_result(needs_kafka=True)
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
