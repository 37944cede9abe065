"""Passes the output of a child process on as log lines.

A JVM prints warnings before its logger works, and Spark's Python processes print tracebacks: such
lines among the JSON lines of a log would stop its parser. A line in the form of our logs passes
unchanged; any other becomes the field `line` of one.
"""

from __future__ import annotations

import os
import sys

import structlog

from duewheel.threads import Worker

_OURS = ('{"ts":', "ts=")  # beginnings of our lines: osutil/logs.py
# Printed at each start of Spark, whatever its settings.
_EXPECTED = ("WARNING: Using incubator modules: jdk.incubator.vector",)

log = structlog.get_logger(__name__)


class LogRelay:
    """The pipe that a child writes to, and the thread that reads it until all writers have ended.

    Example:
        relay = LogRelay("jvm")
        …                           # start the child with relay.write_end as its output
        relay.close_write_end()
    """

    def __init__(self, name: str) -> None:
        """Starts to read. Log lines have the name of the child."""
        self._name = name
        self._read_end, self.write_end = os.pipe()
        self._thread = Worker(f"output of {name}", self._read)
        self._thread.start()

    def close_write_end(self) -> None:
        """Call this once the child has its own copy: only then can its end be noticed."""
        os.close(self.write_end)

    def join(self, timeout_s: float) -> None:
        """Waits until the child has ended and its last line is passed on."""
        self._thread.join(timeout_s)

    def _read(self) -> None:
        with os.fdopen(self._read_end, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                self._pass_on(line.rstrip())

    def _pass_on(self, line: str) -> None:
        if line.startswith(_OURS):
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()
        elif line and line not in _EXPECTED:
            log.warning("a child has printed", child=self._name, line=line)
