"""Starts duewheel as a program, waits for conditions, and shows its log if one does not come true.

Every program dies with the test process, however that ends: see `Child`. A test that launches one
ends it, too, or the next test shares the processors with it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.harness.command_forks import run_command
from tests.harness.patience import Patience

from duewheel.osutil.child_process import Child

DEADLINE_S = 180.0  # a start of Spark on a busy host takes a minute
COMMAND_S = 600.0  # an audit yields to all else: beside simulations one has taken 175 s
LOG_BYTES = 6000  # of a log, in the message of a failure


def line(config: Path, *words: str) -> list[str]:
    """The command line of `duewheel`."""
    return [sys.executable, "-P", "-m", "duewheel", *words, "--config", str(config)]


def launch(
    config: Path,
    *words: str,
    log: Path | None = None,
    cwd: Path | None = None,
    on_parent_death: signal.Signals = signal.SIGKILL,
    niceness: int = 0,
) -> Child:
    """Start a command that stays.

    Args:
        config: its configuration.
        words: the command and its options.
        log: what it prints is appended there; by default `<command>.log` beside the configuration.
        cwd: its working directory; ours by default.
        on_parent_death: what ends it if the test does not.
        niceness: added to ours.
    """
    path = log or config.with_name(f"{words[0]}.log")
    with path.open("ab") as out:
        command = ["/usr/bin/nice", "-n", str(niceness), *line(config, *words)]
        if cwd is not None:
            command = ["/usr/bin/env", "-C", str(cwd), *command]
        return Child(command, stdout=out, stderr=out, on_parent_death=on_parent_death)


def run(config: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A command that ends by itself, whatever its exit code is."""
    return run_command([*words, "--config", str(config)], COMMAND_S)


def objects(config: Path, *words: str) -> tuple[int, list[Any]]:
    """Exit code, 0 or 1, and the JSON objects that a command prints."""
    done = run(config, *words, "--output", "json")
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, [json.loads(each) for each in done.stdout.splitlines()]


def tail(log: Path) -> str:
    """The end of a log."""
    return log.read_text()[-LOG_BYTES:] if log.exists() else ""


def events(log: Path, event: str) -> list[dict[str, Any]]:
    """The lines of a JSON log with this text; a line that is being written is left out."""
    lines = log.read_text().splitlines(keepends=True) if log.exists() else []
    whole = [
        each for each in lines if event in each and each.startswith("{") and each.endswith("}\n")
    ]
    return [found for each in whole if (found := json.loads(each)).get("event") == event]


def wait_until(
    condition: Callable[[], object],
    what: str | Callable[[], str],
    seconds: float = DEADLINE_S,
    every_s: float = 0.05,
) -> None:
    """Wait until something is so.

    Args:
        condition: looked at again and again.
        what: did not come true; a function is called for it at the end, to show a log.
        seconds: how long at most, on a host that is free (patience.py).
        every_s: between two looks.

    Raises:
        AssertionError: it never was.
    """
    patience = Patience(seconds)
    while not condition():
        assert not patience.is_over(), what if isinstance(what, str) else what()
        time.sleep(every_s)


@contextmanager
def paused(*pids: int) -> Iterator[None]:
    """Processes that do nothing for a while, as in a long collection, or as their host is moved."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
