"""Commands for a shard as a whole: `status`, `health`, `pause`, `resume`, `promote`, `check`,
`doctor`, `audit` and `reshard`.
"""

from __future__ import annotations

import functools
from typing import Any

import click

from duewheel.api.requests import SelectivePause
from duewheel.api.shard import PausedKind, ProcessName
from duewheel.cli.command_help import CommandWithExamples
from duewheel.cli.options import Command, one_of, with_dry_run, with_result, with_settings
from duewheel.cli.output import Printer, labelled, say, with_sources
from duewheel.cli.request_options import with_fields, with_request
from duewheel.clock import SystemClock
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError

Part = ProcessName | tuple[PausedKind, str]


@click.command(cls=CommandWithExamples)
@click.option("--all", "everything", is_flag=True, help="every field, and all bounds")
@with_result()
def status(settings: Settings, *, everything: bool, output: Printer) -> None:
    """Show the state of the shard, from its data directory.

    JSON has all that --all shows.
    """
    from duewheel.cli.status_text import status_lines
    from duewheel.ops.shard.status import read_status

    clock = SystemClock()
    found = read_status(settings, clock)
    unreachable = ""
    if "ends_unknown" in found.not_ready and not (everything or output.is_json):
        from duewheel.ops.connection import why_unreachable

        unreachable = why_unreachable(settings)
    if everything:
        bounds = with_sources({name: each.as_json() for name, each in found.bounds.items()})
        output.show(found, {**labelled(found), "bounds": bounds})
    else:
        output.show(found, status_lines(found, clock.now_ms(), unreachable))


@click.command(cls=CommandWithExamples)
@with_settings()
def health(settings: Settings) -> int:
    """Show whether the shard is ready: for health checks.

    Prints `ready`, or a line for each reason why not, with exit code 1. With options it costs ten
    times the processor time.
    """
    from duewheel.runtime.health_command import report_of

    return report_of(settings)


def _with_part(command: Command) -> Command:
    """Adds the names of a process, or of a topic or tag, as the argument `part`: a process, or the
    kind and the name.
    """

    @click.argument("process", type=one_of("ingest", "dequeue"), required=False)
    @click.option("--target", help="instead of a process: a target, in all shards")
    @click.option("--timer-topic", help="instead of a process: a timer topic, in all shards")
    @click.option("--tag", help="instead of a process: timers with this tag")
    @functools.wraps(command)
    def naming(
        process: str | None,
        target: str | None,
        timer_topic: str | None,
        tag: str | None,
        **others: Any,
    ) -> Any:
        kinds = {"target": target, "timer-topic": timer_topic, "tag": tag}
        given = [(kind, name) for kind, name in kinds.items() if name is not None]
        parts = [*given, *([process] if process else [])]
        if len(parts) != 1 or "" in kinds.values():
            raise ConfigError("name one of: ingest, dequeue, --target, --timer-topic, --tag")
        return command(part=parts[0], **others)

    return naming


@click.command(cls=CommandWithExamples)
@_with_part
@with_fields(
    SelectivePause,
    *("duration", "note"),
    duration="of a topic or tag: until it resumes, as 2h or 30m",
    note="of a topic or tag: why",
)
@with_request("given", SelectivePause)
@with_result()
def pause(settings: Settings, part: Part, given: SelectivePause, output: Printer) -> None:
    """Pause ingest or dequeue, or the deliveries of one topic or tag.

    Ingest and dequeue are paused on this host until `resume`. The pause of a topic or tag is in
    Kafka: it holds in all shards, until `resume` or for the time of --for. Both outlast restarts.
    `status` lists them. A target that does not exist yet, or that no timer topic is open for, is
    paused with a warning.
    """
    from duewheel.ops.connection import require_kafka
    from duewheel.ops.shard.pause import set_paused
    from duewheel.ops.shard.selective_pause import pause_selection, require_pausable

    if isinstance(part, tuple):
        require_pausable(settings, *part)
        with require_kafka(settings):
            output.show(pause_selection(settings, SystemClock(), *part, given))
            _say_doubts(settings, part, "paused")
    elif given.model_fields_set:
        raise ConfigError("--for and --note are for --target, --timer-topic and --tag")
    else:
        output.show(set_paused(settings, part, on=True))


@click.command(cls=CommandWithExamples)
@_with_part
@with_result()
def resume(settings: Settings, part: Part, output: Printer) -> None:
    """End a pause.

    Timers that waited for a paused topic or tag leave within an hour.
    """
    from duewheel.ops.connection import require_kafka
    from duewheel.ops.shard.pause import set_paused
    from duewheel.ops.shard.selective_pause import require_name, resume_selection

    if isinstance(part, tuple):
        require_name(*part)
        with require_kafka(settings):
            output.show(resume_selection(settings, SystemClock(), *part))
            _say_doubts(settings, part, "resumed")
    else:
        output.show(set_paused(settings, part, on=False))


def _say_doubts(settings: Settings, part: tuple[PausedKind, str], done: str) -> None:
    from duewheel.ops.topics.targets import doubts_about

    kind, name = part
    if kind == "target" and (doubts := doubts_about(settings, name)):
        say(f"{done}, but {', and '.join(doubts)}")


@click.command(cls=CommandWithExamples)
@with_result()
def promote(settings: Settings, output: Printer) -> None:
    """Make this directory's standby take over, and wait for that."""
    from duewheel.ops.shard.promote import promote_standby

    output.show(promote_standby(settings, SystemClock()))


@click.command(cls=CommandWithExamples)
@with_result()
def check(settings: Settings, output: Printer) -> int:
    """Verify all files on disk. The processes may run meanwhile."""
    from duewheel.ops.files import check_files

    checked = check_files(settings)
    more = " or more: the list ends here" if checked.more else ""
    counts = f"{checked.records} records, {len(checked.findings)} findings{more}"
    output.show(checked, [*(each.text for each in checked.findings), counts])
    return 0 if checked.ok else 1


@click.command(cls=CommandWithExamples)
@with_result()
def doctor(settings: Settings, output: Printer) -> int:
    """Examine host and cluster; print each finding with its remedy.

    The trial of real transactions uses a scratch topic, and deletes it if it made it. Nothing of a
    shard changes: it may be running, or not exist yet.
    """
    from duewheel.cli.examination import report, run

    return report(run(settings, SystemClock()), output)


@click.command(cls=CommandWithExamples)
@click.option("--timer-topic", "topics", multiple=True, help="by default all")
@click.option(
    "--from", "since", help="an offset, ISO-8601 with a zone, or `last`; by default an hour ago"
)
@click.option("--to", "until", help="an offset, or ISO-8601 with a zone; by default the end")
@with_result("audit", needs_kafka=True)
def audit(
    settings: Settings,
    topics: tuple[str, ...],
    since: str | None,
    until: str | None,
    output: Printer,
) -> int:
    """Check that ingest accepts and rejects messages as the documented rules say.

    `--from last` begins where audits end without a gap. Exit code 1: a finding.
    """
    from duewheel.audit.run import Wanted, run_audit

    result = run_audit(settings, Wanted(topics, since, until))
    output.show(result, result.summary)
    return 0 if result.ok else 1


@click.command(cls=CommandWithExamples)
@click.option("--to", type=click.IntRange(1), required=True, help="the new number of shards")
@with_dry_run
@with_result(needs_kafka=True)
def reshard(settings: Settings, to: int, *, dry_run: bool, output: Printer) -> None:
    """Reassign partitions to another number of shards.

    Runs on any host, without a data directory. Running shards are fenced, and end with exit code 4;
    start the new number of shards afterwards, with the new [shard] count. After a kill, run it
    again, or undo it with the old number.
    """
    from duewheel.ops.reshard import reassign_partitions
    from duewheel.ops.shard.pause import is_paused

    result = reassign_partitions(settings, to, dry_run=dry_run)
    unchanged = {
        to: f"there are {to} shards: nothing to change",
        0: f"no shard has begun: begin each of the {to} with `duewheel init` and that shard.count",
    }.get(result.from_shards)
    output.show(result, None if unchanged is None or result.sealed else [unchanged])
    if unchanged is None and is_paused(settings, "dequeue"):
        say(
            f"dequeue is paused in {settings.storage.data_dir}: timers that get another shard do "
            "not wait for that. Pause their target, timer topic or tag, in all shards"
        )
