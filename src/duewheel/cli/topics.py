"""The commands `topic create` and `topic read`, for a first message without Kafka's own tools."""

from __future__ import annotations

import json
import sys
from itertools import islice
from typing import TYPE_CHECKING

import click

from duewheel.cli.examples import CommandGroup
from duewheel.cli.options import with_output, with_settings
from duewheel.cli.printable import printable
from duewheel.config.durations import about
from duewheel.config.instants import utc_text
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError

if TYPE_CHECKING:
    from duewheel.api.records import ReadRecord

_VALUE_CHARACTERS_MAX = 200


@click.group(cls=CommandGroup)
def topic() -> None:
    """Create a topic, or read one."""


@topic.command()
@click.argument("names", nargs=-1, required=True)
@click.option(
    "--partitions", type=click.IntRange(1), help="of each; by default the brokers' setting"
)
@with_output
@with_settings(needs_kafka=True)
def create(settings: Settings, names: tuple[str, ...], partitions: int | None, output: str) -> None:
    """Create topics, such as targets; one that exists is left as it is.

    Timer topics and the others of duewheel's own are created by `init`.
    """
    from duewheel.ops.topics.creation import create_topics

    for each in create_topics(settings, names, partitions):
        row = each.as_json()
        click.echo(json.dumps(row) if output == "json" else f"{each.topic}  {each.state}")


@topic.command()
@click.argument("name")
@click.option("--follow", is_flag=True, help="wait for more, until Ctrl-C or --limit")
@click.option("--limit", type=click.IntRange(1), help="how many at most")
@click.option(
    "--from",
    "since",
    help="an offset, or ISO-8601 with a zone; by default 0, and with --follow the topic's end",
)
@click.option(
    "--for-send", is_flag=True, help="the newest record of each key, for `send --file --name`"
)
@with_output
@with_settings(needs_kafka=True)
def read(
    settings: Settings,
    name: str,
    *,
    follow: bool,
    limit: int | None,
    since: str | None,
    for_send: bool,
    output: str,
) -> None:
    """Show the committed records of a topic: what has arrived, and how late.

    All that it has, or with --follow those that arrive from now on; `--follow --from 0` shows both.

    It stores no position and joins no group. Text has one line for each record, JSON all headers.
    """
    from duewheel.config.bounds import BEGINNING, Bound
    from duewheel.ops.topics.reading import lines_to_send, records_of

    if for_send:
        if follow or since is not None:
            raise ConfigError("--for-send reads the whole topic: without --follow and --from")
        for line in islice(lines_to_send(settings, name), limit):
            click.echo(json.dumps(line.model_dump(exclude_unset=True)))
        return
    bound = None if since is None else Bound.parse("--from", since)
    if bound is None and not follow:
        bound = BEGINNING
    rows = records_of(settings, name, bound, follow=follow)
    for row in islice(rows, limit):
        click.echo(json.dumps(row.as_json()) if output == "json" else _line(row))
        sys.stdout.flush()


def _line(row: ReadRecord) -> str:
    key = row.key_base64 if row.key is None else row.key
    parts = [
        utc_text(row.timestamp_ms),
        f"{row.partition}@{row.offset}",
        "" if row.late_ms is None else f"{about(row.late_ms)} late",
        "no key" if key is None else f"key {key}",
        "no value" if row.value is None else row.value[:_VALUE_CHARACTERS_MAX],
    ]
    return printable("  ".join(filter(None, parts)))
