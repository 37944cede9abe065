"""The command line: results go to stdout, logs to stderr; `--output json` is for programs.

Exit codes: errors.py; every help has them.

Invariant: a command loads the module that has it, and no other: the models of all commands take a
tenth of a second. In `processes`, `shard` and `developing` each command imports its package itself:
an import at the top would load Spark, pandas and Great Expectations into dequeue and `status`. So
do the options of writers and of Kafka, whose modules `status` imports, too.
"""

from __future__ import annotations

import click

from duewheel import __version__
from duewheel.cli.command_groups import GroupedCommands
from duewheel.cli.exit_code import run_to_the_end

# In the order of --help, and of the reference (docs/commands.md): module and help of each.
COMMANDS = {
    "Run a shard": {
        "init": ("topics", "Create or check duewheel's topics, and begin a new shard."),
        "run": ("processes", "Run ingest and dequeue, and restart a process that dies."),
        "standby": ("processes", "Run a standby of the shard, ready to take over."),
        "pause": ("shard", "Pause ingest or dequeue, or the deliveries of one topic or tag."),
        "resume": ("shard", "End a pause."),
        "ingest": ("processes", "Run only ingest: read timer topics into the wheel (Spark)."),
        "dequeue": ("processes", "Run only dequeue: deliver due timers (no Spark, no Java)."),
    },
    "Look": {
        "status": ("shard", "Show the state of the shard, from its data directory."),
        "health": ("shard", "Show whether the shard is ready: for health checks."),
        "stats": ("timers", "Count pending timers by target, level and seconds to wait."),
        "list": ("timers", "List pending timers in the order in which they leave."),
        "show": ("timers", "Show pending timers by recall handle, or by id."),
        "receipts": ("receipts", "Show which timers were delivered: when, where, how late."),
        "serve": ("processes", "Serve the HTTP API of the shard."),
        "check": ("shard", "Verify all files on disk."),
        "doctor": ("shard", "Examine host and cluster; print each finding with its remedy."),
        "audit": (
            "shard",
            "Check that ingest accepts and rejects messages as the documented rules say.",
        ),
        "config": ("reconfigure", "Check the configuration."),
    },
    "Send and change timers": {
        "send": ("changes", "Schedule one message."),
        "send-lines": ("file_import", "Schedule a message for each line of FILE; `-` is stdin."),
        "import": ("file_import", "Schedule a message for each line of FILE, exactly once."),
        "cancel": ("changes", "Cancel timers by recall handle, or by id."),
        "cancel-matching": ("changes", "Cancel all pending timers that match the options."),
        "reschedule": ("changes", "Replace timers by a new one."),
        "schedule": ("schedules", "Set, list, pause and stop recurring schedules."),
        "relay": ("processes", "Send the timers that applications write to a table."),
    },
    "Change a shard": {
        "reconfigure": ("reconfigure", "Apply changed settings from the next message on."),
        "reshard": ("shard", "Reassign partitions to another number of shards."),
    },
    "Recover": {
        "recover": (
            "recovery",
            "Report which files the next start would keep, and which messages it would read again.",
        ),
        "promote": ("shard", "Make this directory's standby take over, and wait for that."),
        "dlq": ("dead_letters", "List and replay dead letters."),
    },
    "Try it": {
        "demo": ("developing", "Schedule timers on a real Kafka, and check each delivery."),
        "prove": ("developing", "Prove the guarantees on your cluster: load, kill -9, a verdict."),
        "dev-broker": ("developing", "Run a single-node Kafka for development and tests."),
        "topic": ("topics", "Create a topic, or read one."),
    },
}


def main() -> None:
    """Runs the command line and ends the process with its exit code."""
    run_to_the_end(cli)


@click.group(
    cls=GroupedCommands,
    headings=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="duewheel")
def cli() -> None:
    """Delivers Kafka messages later: never early, exactly once."""
