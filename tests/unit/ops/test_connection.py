"""Commands that need Kafka, and find none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.harness.small_servers import hangs_up, server, speaks_tls

from duewheel.dev.listeners import HOST, free_ports
from duewheel.errors import ConfigError, KafkaUnavailable

COMMANDS = {
    "init": [],
    "audit": [],
    "dlq list": [],
    "pause": ["--target", "a"],
    "resume": ["--tag", "a"],
    "relay postgres": [],
    "send": ["--target", "a", "--value", "b", "--delay", "1s"],
}


def config(path: Path, address: str) -> Path:
    file = path / "duewheel.toml"
    file.write_text(
        f'[app]\nid = "app"\n[kafka]\nbootstrap_servers = "{address}"\n'
        f'[timer]\ntopics = ["timers"]\n[storage]\ndata_dir = "{path / "data"}"\n'
        '[dequeue]\ncall_deadline = "1s"\n'
    )
    return file


def run(path: Path, address: str, command: str) -> subprocess.CompletedProcess[str]:
    line = [*command.split(), *COMMANDS[command], "--config", str(config(path, address))]
    return subprocess.run(
        [sys.executable, "-P", "-m", "duewheel", *line], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_a_port_without_server_is_one_line(command: str, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    ended = run(tmp_path, f"{HOST}:{port}", command)
    (line,) = ended.stderr.splitlines()
    assert f"Kafka answers no client: {HOST}:{port}: Connection refused (ECONNREFUSED)" in line
    assert ended.returncode == KafkaUnavailable.exit_code


def test_a_server_that_hangs_up_is_one_line(tmp_path: Path) -> None:
    with server(hangs_up) as address:
        ended = run(tmp_path, address, "dlq list")
    (line,) = ended.stderr.splitlines()
    assert f"Kafka answers no client: {address}: " in line
    assert ended.returncode == KafkaUnavailable.exit_code


def test_settings_that_the_brokers_refuse_are_one_line(tmp_path: Path) -> None:
    with server(speaks_tls) as address:
        ended = run(tmp_path, address, "send")
    (line,) = ended.stderr.splitlines()
    assert f"{address} speaks TLS: security_protocol is PLAINTEXT" in line
    assert ended.returncode == ConfigError.exit_code
