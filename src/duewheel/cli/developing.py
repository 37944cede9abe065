"""Commands for a trial and for development: `demo`, `dev-broker`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from duewheel.cli.examples import CommandGroup, CommandWithExamples
from duewheel.cli.options import with_output
from duewheel.errors import ConfigError
from duewheel.osutil import logs


@click.group("dev-broker", cls=CommandGroup)
def dev_broker() -> None:
    """Run a single-node Kafka for development and tests."""


@dev_broker.command("run")
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="stays afterwards; by default a temporary one, which is removed",
)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="0: a free one")
@with_output
def dev_broker_run(data_dir: Path | None, port: int, output: str) -> None:
    """Start the broker, print its address once it is ready, and run until a signal stops it."""
    from duewheel.dev.broker import run_dev_broker

    logs.configure("cli")
    run_dev_broker(data_dir, port, output)


@click.command(cls=CommandWithExamples)
@click.option("--timers", type=click.IntRange(1), default=3_000, help="how many")
@click.option("--over", default="20s", help="the span of the due times")
@click.option("--seed", type=int, default=1, help="of delays, keys and header forms")
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="stays afterwards; by default a temporary one, which is removed",
)
@click.option("--bootstrap-servers", help="an existing Kafka; by default the demo starts one")
@with_output
def demo(
    timers: int,
    over: str,
    seed: int,
    data_dir: Path | None,
    bootstrap_servers: str | None,
    output: str,
) -> int:
    """Schedule timers on a real Kafka, and check each delivery."""
    from duewheel.config.durations import parse_duration_ms
    from duewheel.dev.demo import Demo

    logs.configure("cli", "warning")
    try:
        over_ms = parse_duration_ms(over)
    except ValueError as error:
        raise ConfigError(f"--over: {error}") from error
    verdict = Demo(timers, over_ms, seed, data_dir, bootstrap_servers).run()
    if output == "json":
        click.echo(json.dumps(verdict))
    return 0 if verdict["ok"] else 1
