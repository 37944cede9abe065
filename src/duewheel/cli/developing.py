"""Commands for a trial and for development: `demo`, `prove`, `dev-broker`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from duewheel.cli.examples import CommandGroup, CommandWithExamples
from duewheel.cli.options import with_output, with_result
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError
from duewheel.osutil import logs

_TIMERS_A_SECOND = 100
_KILL_EVERY_S = 30.0


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
@click.option(
    "--sasl-ssl",
    is_flag=True,
    help="with TLS and a password; client.toml in the data directory has what clients need",
)
@with_output
def dev_broker_run(data_dir: Path | None, port: int, sasl_ssl: bool, output: str) -> None:
    """Start the broker, print its address once it is ready, and run until a signal stops it."""
    from duewheel.dev.broker import run_dev_broker

    logs.configure("cli")
    run_dev_broker(data_dir, port, output, sasl_ssl=sasl_ssl)


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


@click.command(cls=CommandWithExamples)
@click.option("--minutes", type=click.FloatRange(0.1, 1440), default=3.0, help="of load")
@click.option(
    "--timers",
    type=click.IntRange(100, 1_000_000),
    help="how many, spread over the minutes; by default 100 a second",
)
@click.option(
    "--kills", type=click.IntRange(0, 1000), help="how many; by default one for each half minute"
)
@click.option("--seed", type=int, default=1, help="of delays, contents and kills")
@click.option("--prefix", default="duewheel-prove", help="of all names in Kafka")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    default=Path("prove.html"),
    help="the page with the verdict",
)
@with_result(needs_kafka=True)
def prove(
    settings: Settings,
    minutes: float,
    timers: int | None,
    kills: int | None,
    seed: int,
    prefix: str,
    out: Path,
    output: str,
) -> int:
    """Prove the guarantees on your cluster: load, kill -9, a verdict.

    Runs a shard of its own, with topics that it creates and deletes; it touches nothing else.
    """
    from duewheel.prove.own_topics import require_prefix
    from duewheel.prove.plan import ProofPlan
    from duewheel.prove.proof import Proof
    from duewheel.prove.report import page, summary

    require_prefix(prefix)
    if not os.access(out.absolute().parent, os.W_OK):
        raise ConfigError(f"--out {out}: {out.absolute().parent} is no directory to write to")
    length_s = minutes * 60
    count = _TIMERS_A_SECOND * length_s if timers is None else timers
    planned = max(1, round(length_s / _KILL_EVERY_S)) if kills is None else kills
    plan = ProofPlan(length_s, min(round(count), 1_000_000), planned, seed)
    result = Proof(settings, plan, prefix).run()
    out.write_text(page(result), "utf-8")
    if output == "json":
        click.echo(json.dumps(result.as_json()))
    else:
        click.echo(f"{summary(result)}\n{out.absolute()}")
    return 0 if result.ok and not result.left else 1
