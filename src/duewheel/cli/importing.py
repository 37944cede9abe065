"""The commands `import …`: what waits in another delay service becomes timers."""

from __future__ import annotations

from typing import Any

import click

from duewheel.cli.examples import CommandGroup
from duewheel.cli.options import Command, one_of, show, with_output, with_settings
from duewheel.cli.printable import printable
from duewheel.config.settings import Settings


@click.group("import", cls=CommandGroup)
def import_group() -> None:
    """Take over what waits in another delay service, once.

    Each entry is written once, whatever is killed and however often the command runs: the position
    in the source is committed with the timers. Stop the other service first, or both deliver.

    Exit code 1: ingest would reject an entry, and the import has stopped before it (or, with
    --skip-refused, left it out); or entries were added where the source had been read.
    """


def _with_choice(command: Command) -> Command:
    """Adds the options that all sources share, but for --name."""
    for option in (
        click.option("--skip-refused", is_flag=True, help="leave out what ingest would reject"),
        click.option("--dry-run", is_flag=True, help="read and judge all of it, write nothing"),
        click.option("--timer-topic", help="by default the first of timer.topics"),
    ):
        command = option(command)
    return command


_with_name = click.option("--name", help="of this import; by default that of the source")
_with_topic = click.option("--from-topic", required=True, help="the topic with the schedules")


@import_group.command("etf1")
@_with_topic
@_with_name
@_with_choice
@with_output
@with_settings(needs_kafka=True)
def import_etf1(settings: Settings, from_topic: str, output: str, **choice: Any) -> int:
    """Import a topic of etf1/kafka-message-scheduler.

    The timer topic needs headers = "etf1".
    """
    return _from_topic(settings, "etf1", from_topic, output, choice)


@import_group.command("karafka")
@_with_topic
@_with_name
@_with_choice
@with_output
@with_settings(needs_kafka=True)
def import_karafka(settings: Settings, from_topic: str, output: str, **choice: Any) -> int:
    """Import a topic of Karafka's scheduled messages.

    The timer topic needs headers = "karafka".
    """
    return _from_topic(settings, "karafka", from_topic, output, choice)


@import_group.command("postgres")
@click.option("--name", required=True, help="of this import, which has a position of its own")
@click.option("--dsn", default="", help="of libpq; by default its variables PGHOST, PGDATABASE …")
@click.option("--query", required=True, help="a SELECT of position, due, topic, value (key, id)")
@_with_choice
@with_output
@with_settings(needs_kafka=True)
def import_postgres(settings: Settings, dsn: str, query: str, output: str, **options: Any) -> int:
    """Import the rows of a query in PostgreSQL.

    Its columns, named with AS, are position (unique, not null: rows are read in its order), due (a
    timestamp with time zone, or epoch milliseconds), topic (the target), value, and perhaps key and
    id. Another query under the same name continues at the position, if its rows are the same.
    """
    from duewheel.ops.imports.importer import import_timers
    from duewheel.ops.imports.postgres import postgres_source

    choice = _choice(settings, options)
    with postgres_source(dsn, query, choice.name, choice.timer_topic) as source:
        return _show(import_timers(settings, source, choice), output)


@import_group.command("redis")
@click.option("--url", default="redis://localhost:6379/0", help="of Redis")
@click.option("--key", required=True, help="of the sorted set, whose scores are due times")
@click.option("--unit", type=one_of("s", "ms"), default="s", help="of the scores, since 1970")
@click.option("--topic", help="the target of all of them")
@click.option("--topic-field", help="the field of a JSON member with the target")
@click.option("--key-field", help="that with the message's key; by default there is none")
@click.option("--value-field", help="that with the message; by default the whole member")
@click.option("--id-field", help="that with the timer's id; by default a hash of the member")
@_with_name
@_with_choice
@with_output
@with_settings(needs_kafka=True)
def import_redis(settings: Settings, url: str, key: str, output: str, **options: Any) -> int:
    """Import a sorted set of Redis.

    A member is the message, or a JSON object with fields for it.
    """
    from duewheel.ops.imports.importer import import_timers
    from duewheel.ops.imports.redis_set import MemberFields, redis_set_source

    choice = _choice(settings, options)
    names = ("topic", "topic_field", "key_field", "id_field", "value_field", "unit")
    fields = MemberFields(**{name: options[name] for name in names})
    with redis_set_source(url, key, fields, choice.timer_topic) as source:
        return _show(import_timers(settings, source, choice), output)


def _from_topic(
    settings: Settings, service: Any, topic: str, output: str, options: dict[str, Any]
) -> int:
    from duewheel.ops.imports.importer import import_timers
    from duewheel.ops.imports.kafka_topic import kafka_topic_source

    choice = _choice(settings, options)
    with kafka_topic_source(settings, service, topic, choice.timer_topic) as source:
        return _show(import_timers(settings, source, choice), output)


def _choice(settings: Settings, options: dict[str, Any]) -> Any:
    """The choice that the options make.

    Raises:
        ConfigError: the timer topic is none of the settings.
    """
    from duewheel.ops.changes import timer_topic_of
    from duewheel.ops.imports.importer import Choice

    topic = timer_topic_of(settings, options["timer_topic"])
    return Choice(topic, options["name"], options["dry_run"], options["skip_refused"])


def _show(verdict: dict[str, Any], output: str) -> int:
    refused = verdict["refused_first"]
    shown = dict(verdict)
    if output != "json":
        del shown["refused_first"]
        shown["missing_targets"] = ", ".join(verdict["missing_targets"]) or None
        for each in refused:
            text = "refused: {place}  {code}  {reason}".format(**each)
            click.echo(printable(text))
    show(shown, output)
    if not verdict["complete"]:
        text = (
            "stopped before the first chunk with a refused entry: change the settings or the "
            "source and run it again, or leave such entries out with --skip-refused"
        )
        click.echo(f"duewheel: {text}", err=True)
    if verdict["missed"]:
        text = f"{verdict['missed']} entries were added before the position, and are not imported"
        click.echo(f"duewheel: {text}", err=True)
    return 1 if verdict["refused"] or verdict["missed"] else 0
