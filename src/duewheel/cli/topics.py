"""The commands `init`, `topic create` and `topic read`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice

import click

from duewheel.api.topics import BegunShard, ReadRecord
from duewheel.cli.command_help import CommandGroup, CommandWithExamples
from duewheel.cli.options import with_result
from duewheel.cli.output import Printer, key_text, say
from duewheel.clock import SystemClock
from duewheel.config.durations import duration_text
from duewheel.config.instants import utc_text
from duewheel.config.range_ends import BEGINNING, Bound
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError
from duewheel.ops.connection import require_kafka
from duewheel.ops.topics.creation import begin_shard, create_topics, init_topics
from duewheel.ops.topics.reading import lines_to_import, records_of
from duewheel.osutil.logs import shortened


@click.command(cls=CommandWithExamples)
@click.option(
    "--partitions",
    type=click.IntRange(1),
    help="of new timer topics; by default the brokers' setting",
)
@click.option(
    "--replication-factor",
    type=click.IntRange(1, 32_767),
    help="of duewheel's new topics; by default the brokers' setting",
)
@click.option(
    "--create-targets", is_flag=True, help="create the missing targets that the settings name"
)
@with_result(needs_kafka=True)
def init(
    settings: Settings,
    *,
    partitions: int | None,
    replication_factor: int | None,
    create_targets: bool,
    output: Printer,
) -> int:
    """Create or check duewheel's topics, and begin a new shard.

    A new shard schedules every message that is in the timer topics: none may have been scheduled
    before. On a terminal it offers to create the missing targets that the settings name.
    """

    def is_wanted(target: str) -> bool:
        question = f"The target {target} does not exist. Create it?"
        asks = not output.is_json and sys.stdin.isatty()
        return create_targets or (asks and click.confirm(question, default=True, err=True))

    differs = False
    for topic in init_topics(settings, partitions, replication_factor, is_wanted):
        differs |= topic.state == "differs"
        output.rows([topic], lambda row: "  ".join(filter(None, row.as_json().values())))
    if differs:
        say("no shard was begun: correct the topics that differ, and run `duewheel init` again")
        return 1
    began = begin_shard(settings, SystemClock())
    opened = settings.timer.open_targets
    row = BegunShard(shard=settings.shard.index, began=began, open_targets=opened)
    output.show(row, _begun_lines(row))
    return 0


def _begun_lines(row: BegunShard) -> Iterator[str]:
    before = "the shard has begun before: its progress is not changed"
    yield "the shard has begun" if row.began else before
    for name, opened in row.open_targets.items():
        names = ", ".join(opened) or "no target: name some in timer.targets or timer.mapping"
        yield f"{name} is open for {names}"


@click.group(cls=CommandGroup)
def topic() -> None:
    """Create a topic, or read one."""


@topic.command()
@click.argument("names", nargs=-1, required=True)
@click.option(
    "--partitions", type=click.IntRange(1), help="of each; by default the brokers' setting"
)
@with_result(needs_kafka=True)
def create(
    settings: Settings, names: tuple[str, ...], partitions: int | None, output: Printer
) -> None:
    """Create topics, such as targets; one that exists is left as it is.

    Timer topics and the others of duewheel's own are created by `init`.
    """
    rows = create_topics(settings, names, partitions)
    output.rows(rows, lambda each: f"{each.topic}  {each.state}")


@topic.command()
@click.argument("name")
@click.option("--follow", is_flag=True, help="wait for more, until Ctrl-C or --limit")
@click.option("--limit", type=click.IntRange(1), help="how many at most")
@click.option(
    "--from",
    "since",
    help="an offset, or ISO-8601 with a zone; by default 0, and with --follow the topic's end",
)
@click.option("--for-send", is_flag=True, help="the newest record of each key, for `import`")
@with_result()
def read(
    settings: Settings,
    name: str,
    *,
    follow: bool,
    limit: int | None,
    since: str | None,
    for_send: bool,
    output: Printer,
) -> None:
    """Show the committed records of a topic, and how late they have arrived.

    All that it has, or with --follow those that arrive from now on; `--follow --from 0` shows both.

    It stores no position and joins no group. Text has one line for each record, values cut at 600
    characters; JSON has all, and headers.
    """
    if for_send and (follow or since is not None):
        raise ConfigError("--for-send reads the whole topic: without --follow and --from")
    bound = None if since is None else Bound.parse("--from", since)
    with require_kafka(settings):
        if for_send:
            lines = islice(lines_to_import(settings, name), limit)
            Printer(is_json=True).rows(line.model_dump(exclude_unset=True) for line in lines)
            return
        if not follow:
            rows = records_of(settings, name, bound or BEGINNING, follow=False)
            output.rows(islice(rows, limit), record_line)
            return
    # Outside of the block: while Kafka is away later, the clients' warnings say so.
    output.rows(islice(records_of(settings, name, bound, follow=True), limit), record_line)


def record_line(row: ReadRecord) -> str:
    """The line of a record, with the start of its value."""
    value = row.value if row.decoded is None else row.decoded
    parts = [
        utc_text(row.timestamp_ms),
        f"{row.partition}@{row.offset}",
        "" if row.late_ms is None else f"{duration_text(row.late_ms)} late",
        key_text(row.key, row.key_base64) or "no key",
        "no value" if value is None else shortened(value),
        "" if row.not_decoded is None else f"({row.not_decoded})",
    ]
    return "  ".join(filter(None, parts))
