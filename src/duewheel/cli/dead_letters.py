"""The commands `dlq list` and `dlq replay`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice

import click

from duewheel.api.dead_letters import DeadLetterSummary
from duewheel.cli.examples import CommandGroup
from duewheel.cli.options import show, with_output, with_settings
from duewheel.cli.printable import printable
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError


@click.group(cls=CommandGroup)
def dlq() -> None:
    """List and replay dead letters."""


@dlq.command("list")
@click.option("--limit", type=click.IntRange(1), default=100, help="how many at most")
@click.option("--code", help="only dead letters with this TIMER_ERROR_CODE")
@click.option("--from", "since", default="0", help="an offset, or ISO-8601 with a zone")
@click.option(
    "--page",
    metavar="PARTITION@OFFSET",
    help="of the last dead letter that was listed: continue behind it",
)
@with_output
@with_settings(needs_kafka=True)
def dlq_list(
    settings: Settings, limit: int, code: str | None, since: str, page: str | None, output: str
) -> None:
    """Show dead letters, oldest first within each partition.

    If more follow, a line on stderr says how to list them.
    """
    from duewheel.config.bounds import Bound
    from duewheel.ops.dead_letters.listing import list_letters
    from duewheel.ops.record_pages import BEFORE_ALL, parsed_place

    after = BEFORE_ALL if page is None else parsed_place(page)
    if after is None:
        raise ConfigError(f"--page {page}: give partition@offset of the letter listed last")
    bound = Bound.parse("--from", since)
    rows = list_letters(settings, since=bound, code=code, limit=limit + 1, after=after)
    last = ""
    for row in islice(rows, limit):
        last = f"{row.partition}@{row.offset}"
        if output == "json":
            click.echo(json.dumps(row.as_json()))
        else:
            click.echo(printable("  ".join(_parts(row))))
    if not last:
        click.echo("duewheel: no dead letters", err=True)
    if next(rows, None) is not None:
        click.echo(f"duewheel: more dead letters follow: --page {last}, or --limit", err=True)


def _parts(row: DeadLetterSummary) -> Iterator[str]:
    yield f"{row.partition}@{row.offset}"
    yield row.time
    yield "replayed" if row.replayed else "waiting"
    yield row.code or "no code"
    yield row.source or "no source"
    yield "no key" if row.key is None else f"key {row.key}"
    yield "no value" if row.value_bytes is None else f"{row.value_bytes} bytes"
    yield row.error or ""


@dlq.command("replay")
@click.option("--code", help="only dead letters with this TIMER_ERROR_CODE")
@click.option("--to-topic", help="a target for all; by default each one's own topic")
@click.option("--limit", type=click.IntRange(1), help="how many at most")
@click.option("--dry-run", is_flag=True, help="only count, write nothing")
@with_output
@with_settings(needs_kafka=True)
def dlq_replay(
    settings: Settings,
    code: str | None,
    to_topic: str | None,
    limit: int | None,
    dry_run: bool,
    output: str,
) -> int:
    """Write the messages of dead letters again, each once, however often the command runs.

    A rejected message goes back to its timer topic, an undeliverable one to its target.
    Exit code 1: some became dead letters again.
    """
    from duewheel.ops.dead_letters.replay import Selection, replay

    result = replay(settings, Selection(code, to_topic, limit), dry_run=dry_run)
    show(result, output)
    return 1 if result.refused else 0
