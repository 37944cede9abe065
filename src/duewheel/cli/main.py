"""The command line: results go to stdout, logs to stderr; `--output json` is for programs.

Exit codes: 0 ok, 1 findings, 2 usage or configuration, 3 Kafka not reachable, 4 fenced, 5 recovery
refused, 6 locked.

Invariant: each command imports its heavy modules itself. An import at the top would load Spark,
pandas and Great Expectations into the dequeue process and `status`.
"""

from __future__ import annotations

import json
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import click

from duewheel import __version__
from duewheel.cli import messages, serving, timers
from duewheel.cli.command_groups import GroupedCommands
from duewheel.cli.config_check import config
from duewheel.cli.dead_letters import dlq
from duewheel.cli.options import one_of, show, show_row, with_output, with_settings
from duewheel.cli.topics import offer_targets, topic
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError, DuewheelError, Locked
from duewheel.osutil import logs
from duewheel.runtime import exit_reason
from duewheel.threads import watch_libraries


def main() -> None:
    """Runs the command line and ends the process with its exit code."""
    watch_libraries()
    try:
        code = cli(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        code = ConfigError.exit_code
    except DuewheelError as error:
        click.echo(f"duewheel: {error}", err=True)
        exit_reason.write(str(error))
        code = error.exit_code
    except (KeyboardInterrupt, click.Abort):
        click.echo("duewheel: interrupted", err=True)
        code = 130
    except Exception as error:
        exit_reason.write(f"{type(error).__name__}: {error}")
        raise
    sys.exit(code or 0)


@click.group(cls=GroupedCommands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="duewheel")
def cli() -> None:
    """Delivers Kafka messages later: never early, exactly once."""


# ---- running ------------------------------------------------------------------------------------


_TAKE_OVER = "--take-over"
_take_over = click.option(
    _TAKE_OVER,
    is_flag=True,
    help="take the shard over and read again from Kafka; use it if no other instance serves it",
)


@cli.command()
@_take_over
@with_settings("run", extra="service")
def run(settings: Settings, *, take_over: bool) -> int:
    """Run ingest and dequeue, and restart a process that dies."""
    from duewheel.runtime import supervisor

    return supervisor.run(settings, _own_flags(), take_over=take_over)


@cli.command()
@with_settings("run", extra="service")
def standby(settings: Settings) -> int:
    """Run a standby of the shard, ready to take over at once.

    It has a data directory of its own. It takes over by itself when the owner has been silent for
    `shard.take_over_after`, and on `duewheel promote`. A directory that owns the shard already
    serves it, as `run` does.
    """
    from duewheel.runtime import supervisor

    return supervisor.run(settings, _own_flags(), standby=True)


@cli.command()
@with_output
@with_settings()
def promote(settings: Settings, output: str) -> None:
    """Make this directory's standby take over, and wait for that."""
    from duewheel.clock import SystemClock
    from duewheel.ops.promote import promote as promote_standby

    show(promote_standby(settings, SystemClock()), output)


def _own_flags() -> list[str]:
    """The flags of this command line, for the child processes; the supervisor adds --take-over."""
    return [word for word in sys.argv[2:] if word != _TAKE_OVER]


@cli.command()
@with_settings("ingest", extra="service")
def ingest(settings: Settings) -> None:
    """Run only ingest: read timer topics into the wheel (Spark)."""
    from duewheel.runtime.ingest_process import run_ingest

    run_ingest(settings)


@cli.command()
@_take_over
@click.option("--standby", is_flag=True, help="start as a standby of the shard: see `standby`")
@with_settings("dequeue")
def dequeue(settings: Settings, *, take_over: bool, standby: bool) -> None:
    """Run only dequeue: deliver due timers (no Spark, no Java)."""
    from duewheel.runtime.dequeue_process import run_dequeue

    run_dequeue(settings, take_over=take_over, standby=standby)


@cli.command()
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
    from dataclasses import asdict

    from duewheel.kafka.admin import KafkaAdmin
    from duewheel.ops.status import status as read_status
    from duewheel.runtime.dequeue_process import init_progress
    from duewheel.runtime.readiness import ALIVE

    with KafkaAdmin(settings.kafka.client_options("admin")) as admin:
        findings = admin.init_topics(
            settings, partitions=partitions, replication_factor=replication_factor
        )
        interactive = output == "text" and sys.stdin.isatty()
        findings += offer_targets(settings, admin, create=create_targets, interactive=interactive)
    for finding in findings:
        line = asdict(finding)
        if output == "json":
            click.echo(json.dumps(line))
        else:
            click.echo("  ".join(str(value) for value in line.values() if value != ""))
    if any(finding.state == "differs" for finding in findings):
        return 1
    try:
        began = init_progress(settings)
    except Locked:
        if read_status(settings)["dequeue"]["state"] not in ALIVE:
            raise
        began = False
    if output == "text":
        click.echo("the shard has begun" if began else "the shard has progress: nothing is changed")
        for topic, opened in settings.timer.open_targets.items():
            names = ", ".join(opened) or "no target: name some in timer.targets or timer.mapping"
            click.echo(f"{topic} is open for {names}")
    return 0


# ---- inspecting ---------------------------------------------------------------------------------


@cli.command()
@click.option("--all", "everything", is_flag=True, help="every field, and all bounds")
@with_output
@with_settings()
def status(settings: Settings, *, everything: bool, output: str) -> None:
    """Show the state of the shard, from its data directory.

    JSON has every field, and the bounds that follow from the settings.
    """
    from duewheel.cli.status_text import status_lines
    from duewheel.clock import SystemClock
    from duewheel.ops.status import status as read_status

    found = read_status(settings)
    if everything or output == "json":
        show(found, output)
    else:
        for line in status_lines(found, SystemClock().now_ms()):
            click.echo(line)


@cli.command()
@with_settings()
def health(settings: Settings) -> int:
    """Show whether the shard is ready: for health checks.

    Prints `ready`, or a line for each reason why not, with exit code 1. Without options it costs
    a tenth of the processor time of any other command: settings come from file and environment,
    and only those that it needs are read.
    """
    from duewheel.runtime.health import report
    from duewheel.runtime.readiness import ReadyBounds

    return report(settings.storage.data_dir, ReadyBounds.of(settings))


@cli.command()
@click.option("--by", type=one_of("topic", "time", "level"), help="only this breakdown; no totals")
@with_output
@with_settings()
def stats(settings: Settings, by: str | None, output: str) -> None:
    """Count pending timers by target, level and seconds to wait."""
    from duewheel.clock import SystemClock
    from duewheel.ops import stats as inspection

    if by == "level":
        for row in inspection.levels(settings, SystemClock()):
            show_row(row, output)
        return
    found = inspection.stats(settings, SystemClock())
    if by is None:
        show(found, output)
        return
    label, counts = ("topic", "by_topic") if by == "topic" else ("within_s", "within_s")
    for value, pending in found[counts].items():
        show_row({label: value, "pending": pending}, output)


@cli.command("list")
@click.option("--topic", help="only timers with this target topic")
@click.option("--id", "timer_id", help="only timers with this id, in any partition")
@click.option("--key", help="only timers with this key; reads messages: seconds a million")
@click.option("--level", type=click.IntRange(1), help="only timers of this delay level")
@click.option(
    "--from", "since", help="only timers that leave from then on: epoch ms, or ISO-8601 and zone"
)
@click.option("--to", "until", help="only timers that leave until then")
@click.option("--limit", type=click.IntRange(1, 100_000), default=100, help="how many at most")
@click.option("--page", help="the last `page` value of the previous list: continue behind it")
@with_output
@with_settings()
def list_timers(
    settings: Settings,
    topic: str | None,
    timer_id: str | None,
    key: str | None,
    level: int | None,
    since: str | None,
    until: str | None,
    limit: int,
    page: str | None,
    output: str,
) -> None:
    """List pending timers in the order in which they leave.

    A cancelled timer is listed until then, with `cancelled`. If more timers follow, a line on
    stderr says how to list them. JSON has times in epoch milliseconds.
    """
    from duewheel.cli.timer_text import timer_line
    from duewheel.clock import SystemClock
    from duewheel.config.instants import parse_instant
    from duewheel.ops import stats as inspection

    wanted = inspection.selection(
        settings,
        topic=topic,
        timer_id=timer_id,
        key=None if key is None else key.encode(),
        level=level,
        since=None if since is None else parse_instant(since),
        until=None if until is None else parse_instant(until),
        page=page,
    )
    rows = inspection.listed(settings, wanted, limit + 1)
    now_ms, last = SystemClock().now_ms(), ""
    for row in islice(rows, limit):
        last = row["page"]
        click.echo(json.dumps(row) if output == "json" else timer_line(row, now_ms))
    if not last:
        click.echo("duewheel: no pending timers", err=True)
    if next(rows, None) is not None:
        click.echo(f"duewheel: more timers follow: --page {last}, or --limit", err=True)


_process = click.argument("process", type=one_of("ingest", "dequeue"))


@cli.command()
@_process
@with_output
@with_settings()
def pause(settings: Settings, process: Any, output: str) -> None:
    """Pause ingest or dequeue until `resume`, over restarts, too."""
    from duewheel.ops import stats as inspection

    show(inspection.pause(settings, process, on=True), output)


@cli.command()
@_process
@with_output
@with_settings()
def resume(settings: Settings, process: Any, output: str) -> None:
    """End the pause of ingest or dequeue."""
    from duewheel.ops import stats as inspection

    show(inspection.pause(settings, process, on=False), output)


@cli.command()
@with_output
@with_settings()
def check(settings: Settings, output: str) -> int:
    """Verify all files on disk. The processes may run meanwhile."""
    from dataclasses import asdict

    from duewheel.wheel.storage.full_check import check as check_files

    try:
        report = check_files(settings.storage.data_dir, settings.wheel)
    except FileNotFoundError as error:
        raise settings.no_data_dir() from error
    findings = [asdict(finding) for finding in report.findings]
    if output == "json":
        result = {"ok": report.ok, "records": report.records, "findings": findings}
        click.echo(json.dumps(result))
    else:
        for finding in findings:
            click.echo("{file} at byte {offset}: {code}: {detail}".format(**finding))
        click.echo(f"{report.records} records, {len(findings)} findings")
    return 0 if report.ok else 1


@cli.command()
@with_output
@with_settings()
def doctor(settings: Settings, output: str) -> int:
    """Examine host and cluster; print each finding with its remedy.

    The trial of real transactions uses a scratch topic, which is deleted afterwards. Nothing of a
    shard changes: it may be running, or not exist yet.
    """
    from duewheel.clock import SystemClock
    from duewheel.doctor import examination

    return examination.run(settings, SystemClock(), output)


@cli.command()
@click.option("--topic", "topics", multiple=True, help="a timer topic; by default all")
@click.option(
    "--from", "since", help="an offset, ISO-8601 with a zone, or `last`; by default an hour ago"
)
@click.option("--to", "until", help="an offset, or ISO-8601 with a zone; by default the end")
@with_output
@with_settings("audit", needs_kafka=True, extra="audit")
def audit(
    settings: Settings, topics: tuple[str, ...], since: str | None, until: str | None, output: str
) -> int:
    """Compare ingest's rules with Great Expectations.

    Writes Data Docs. `--from last` continues at the end of the last audit. Exit code 1: the rules
    of ingest disagree with the suite, or a critical expectation across rows fails.
    """
    from duewheel.audit.run import Wanted, run_audit

    result = run_audit(settings, Wanted(topics, since, until))
    show(result if output == "json" else result["summary"], output)
    return 0 if result["ok"] else 1


@cli.command()
@click.option("--dry-run", is_flag=True, help="required: recovery itself is part of every start")
@with_output
@with_settings(needs_kafka=True)
def recover(settings: Settings, *, dry_run: bool, output: str) -> None:
    """Report what the next start would keep and read again.

    Changes nothing. Works without a data directory, and beside running processes.
    """
    from duewheel.ops import recovery_preview as recovery

    if not dry_run:
        raise ConfigError("every start recovers by itself: `recover` only has --dry-run")
    show(recovery.dry_run(settings), output)


@cli.command()
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

    Needed for roll window, levels, mapping and others. Both processes must be stopped. Pending
    timers stay as they are. With --accept-loss or --skip no setting changes.
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
    if output == "text" and not result["changes"] and not rotate_key:
        click.echo("the shard has these settings already: nothing to change")
    else:
        show(result, output)


@cli.command()
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
    if output == "text" and result["from_shards"] == to:
        click.echo(f"there are {to} shards")
    else:
        show(result, output)


cli.add_command(config)


# ---- sending, developing ------------------------------------------------------------------------


cli.add_command(timers.show_timers)
cli.add_command(serving.serve)
cli.add_command(messages.send)
cli.add_command(messages.cancel)
cli.add_command(messages.reschedule)
cli.add_command(dlq)
cli.add_command(topic)


@cli.group("dev-broker")
def dev_broker() -> None:
    """Run a single-node Kafka for development and tests."""


@dev_broker.command("run")
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="stays afterwards; by default a temporary one, which is removed",
)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="0: a free one")
@with_output
def dev_broker_run(data_dir: Path | None, port: int, output: str) -> None:
    """Start the broker, print its address once it is ready, and run until a signal stops it."""
    from duewheel.dev.broker import run_dev_broker

    logs.configure("cli")
    run_dev_broker(data_dir, port, output)


@cli.command()
@click.option("--timers", type=click.IntRange(1), default=3_000, help="how many")
@click.option("--over", default="20s", help="the span of the due times")
@click.option("--seed", type=int, default=1, help="of delays, keys and header forms")
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="stays afterwards; by default a temporary one, which is removed",
)
@click.option("--bootstrap-servers", help="an existing Kafka; by default the demo starts one")
@with_output
def demo(
    timers: int,
    over: str,
    seed: int,
    data_dir: Path | None,
    bootstrap_servers: str | None,
    output: str,
) -> int:
    """Schedule timers on a real Kafka, and check each delivery."""
    from duewheel.config.durations import parse_duration_ms
    from duewheel.dev.demo import Demo

    logs.configure("cli", "warning")
    try:
        over_ms = parse_duration_ms(over)
    except ValueError as error:
        raise ConfigError(f"--over: {error}") from error
    verdict = Demo(timers, over_ms, seed, data_dir, bootstrap_servers).run()
    if output == "json":
        click.echo(json.dumps(verdict))
    return 0 if verdict["ok"] else 1
