"""Commands that are the processes of a shard: `run`, `standby`, `ingest`, `dequeue`, `serve`; and
`relay`.
"""

from __future__ import annotations

import click

from duewheel.cli.command_help import CommandGroup, CommandWithExamples
from duewheel.cli.options import with_settings
from duewheel.config.settings import Settings

_TAKE_OVER = "--take-over"
_take_over = click.option(
    _TAKE_OVER,
    is_flag=True,
    help="take the shard over and read again from Kafka; use it if no other instance serves it",
)


class _Supervising(CommandWithExamples):
    """Keeps its flags for the child processes; the supervisor adds --take-over."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.obj = [word for word in args if word != _TAKE_OVER]
        return super().parse_args(ctx, args)


@click.command(cls=_Supervising)
@_take_over
@with_settings("run")
@click.pass_obj
def run(flags: list[str], settings: Settings, *, take_over: bool) -> int:
    """Run ingest and dequeue, and restart a process that dies."""
    from duewheel.runtime import supervisor

    return supervisor.run(settings, flags, take_over=take_over)


@click.command(cls=_Supervising)
@with_settings("run")
@click.pass_obj
def standby(flags: list[str], settings: Settings) -> int:
    """Run a standby of the shard, ready to take over.

    It has a data directory of its own. It takes over by itself when the owner has been silent for
    `shard.take_over_after`, and on `duewheel promote`. A directory that owns the shard already
    serves it, as `run` does.
    """
    from duewheel.runtime import supervisor

    return supervisor.run(settings, flags, standby=True)


@click.command(cls=CommandWithExamples)
@with_settings("ingest")
def ingest(settings: Settings) -> None:
    """Run only ingest: read timer topics into the wheel (Spark)."""
    from duewheel.runtime.ingest_process import run_ingest

    run_ingest(settings)


@click.command(cls=CommandWithExamples)
@_take_over
@click.option("--standby", is_flag=True, help="start as a standby of the shard: see `standby`")
@with_settings("dequeue")
def dequeue(settings: Settings, *, take_over: bool, standby: bool) -> None:
    """Run only dequeue: deliver due timers (no Spark, no Java)."""
    from duewheel.runtime.dequeue_process import run_dequeue

    run_dequeue(settings, take_over=take_over, standby=standby)


@click.command("serve", cls=CommandWithExamples)
@with_settings("serve")
def serve(settings: Settings) -> None:
    """Serve the HTTP API of the shard.

    Runs beside ingest and dequeue, and reads their files. Listens on loopback unless [serve] says
    otherwise. Changes need serve.token_file.
    """
    from duewheel.serve.server import run_serve

    run_serve(settings)


@click.group(cls=CommandGroup)
def relay() -> None:
    """Send the timers that applications write to a table."""


@relay.command("postgres")
@click.option("--name", default="outbox", help="of the relay: one runs under each name")
@with_settings("relay")
def relay_postgres(settings: Settings, name: str) -> None:
    """Send the rows of duewheel_outbox in PostgreSQL, each exactly once.

    A row is sent once the application's transaction has committed, and then deleted. Runs until it
    is stopped; `relay.database` names the database.
    """
    from duewheel.ops.relay.relay import run_relay
    from duewheel.osutil.signals import stop_signals

    with stop_signals() as stopping:
        run_relay(settings, name, stopping)
