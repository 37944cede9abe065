"""The commands `dlq list` and `dlq replay`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import click

from duewheel.api.dead_letters import DeadLetterFilter, DeadLetterSummary, ReplayFilter
from duewheel.cli.examples import CommandGroup
from duewheel.cli.options import with_result
from duewheel.cli.output import say, show, show_rows
from duewheel.cli.request_options import with_fields, with_request
from duewheel.config.settings import Settings


@click.group(cls=CommandGroup)
def dlq() -> None:
    """List and replay dead letters."""


@dlq.command("list")
@click.option("--limit", type=click.IntRange(1), default=100, help="how many at most")
@with_fields(DeadLetterFilter, "code", "since")
@click.option(
    "--page",
    metavar="PARTITION@OFFSET",
    help="of the last dead letter that was listed: continue after it",
)
@with_request("wanted", DeadLetterFilter)
@with_result(needs_kafka=True)
def dlq_list(
    settings: Settings, wanted: DeadLetterFilter, limit: int, page: str | None, output: str
) -> None:
    """Show dead letters, oldest first within each partition.

    If more follow, a line on stderr says how to list them.
    """
    from duewheel.ops.dead_letters.listing import list_letters

    rows = list_letters(settings, wanted, limit + 1, page)
    last = show_rows(islice(rows, limit), output, lambda row: "  ".join(_parts(row)))
    if last is None:
        say("no dead letters")
    elif next(rows, None) is not None:
        say(f"more dead letters follow: --page {last.partition}@{last.offset}, or --limit")


def _parts(row: DeadLetterSummary) -> Iterator[str]:
    yield f"{row.partition}@{row.offset}"
    yield row.time
    yield "replayed" if row.replayed else "waiting"
    yield row.code or "no code"
    yield row.source or "no source"
    rest = "" if row.key_bytes is None else f" … of {row.key_bytes} bytes"
    yield "no key" if row.key is None else f"key {row.key}{rest}"
    yield "no value" if row.value_bytes is None else f"{row.value_bytes} bytes"
    yield row.error or ""


@dlq.command("replay")
@with_fields(ReplayFilter, "code", "to_topic", "limit")
@click.option("--dry-run", is_flag=True, help="only count, write nothing")
@with_request("wanted", ReplayFilter)
@with_result(needs_kafka=True)
def dlq_replay(settings: Settings, wanted: ReplayFilter, *, dry_run: bool, output: str) -> int:
    """Write the messages of dead letters again, each once, however often the command runs.

    A rejected message goes back to its timer topic, an undeliverable one to its target.
    Exit code 1: some became dead letters again.
    """
    from duewheel.ops.dead_letters.replay import replay

    result = replay(settings, wanted, dry_run=dry_run)
    show(result, output)
    return 1 if result.refused else 0
