"""Commands that only read: `status`, `health`, `stats`, `check`, `doctor`, `audit`, `recover`."""

from __future__ import annotations

import click

from duewheel.cli.examples import CommandWithExamples
from duewheel.cli.options import one_of, show, show_row, with_output, with_settings
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError


@click.command(cls=CommandWithExamples)
@click.option("--all", "everything", is_flag=True, help="every field, and all bounds")
@with_output
@with_settings()
def status(settings: Settings, *, everything: bool, output: str) -> None:
    """Show the state of the shard, from its data directory.

    JSON has every field, and the bounds that follow from the settings. If Kafka has not reported
    for too long, text also says whether it takes connections from this host.
    """
    from duewheel.cli.status_text import status_lines
    from duewheel.clock import SystemClock
    from duewheel.ops.status import status as read_status

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


@click.command(cls=CommandWithExamples)
@click.option("--by", type=one_of("topic", "time", "level"), help="only this breakdown; no totals")
@with_output
@with_settings()
def stats(settings: Settings, by: str | None, output: str) -> None:
    """Count pending timers by target, level and seconds to wait.

    A cancelled timer counts until it would have left; `list` marks it.
    """
    from duewheel.cli.status_text import WITH_CANCELLED
    from duewheel.clock import SystemClock
    from duewheel.ops.timers import counts as inspection

    if by == "level":
        for row in inspection.levels(settings, SystemClock()):
            show_row(row, output)
        return
    found = inspection.stats(settings, SystemClock())
    if by is None:
        more = {"pending": f"{found.pending}, {WITH_CANCELLED}"} if output == "text" else {}
        show({**found.as_json(), **more}, output)
        return
    label, counts = ("topic", found.by_topic) if by == "topic" else ("within_s", found.within_s)
    for value, pending in counts.items():
        show_row({label: value, "pending": pending}, output)


@click.command(cls=CommandWithExamples)
@with_output
@with_settings()
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


@click.command(cls=CommandWithExamples)
@click.option("--topic", "topics", multiple=True, help="a timer topic; by default all")
@click.option(
    "--from", "since", help="an offset, ISO-8601 with a zone, or `last`; by default an hour ago"
)
@click.option("--to", "until", help="an offset, or ISO-8601 with a zone; by default the end")
@with_output
@with_settings("audit", needs_kafka=True)
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


@click.command(cls=CommandWithExamples)
@click.option("--dry-run", is_flag=True, help="required: recovery itself is part of every start")
@with_output
@with_settings(needs_kafka=True)
def recover(settings: Settings, *, dry_run: bool, output: str) -> None:
    """Report what the next start would keep and read again.

    Changes nothing. Works without a data directory, and beside running processes.
    """
    from duewheel.ops import recovery

    if not dry_run:
        raise ConfigError("every start recovers by itself: `recover` only has --dry-run")
    show(recovery.dry_run(settings), output)
