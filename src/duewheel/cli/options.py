"""What the commands share: the flags that make up the settings, and how results are shown."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from duewheel.checkpoints import fs
from duewheel.config.settings import load
from duewheel.errors import NO_ROOM, ConfigError, DiskFull
from duewheel.osutil import logs

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

Command = Callable[..., Any]


def with_output(command: Command) -> Command:
    """--output text|json, passed on as `output`."""
    return click.option(
        "--output",
        type=click.Choice(["text", "json"]),
        default="text",
        help="json: one object, or one per line for lists",
    )(command)


def with_settings(role: logs.Role = "cli") -> Callable[[Command], Command]:
    """The flags that make up the settings, passed on as `settings`; sets up the logs."""

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
            logs.configure(role, settings.log.level, settings.log.format)
            try:
                return command(settings=settings, **others)
            except OSError as error:
                if error.errno not in NO_ROOM:
                    raise
                raise _disk_full(settings.storage.data_dir, error) from error

        return with_loaded

    return decorate


def _disk_full(data_dir: Path, error: OSError) -> DiskFull:
    found = fs.space(next(folder for folder in (data_dir, *data_dir.parents) if folder.exists()))
    return DiskFull(
        f"{error}: {found.free_bytes >> 20} of {found.total_bytes >> 20} MiB are free at {data_dir}"
        ": make room there; storage.min_free keeps some"
    )


def _overrides(
    bootstrap_servers: str | None, data_dir: str | None, pairs: tuple[str, ...]
) -> dict[str, Any]:
    overrides: dict[str, Any] = {
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


def show(result: dict[str, Any], output: str) -> None:
    """Print one result object."""
    if output == "json":
        click.echo(json.dumps(result))
        return
    for key, value in _flat(result):
        click.echo(f"{key:<24} {value}")


def show_row(row: dict[str, Any], output: str) -> None:
    """Print one object of a list."""
    if output == "json":
        click.echo(json.dumps(row))
    else:
        click.echo("  ".join(f"{key}={value}" for key, value in row.items() if value is not None))


def progress_bar() -> Progress:
    """On stderr, and only if that is a terminal."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
    )

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    return Progress(
        *columns,
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


@contextmanager
def bar_of_bytes(text: str) -> Iterator[Callable[[int, int], None] | None]:
    """Takes bytes done and bytes in all, and draws them in MiB; None if stderr is no terminal."""
    with progress_bar() as bar:
        task: TaskID | None = None

        def draw(done: int, size: int) -> None:
            nonlocal task
            if task is None:
                task = bar.add_task(f"{text} (MiB)")
            bar.update(task, completed=done >> 20, total=size >> 20)

        yield None if bar.disable else draw


def _flat(table: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for key, value in table.items():
        if isinstance(value, dict):
            rows += _flat(value, f"{prefix}{key}.")
        else:
            rows.append((prefix + key, "-" if value is None else value))
    return rows
