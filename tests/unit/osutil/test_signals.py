"""Signals that end a command: its exit code, whatever comes while it cleans up and ends."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import os, signal, sys
from duewheel.osutil.signals import interruptible

number = int(sys.argv[1])
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # `nohup` has it ignored
try:
    with interruptible():
        try:
            os.kill(os.getpid(), number)
        finally:
            os.kill(os.getpid(), number)
            print("cleaned up")
except KeyboardInterrupt:
    os.kill(os.getpid(), number)
    sys.exit(130)
"""


@pytest.mark.parametrize("number", [1, 2, 15])
def test_only_the_first_signal_counts(number: int) -> None:
    command = [sys.executable, "-P", "-c", PROGRAM, str(number)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (130, "cleaned up\n"), done.stderr
