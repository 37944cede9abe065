"""The commands `dlq list` and `dlq replay`."""

from __future__ import annotations

from collections.abc import Iterator

import click

from duewheel.api.dead_letters import DeadLetterFilter, DeadLetterSummary, ReplayFilter
from duewheel.cli.command_help import CommandGroup
from duewheel.cli.options import with_dry_run, with_result
from duewheel.cli.output import Printer, key_text
from duewheel.cli.pages import show_page, with_page
from duewheel.cli.request_options import with_fields, with_request
from duewheel.clock import SystemClock
from duewheel.config.instants import utc_text
from duewheel.config.settings import Settings
from duewheel.ops.dead_letters.listing import list_letters, page_after
from duewheel.ops.dead_letters.replay import replay
from duewheel.osutil.terminal import bar_of_count


@click.group(cls=CommandGroup)
def dlq() -> None:
    """List and replay dead letters."""


@dlq.command("list")
@with_fields(DeadLetterFilter, "code", "timer_topic", "since")
@with_page
@with_request("wanted", DeadLetterFilter)
@with_result(needs_kafka=True, is_list=True)
def dlq_list(
    settings: Settings,
    wanted: DeadLetterFilter,
    limit: int | None,
    page: str | None,
    output: Printer,
) -> None:
    """Show dead letters, oldest first within each partition."""

    def read(_: int) -> Iterator[DeadLetterSummary]:
        return list_letters(settings, wanted, page)

    show_page(read, DeadLetterSummary, limit, output, letter_line, page_after, of="dead letters")


def letter_line(row: DeadLetterSummary) -> str:
    """The line of a dead letter: its position, its code and its timer."""
    return "  ".join(_parts(row))


def _parts(row: DeadLetterSummary) -> Iterator[str]:
    yield f"{row.partition}@{row.offset}"
    yield utc_text(row.written_ms)
    yield "replayed" if row.replayed else "waiting"
    yield row.code or "no code"
    yield row.source or "no source"
    yield key_text(row.key, row.key_base64, row.key_bytes) or "no key"
    if row.id not in (None, row.source):  # the source stands for the id of a timer without one
        yield f"id {row.id}"
    yield "no value" if row.value_bytes is None else f"{row.value_bytes} bytes"
    yield row.error or ""


@dlq.command("replay")
@with_fields(ReplayFilter, "code", "timer_topic", "to_topic", "limit")
@with_dry_run
@with_request("wanted", ReplayFilter)
@with_result(needs_kafka=True)
def dlq_replay(settings: Settings, wanted: ReplayFilter, *, dry_run: bool, output: Printer) -> int:
    """Write the messages of dead letters again, each once, however often the command runs.

    A rejected message goes back to its timer topic, an undeliverable one to its target.
    Exit code 1: some could not be written, and became dead letters again.
    """
    with bar_of_count("dead letters") as advanced:
        result = replay(settings, SystemClock(), wanted, dry_run=dry_run, advanced=advanced)
    output.show(result)
    return 1 if result.refused else 0
