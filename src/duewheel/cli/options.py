"""The options that commands share: --output, and those of the settings."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import click

from duewheel.cli.output import Printer
from duewheel.cli.set_option import Tables, put
from duewheel.clock import SystemClock
from duewheel.config.durations import parse_duration_ms
from duewheel.config.settings import Settings, load
from duewheel.errors import NO_ROOM, DiskFull
from duewheel.extras import of_command, require
from duewheel.osutil import logs

Command = Callable[..., Any]


def one_of(*words: str) -> click.Choice[str]:
    """The type of an option with these words, in any case."""
    return click.Choice(words, case_sensitive=False)


class _DurationMs(click.ParamType[int]):
    """The type of an option such as 90s: its milliseconds."""

    name = "duration"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        try:
            return parse_duration_ms(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


DURATION_MS = _DurationMs()


def with_output(command: Command, *tables: str) -> Command:
    """Adds --output text|json, and the formats of `tables`, as the argument `output`, a Printer."""
    columns = "; arrow, parquet: columns, to a file" if tables else ""
    return click.option(
        "--output",
        type=one_of("text", "json", *tables),
        default="text",
        callback=lambda _, __, given: Printer(given == "json", given if given in tables else ""),
        help=f"json: one object, or one per line for lists{columns}",
    )(command)


def with_dry_run(command: Command) -> Command:
    """Adds --dry-run, as the argument `dry_run`."""
    return click.option("--dry-run", is_flag=True, help="only report, write nothing")(command)


def with_result(
    role: logs.Role = "cli", *, needs_kafka: bool = False, is_list: bool = False
) -> Callable[[Command], Command]:
    """Adds --output, of a list also as columns, and all that `with_settings` adds."""
    tables = ("arrow", "parquet") if is_list else ()

    def decorate(command: Command) -> Command:
        return with_output(with_settings(role, needs_kafka=needs_kafka)(command), *tables)

    return decorate


def with_writer(*, from_files: bool = False) -> Callable[[Command], Command]:
    """Adds all that `with_result` adds, for a command that writes to timer topics: it has the
    argument `writer`, a TimerWriter, in place of `settings`. `from_files`: it makes its records
    from the shard's files; outdated ones, which would bring a former state in again, are refused.
    """

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def writing(settings: Settings, **others: Any) -> Any:
            from duewheel.ops.changes.timer_writer import TimerWriter
            from duewheel.ops.shard.present_files import require_present_files

            if from_files:
                require_present_files(settings)
            with closing(TimerWriter(settings, SystemClock())) as writer:
                return command(writer=writer, **others)

        return with_result(needs_kafka=True)(writing)

    return decorate


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
            flags: Tables = {
                "kafka": {"bootstrap_servers": bootstrap_servers},
                "storage": {"data_dir": data_dir},
            }
            for pair in pairs:
                put(flags, pair)
            settings = load(config, flags)
            # This module has imported libraries of "dequeue" already.
            if (extra := of_command(_command())) != "dequeue":
                require(extra)
            _configure_logs(settings, role)
            kafka = _kafka(settings) if needs_kafka else nullcontext()
            with _explaining_no_room(settings), kafka:
                return command(settings=settings, **others)

        return with_loaded

    return decorate


def _configure_logs(settings: Settings, role: logs.Role) -> None:
    # A command's output is its result: the steps of a start are the log of a process.
    is_default = settings.source("log.level") == "default"
    level = "warning" if role == "cli" and is_default else settings.log.level
    logs.configure(role, level, settings.log.format)


def _command() -> str:
    """The name of the command, or of its group, after `duewheel`."""
    context = click.get_current_context()
    while context.parent is not None and context.parent.parent is not None:
        context = context.parent
    return context.info_name or ""


def _kafka(settings: Settings) -> AbstractContextManager[None]:
    from duewheel.ops.connection import require_kafka

    return require_kafka(settings)


@contextmanager
def _explaining_no_room(settings: Settings) -> Iterator[None]:
    data_dir = settings.storage.data_dir
    try:
        yield
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        folder = next(folder for folder in (data_dir, *data_dir.parents) if folder.exists())
        found = shutil.disk_usage(folder)
        of_shard = Path(str(error.filename or "")).is_relative_to(data_dir)
        if of_shard or found.free <= settings.storage.min_free.of(found.total):
            remedy = "make room there; storage.min_free reserves some"
        else:
            remedy = "the disk of the output or of temporary files is full, or a quota is used up"
        raise DiskFull(
            f"{error}: {found.free >> 20} of {found.total >> 20} MiB are free at {data_dir}: "
            f"{remedy}"
        ) from error
