"""The command line. Results on stdout, logs on stderr; `--output json` for programs.

Exit codes: 0 ok, 1 findings, 2 usage or configuration, 3 Kafka not reachable, 4 fenced, 5 recovery
refused, 6 locked. Heavy modules are imported by the command that needs them: the dequeue process
and `status` start without Spark, pandas and Great Expectations.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from duewheel import __version__
from duewheel.cli import messages
from duewheel.cli.options import show, show_row, with_output, with_settings
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError, DuewheelError, Locked
from duewheel.osutil import logs
from duewheel.runtime import exit_reason
from duewheel.threads import watch_libraries


def main() -> None:
    """Run the command line and end the process with its exit code."""
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


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="duewheel")
def cli() -> None:
    """Delivers Kafka messages later: never early, exactly once."""


# ---- running ------------------------------------------------------------------------------------


_TAKE_OVER = "--take-over"
_take_over = click.option(
    _TAKE_OVER,
    is_flag=True,
    help="no other instance serves the shard any more: take it over and read again from Kafka",
)


@cli.command()
@_take_over
@with_settings("run")
def run(settings: Settings, *, take_over: bool) -> int:
    """Run ingest and dequeue, and restart the one that dies."""
    from duewheel.runtime import supervisor

    return supervisor.run(settings, _own_flags(), take_over=take_over)


@cli.command()
@with_settings("run")
def standby(settings: Settings) -> int:
    """Follow the shard's owner, in another data directory, ready to take over at once.

    It takes over by itself when the owner has been silent for `shard.take_over_after`, and on
    `duewheel promote`. A directory that owns the shard already serves it, as `run` does.
    """
    from duewheel.runtime import supervisor

    return supervisor.run(settings, _own_flags(), standby=True)


@cli.command()
@with_output
@with_settings()
def promote(settings: Settings, output: str) -> None:
    """Have the standby that runs here take the shard over, now; wait until it delivers."""
    from duewheel.clock import SystemClock
    from duewheel.ops.promote import promote as promote_standby

    show(promote_standby(settings, SystemClock()), output)


def _own_flags() -> list[str]:
    """The flags of this command line, for the child processes; the supervisor adds --take-over."""
    return [word for word in sys.argv[2:] if word != _TAKE_OVER]


@cli.command()
@with_settings("ingest")
def ingest(settings: Settings) -> None:
    """Take timers from the timer topics into the wheel (Spark)."""
    from duewheel.runtime.ingest_process import run_ingest

    run_ingest(settings)


@cli.command()
@_take_over
@click.option("--standby", is_flag=True, help="follow the shard's owner first: see `standby`")
@with_settings("dequeue")
def dequeue(settings: Settings, *, take_over: bool, standby: bool) -> None:
    """Deliver what is due (no Spark, no Java)."""
    from duewheel.runtime.dequeue_process import run_dequeue

    run_dequeue(settings, take_over=take_over, standby=standby)


@cli.command()
@click.option(
    "--partitions", type=click.IntRange(1), help="of new timer topics; by default the brokers' own"
)
@click.option(
    "--replication-factor", type=int, default=-1, help="of new topics; by default the brokers' own"
)
@with_output
@with_settings()
def init(settings: Settings, partitions: int | None, replication_factor: int, output: str) -> int:
    """Create or check the topics, and begin the shard if it has no progress.

    With it you say that everything now in the timer topics has never been scheduled.
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
        click.echo("the shard begins here" if began else "the shard has progress: left as it is")
    return 0


# ---- looking ------------------------------------------------------------------------------------


@cli.command()
@click.option("--require-running", is_flag=True, help="exit 1 unless the shard is ready")
@with_output
@with_settings()
def status(settings: Settings, require_running: bool, output: str) -> int:
    """What the shard's data directory says."""
    from duewheel.ops.status import status as read_status

    found = read_status(settings)
    show(found, output)
    return 1 if require_running and not found["ready"] else 0


@cli.command()
@click.option(
    "--by", type=click.Choice(["topic", "time", "level"]), help="one line each, without totals"
)
@with_output
@with_settings()
def stats(settings: Settings, by: str | None, output: str) -> None:
    """Count what is pending, by target topic, by delay level, by the seconds until it leaves."""
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
@click.option("--topic", help="only timers that will go to this topic")
@click.option("--level", type=click.IntRange(1), help="only timers of this delay level")
@click.option("--from", "since", help="only those due from then on: epoch ms, or ISO-8601 and zone")
@click.option("--to", "until", help="only those due until then")
@click.option("--limit", type=click.IntRange(1, 100_000), default=100, help="how many at most")
@click.option("--page", help="the last page value seen: go on behind it")
@with_output
@with_settings()
def list_timers(
    settings: Settings,
    topic: str | None,
    level: int | None,
    since: str | None,
    until: str | None,
    limit: int,
    page: str | None,
    output: str,
) -> None:
    """Show pending timers, the first to leave before the others."""
    from duewheel.cli.send import parse_instant
    from duewheel.ops import stats as inspection

    rows = inspection.listed(
        settings,
        topic=topic,
        level=level,
        since=None if since is None else parse_instant(since),
        until=None if until is None else parse_instant(until),
        limit=limit,
        page=page,
    )
    for row in rows:
        show_row(row, output)


_process = click.argument("process", type=click.Choice(["ingest", "dequeue"]))


@cli.command()
@_process
@with_output
@with_settings()
def pause(settings: Settings, process: Any, output: str) -> None:
    """Have ingest take, or dequeue deliver, nothing until `resume`; restarts do not end it."""
    from duewheel.ops import stats as inspection

    show(inspection.pause(settings, process, on=True), output)


@cli.command()
@_process
@with_output
@with_settings()
def resume(settings: Settings, process: Any, output: str) -> None:
    """Let ingest or dequeue go on."""
    from duewheel.ops import stats as inspection

    show(inspection.pause(settings, process, on=False), output)


@cli.command()
@with_output
@with_settings()
def check(settings: Settings, output: str) -> int:
    """Verify everything on disk; also beside running processes."""
    from dataclasses import asdict

    from duewheel.wheel.storage.full_check import check as check_files

    try:
        report = check_files(settings.storage.data_dir, settings.wheel)
    except FileNotFoundError as error:
        raise ConfigError(f"there is no data directory {settings.storage.data_dir}") from error
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
    """Examine this host and the cluster: each finding with what mends it.

    Real transactions are tried, on a scratch topic that is deleted afterwards. Nothing of a shard's
    is touched: it may be running, or not have been begun.
    """
    from duewheel.clock import SystemClock
    from duewheel.doctor import examination

    return examination.run(settings, SystemClock(), output)


@cli.command()
@click.option("--topic", "topics", multiple=True, help="of the timer topics; by default all")
@click.option(
    "--from", "since", help="an offset, ISO-8601 with a zone, or `last`; by default an hour ago"
)
@click.option("--to", "until", help="an offset, or ISO-8601 with a zone; by default the end")
@with_output
@with_settings("audit")
def audit(
    settings: Settings, topics: tuple[str, ...], since: str | None, until: str | None, output: str
) -> int:
    """Have Great Expectations judge messages of the timer topics, and compare (Spark).

    Writes Data Docs. `--from last` goes on where audits have come to. Exit code 1: the rules that
    ingest applies do not say what the suite says, or a critical expectation across rows fails.
    """
    from duewheel.audit.run import Wanted, run_audit

    result = run_audit(settings, Wanted(topics, since, until))
    show(result if output == "json" else result["summary"], output)
    return 0 if result["ok"] else 1


@cli.command()
@click.option("--dry-run", is_flag=True, help="needed: recovery itself is part of every start")
@with_output
@with_settings()
def recover(settings: Settings, *, dry_run: bool, output: str) -> None:
    """Say what the next start would keep of the files and read again from Kafka.

    Changes nothing. Works without a data directory, and beside running processes.
    """
    from duewheel.ops import recovery_preview as recovery

    if not dry_run:
        raise ConfigError("every start recovers by itself: `recover` only knows --dry-run")
    show(recovery.dry_run(settings), output)


@cli.command()
@click.option("--dry-run", is_flag=True, help="only say what would be changed")
@click.option(
    "--accept-loss",
    "lost",
    multiple=True,
    metavar="TOPIC-PARTITION",
    help="go on without what is lost of a timer partition that is gone, recreated or cut short",
)
@click.option(
    "--skip",
    "skipped",
    multiple=True,
    metavar="TOPIC-PARTITION@OFFSET",
    help="make a dead letter of a record that ingest does not get past",
)
@with_output
@with_settings()
def reconfigure(
    settings: Settings,
    *,
    dry_run: bool,
    lost: tuple[str, ...],
    skipped: tuple[str, ...],
    output: str,
) -> None:
    """Let changed settings hold from the next message on: roll window, levels, mapping and others.

    Both processes must be stopped. What is pending stays as it is. With --accept-loss or --skip
    settings are left alone.
    """
    from duewheel.ops import reconfigure as change

    if lost and skipped:
        raise ConfigError("--accept-loss and --skip: one after the other")
    if skipped:
        show(change.skip(settings, skipped, dry_run=dry_run), output)
        return
    if lost:
        show(change.accept_loss(settings, lost, dry_run=dry_run), output)
        return
    result = change.reconfigure(settings, dry_run=dry_run)
    if output == "text" and not result["changes"]:
        click.echo("these are the settings of the shard: nothing to change")
    else:
        show(result, output)


@cli.command()
@click.option("--to", type=click.IntRange(1), required=True, help="how many shards there will be")
@click.option("--dry-run", is_flag=True, help="only say what would be done")
@with_output
@with_settings()
def reshard(settings: Settings, to: int, *, dry_run: bool, output: str) -> None:
    """Deal the timer topics' partitions to another number of shards.

    From anywhere, without a data directory. Shards that run are fenced, and end with exit code 4;
    then start as many as there are, with the new [shard] count. Killed, it goes on when it is run
    again.
    """
    from duewheel.ops.reshard import reshard as run_reshard

    result = run_reshard(settings, to, dry_run=dry_run)
    if output == "text" and result["from_shards"] == to:
        click.echo(f"there are {to} shards")
    else:
        show(result, output)


@cli.group()
def config() -> None:
    """The configuration."""


@config.command("check")
@with_output
@with_settings()
def config_check(settings: Settings, output: str) -> None:
    """Read the settings as the processes would, and print them without secrets, and all bounds."""
    from duewheel import factory
    from duewheel.ops.limits import bounds

    factory.contract(settings)
    show({**settings.redacted(), "bounds": bounds(settings)}, output)


# ---- sending, developing ------------------------------------------------------------------------


cli.add_command(messages.send)
cli.add_command(messages.cancel)
cli.add_command(messages.reschedule)


@cli.group()
def dlq() -> None:
    """Dead letters: what could not be accepted, or not be delivered."""


@dlq.command("list")
@click.option("--limit", type=click.IntRange(1), default=100, help="how many at most")
@click.option("--code", help="only those with this TIMER_ERROR_CODE")
@click.option("--from", "since", default="0", help="an offset, or ISO-8601 with a zone")
@with_output
@with_settings()
def dlq_list(settings: Settings, limit: int, code: str | None, since: str, output: str) -> None:
    """Show dead letters, oldest first within each partition."""
    from duewheel.kafka.bounded_reader import Bound
    from duewheel.ops.dlq_list import list_letters

    for row in list_letters(settings, since=Bound.parse("--from", since), code=code, limit=limit):
        if output == "json":
            click.echo(json.dumps(row))
        else:
            mark = "replayed" if row["replayed"] else "waiting"
            click.echo(
                "{partition}@{offset}  {time}  {mark}  {code}  {source}  key {key}  "
                "{value_bytes} bytes  {error}".format(mark=mark, **row)
            )


@dlq.command("replay")
@click.option("--code", help="only those with this TIMER_ERROR_CODE")
@click.option("--to-topic", help="a real topic; by default each goes where it belongs")
@click.option("--limit", type=click.IntRange(1), help="how many at most")
@click.option("--dry-run", is_flag=True, help="only count, write nothing")
@with_output
@with_settings()
def dlq_replay(
    settings: Settings,
    code: str | None,
    to_topic: str | None,
    limit: int | None,
    dry_run: bool,
    output: str,
) -> int:
    """Write the messages of dead letters again, each once, however often this is run.

    What was rejected goes back to its timer topic, what could not be delivered to its real topic.
    Exit code 1: some are dead letters again.
    """
    from duewheel.ops.dlq_replay import Selection, replay

    result = replay(settings, Selection(code, to_topic, limit), dry_run=dry_run)
    show(result, output)
    return 1 if result["refused"] else 0


@cli.group("dev-broker")
def dev_broker() -> None:
    """A single-node Kafka from its published jars, for development and tests."""


@dev_broker.command("run")
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="kept when it ends; by default a temporary one that is removed",
)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="0: a free one")
@with_output
def dev_broker_run(data_dir: Path | None, port: int, output: str) -> None:
    """Start it, say where it is as soon as it is ready, and stay until told to stop."""
    from duewheel.dev.broker import run_dev_broker

    logs.configure("cli")
    run_dev_broker(data_dir, port, output)


@cli.command()
@click.option("--timers", type=click.IntRange(1), default=3_000, help="how many")
@click.option("--over", default="20s", help="their due times are spread over this long")
@click.option("--seed", type=int, default=1, help="of delays, keys and header forms")
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="kept when it ends; by default a temporary one that is removed",
)
@click.option("--bootstrap-servers", help="your own Kafka; by default one is started")
@with_output
def demo(
    timers: int,
    over: str,
    seed: int,
    data_dir: Path | None,
    bootstrap_servers: str | None,
    output: str,
) -> int:
    """Schedule timers on a real Kafka and let an independent consumer judge the deliveries."""
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
