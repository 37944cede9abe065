"""The output of a child between the lines of a JSON log."""

from __future__ import annotations

import json
import subprocess
import sys

from duewheel.osutil import logs

OURS = '{"ts": "2027-01-15T08:00:00.000Z", "level": "warning", "role": "ingest", "event": "x"}'
PRINTED = f"""
WARNING: Using incubator modules: jdk.incubator.vector
WARNING: sun.misc.Unsafe will be removed
{OURS}
Traceback (most recent call last):
"""

# In a process of its own: the configuration of logs is that of the process.
PROGRAM = """
import os, sys
from duewheel.osutil import logs
from duewheel.osutil.log_relay import LogRelay
logs.configure("ingest", format=sys.argv[1])
relay = LogRelay("jvm")
os.write(relay.write_end, sys.argv[2].encode() + b"\\xff without an end")
relay.close_write_end()
relay.join(60)
"""


def relayed(format: str) -> list[str]:
    command = [sys.executable, "-P", "-c", PROGRAM, format, PRINTED]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=120
    ).stderr.splitlines()


def test_each_line_of_a_json_log_is_json() -> None:
    lines = [json.loads(line) for line in relayed("json")]
    assert lines[1] == json.loads(OURS)
    assert [line["line"] for line in lines if line["event"] == "a child has printed"] == [
        "WARNING: sun.misc.Unsafe will be removed",
        "Traceback (most recent call last):",
        "\N{REPLACEMENT CHARACTER} without an end",
    ]


def test_the_lines_of_the_jvm_are_known_by_their_begin() -> None:
    assert logs.jvm_pattern("ingest", "json").startswith('{"ts":')
    assert logs.jvm_pattern("ingest", "text").startswith("ts=")
