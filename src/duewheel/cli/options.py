"""The parts that commands share: the flags of the settings, and the output of results."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import click

from duewheel.api.model import Result
from duewheel.cli.printable import printable
from duewheel.config.durations import duration_text
from duewheel.config.instants import utc_text
from duewheel.config.settings import Settings, load
from duewheel.errors import NO_ROOM, ConfigError, DiskFull
from duewheel.extras import of_command, require
from duewheel.osutil import logs

Command = Callable[..., Any]
Tables = dict[str, Any]  # of settings, as deep as they are: config parses the values

# Fields with an instant in epoch milliseconds; other names in _ms are durations.
_INSTANTS = frozenset(
    [
        "delivered_ms",
        "delivered_until_ms",
        "due_ms",
        "earliest_due_ms",
        "floor_ms",
        "lag_asked_ms",
        "last_due_ms",
        "latest_due_ms",
        "leaves_ms",
        "next_due_ms",
        "next_try_ms",
        "oldest_ms",
    ]
)

# As text, a dry run says these of what it has not done; JSON has the names of a real run.
_WOULD = {
    "accepted": "would accept",
    "cancelled": "would cancel",
    "dropped": "would drop",
    "key_rotated": "would rotate key",
    "moved": "would move",
    "refused": "would refuse",
    "replayed": "would replay",
    "skipped": "would skip",
    "written": "would write",
}


def one_of(*words: str) -> click.Choice[str]:
    """The type of an option with these words, in any case."""
    return click.Choice(words, case_sensitive=False)


def with_output(command: Command) -> Command:
    """Adds --output text|json, as the argument `output`."""
    return click.option(
        "--output",
        type=one_of("text", "json"),
        default="text",
        help="json: one object, or one per line for lists",
    )(command)


def with_settings(
    role: logs.Role = "cli", *, needs_kafka: bool = False
) -> Callable[[Command], Command]:
    """Adds the flags of the settings, as the argument `settings`; sets up the logs. A command that
    needs an extra of its own ends at once without it.

    Args:
        role: of the process, in its logs.
        needs_kafka: the command can do nothing without Kafka: it says at once why it has none, and
            the clients' log lines are left out.
    """

    def decorate(command: Command) -> Command:
        @click.option("--config", type=click.Path(dir_okay=False), help="TOML file")
        @click.option("--bootstrap-servers", help="kafka.bootstrap_servers")
        @click.option("--data-dir", type=click.Path(file_okay=False), help="storage.data_dir")
        @click.option("--set", "pairs", multiple=True, help="any setting, as section.key=value")
        @functools.wraps(command)
        def with_loaded(
            config: str | None,
            bootstrap_servers: str | None,
            data_dir: str | None,
            pairs: tuple[str, ...],
            **others: Any,
        ) -> Any:
            settings = load(config, _overrides(bootstrap_servers, data_dir, pairs))
            if (extra := of_command(_command())) != "dequeue":
                require(extra)
            # A command's output is its result: the steps of a start are the log of a process.
            is_default = settings.source("log.level") == "default"
            level = "warning" if role == "cli" and is_default else settings.log.level
            logs.configure(role, level, settings.log.format)
            try:
                with _kafka(settings) if needs_kafka else nullcontext():
                    return command(settings=settings, **others)
            except OSError as error:
                if error.errno not in NO_ROOM:
                    raise
                raise _disk_full(settings.storage.data_dir, error) from error

        return with_loaded

    return decorate


def _command() -> str:
    """The name of the command, or of its group, after `duewheel`."""
    context = click.get_current_context()
    while context.parent is not None and context.parent.parent is not None:
        context = context.parent
    return context.info_name or ""


def _kafka(settings: Settings) -> AbstractContextManager[None]:
    from duewheel.ops.connection import required

    return required(settings)


def _disk_full(data_dir: Path, error: OSError) -> DiskFull:
    folder = next(folder for folder in (data_dir, *data_dir.parents) if folder.exists())
    found = shutil.disk_usage(folder)
    return DiskFull(
        f"{error}: {found.free >> 20} of {found.total >> 20} MiB are free at {data_dir}"
        ": make room there; storage.min_free reserves some"
    )


def _overrides(
    bootstrap_servers: str | None, data_dir: str | None, pairs: tuple[str, ...]
) -> Tables:
    overrides: Tables = {
        "kafka": {"bootstrap_servers": bootstrap_servers},
        "storage": {"data_dir": data_dir},
    }
    for pair in pairs:
        path, given, value = pair.partition("=")
        section, dotted, key = path.partition(".")
        if not given or not dotted:
            raise ConfigError(f"--set {pair}: write it as section.key=value")
        table = overrides.setdefault(section, {})
        parent, nested, name = key.partition(".")
        if nested and section == "kafka":
            table, key = table.setdefault(parent, {}), name
        elif section == "timer" and parent == "topic" and "." in name:
            topic, _, key = name.rpartition(".")  # a topic's name has dots, and may be quoted
            table = table.setdefault("topic", {}).setdefault(topic.strip('"'), {})
        table[key] = value
    return overrides


def show(
    result: Result | Mapping[str, object], output: str, *, without: Collection[str] = ()
) -> None:
    """Prints one result, which is that of a dry run if it has a true `dry_run`.

    Args:
        result: of the command.
        output: text or json.
        without: fields that are not shown.
    """
    fields = _fields(result)
    fields = {name: value for name, value in fields.items() if name not in without}
    if output == "json":
        click.echo(json.dumps(fields))
        return
    if fields.get("dry_run"):
        fields = {_WOULD.get(key, key): value for key, value in fields.items()}
    rows = flat(fields)
    width = max((len(key) for key, _ in rows), default=0)
    for key, value in rows:
        click.echo(f"{key:<{width}} {value}")


def _fields(result: Result | Mapping[str, object]) -> Mapping[str, object]:
    return result.as_json() if isinstance(result, Result) else result


def show_row(row: Result | Mapping[str, object], output: str) -> None:
    """Prints one result of a list."""
    fields = _fields(row)
    if output == "json":
        click.echo(json.dumps(fields))
    else:
        known = {key: value for key, value in fields.items() if value is not None}
        click.echo("  ".join(f"{_label(key)}={_shown(key, value)}" for key, value in known.items()))


def flat(table: Mapping[str, object], prefix: str = "") -> list[tuple[str, str]]:
    """Flattens nested tables to dotted names."""
    rows: list[tuple[str, str]] = []
    for key, value in table.items():
        if isinstance(value, dict) and value.keys() == {"value", "from"}:  # a bound
            rows.append((prefix + key, f"{_shown(key, value['value'])}   {value['from']}"))
        elif isinstance(value, dict):
            rows += flat(value, f"{prefix}{key}.")
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            for number, each in enumerate(value):
                rows += flat(each, f"{prefix}{key}.{number}.")
        else:
            rows.append((prefix + _label(key), _shown(key, value)))
    return rows


def _label(key: str) -> str:
    return key.removesuffix("_ms") if key in _INSTANTS else key


def _shown(key: str, value: object) -> str:
    """A value for people: instants in UTC, durations with their unit."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if key.endswith("_ms") and isinstance(value, int):
        return utc_text(value) if key in _INSTANTS else duration_text(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    elif isinstance(value, dict):
        value = [f"{name} {_shown(key, each)}" for name, each in value.items()]
    if isinstance(value, list):
        return ", ".join(_shown(key, each) for each in value) or "-"
    return "-" if value is None else printable(str(value))
