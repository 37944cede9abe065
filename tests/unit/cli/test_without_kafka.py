"""Commands that need Kafka, and find none."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from duewheel.dev.broker import HOST, free_ports
from duewheel.errors import KafkaUnavailable

COMMANDS = {
    "init": [],
    "audit": [],
    "dlq list": [],
    "send": ["--topic", "a", "--value", "b", "--delay", "1s"],
}


@pytest.fixture
def hanging_up() -> Iterator[int]:
    """The port of a server that takes connections and closes them."""
    with socket.create_server((HOST, 0)) as server:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    server.accept()[0].close()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            # A closed socket would leave `accept` waiting.
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def config(path: Path, port: int) -> Path:
    file = path / "duewheel.toml"
    file.write_text(
        f'[app]\nid = "app"\n[kafka]\nbootstrap_servers = "{HOST}:{port}"\n'
        f'[timer]\ntopics = ["timers"]\n[storage]\ndata_dir = "{path / "data"}"\n'
        '[dequeue]\ncall_deadline = "1s"\n'
    )
    return file


def run(path: Path, port: int, command: str) -> subprocess.CompletedProcess[str]:
    line = [*command.split(), *COMMANDS[command], "--config", str(config(path, port))]
    return subprocess.run(
        [sys.executable, "-P", "-m", "duewheel", *line], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_a_port_without_server_is_one_line(command: str, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    ended = run(tmp_path, port, command)
    (line,) = ended.stderr.splitlines()
    assert f"Kafka takes no connections: {HOST}:{port}: [Errno 111] Connection refused" in line
    assert ended.returncode == KafkaUnavailable.exit_code


def test_the_clients_last_error_is_in_the_line(tmp_path: Path, hanging_up: int) -> None:
    ended = run(tmp_path, hanging_up, "dlq list")
    (line,) = ended.stderr.splitlines()
    assert f"Kafka at {HOST}:{hanging_up}" in line
    assert "last log line: Bootstrap connection to" in line
    assert ended.returncode == KafkaUnavailable.exit_code
