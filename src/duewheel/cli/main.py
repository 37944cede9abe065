"""The command line: results go to stdout, logs to stderr; `--output json` is for programs.

Exit codes: errors.py; every help has them.

Invariant: each command imports its heavy modules itself. An import at the top would load Spark,
pandas and Great Expectations into the dequeue process and `status`.
"""

from __future__ import annotations

import click

from duewheel import __version__
from duewheel.cli import (
    changes,
    developing,
    file_import,
    processes,
    recovery,
    schedules,
    shard,
    timers,
    topics,
)
from duewheel.cli.command_groups import GroupedCommands
from duewheel.cli.dead_letters import dlq
from duewheel.cli.exit_code import run_to_the_end
from duewheel.cli.receipts import receipts
from duewheel.cli.reconfigure import config, reconfigure


def main() -> None:
    """Runs the command line and ends the process with its exit code."""
    run_to_the_end(cli)


@click.group(cls=GroupedCommands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="duewheel")
def cli() -> None:
    """Delivers Kafka messages later: never early, exactly once."""


# In the order of --help, and of the reference (docs/commands.md).
cli.add_commands(
    "Run a shard",
    *(topics.init, processes.run, processes.standby, shard.pause, shard.resume),
    *(processes.ingest, processes.dequeue),
)
cli.add_commands(
    "Look",
    *(shard.status, shard.health, timers.stats, timers.list_timers, timers.show_timers, receipts),
    *(processes.serve, shard.check, shard.doctor, shard.audit, config),
)
cli.add_commands(
    "Send and change timers",
    *(changes.send, file_import.send_lines, file_import.import_),
    *(changes.cancel, changes.cancel_matching, changes.reschedule),
    *(schedules.schedule, processes.relay),
)
cli.add_commands("Change a shard", reconfigure, shard.reshard)
cli.add_commands("Recover", recovery.recover, shard.promote, dlq)
cli.add_commands("Try it", developing.demo, developing.prove, developing.dev_broker, topics.topic)
