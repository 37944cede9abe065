"""Commands for a trial and for development: `demo`, `prove`, `dev-broker`."""

from __future__ import annotations

import os
from pathlib import Path

import click

from duewheel.cli.command_help import CommandGroup, CommandWithExamples
from duewheel.cli.options import DURATION_MS, with_output, with_result
from duewheel.cli.output import Printer
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError
from duewheel.osutil import logs

_data_dir = click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="stays afterwards; by default a temporary one, which is removed",
)


@click.group("dev-broker", cls=CommandGroup)
def dev_broker() -> None:
    """Run a single-node Kafka for development and tests."""


@dev_broker.command("run")
@_data_dir
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="0: a free one")
@click.option(
    "--sasl-ssl",
    is_flag=True,
    help="with TLS and a password; client.toml in the data directory has what clients need",
)
@with_output
def dev_broker_run(data_dir: Path | None, port: int, sasl_ssl: bool, output: Printer) -> None:
    """Start the broker, print its address once it is ready, and run until a signal stops it."""
    from duewheel.dev.broker import run_dev_broker

    logs.configure("cli")
    run_dev_broker(data_dir, port, sasl_ssl=sasl_ssl, as_json=output.is_json)


@click.command(cls=CommandWithExamples)
@click.option("--timers", type=click.IntRange(1), default=3_000, help="how many")
@click.option("--over", "over_ms", type=DURATION_MS, default="20s", help="span of the due times")
@click.option("--seed", type=int, default=1, help="of delays, keys and header forms")
@_data_dir
@click.option("--bootstrap-servers", help="an existing Kafka; by default the demo starts one")
@with_output
def demo(
    timers: int,
    over_ms: int,
    seed: int,
    data_dir: Path | None,
    bootstrap_servers: str | None,
    output: Printer,
) -> int:
    """Schedule timers on a real Kafka, and check each delivery."""
    from duewheel.dev.demo import Demo

    logs.configure("cli", "warning")
    verdict = Demo(timers, over_ms, seed, data_dir, bootstrap_servers).run()
    output.show(verdict, ())  # Demo has printed the text
    return 0 if verdict["ok"] else 1


@click.command(cls=CommandWithExamples)
@click.option("--minutes", type=click.FloatRange(0.1, 1440), default=3.0, help="length of the load")
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
    output: Printer,
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
    result = Proof(settings, ProofPlan.of(minutes * 60, timers, kills, seed), prefix).run()
    out.write_text(page(result), "utf-8")
    output.show(result.as_json(), [summary(result), str(out.absolute())])
    return 0 if result.ok and not result.left else 1
