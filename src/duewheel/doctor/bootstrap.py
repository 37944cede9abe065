"""Checks that the bootstrap servers take connections, and accept a client.

kafka-python retries until its deadline whatever the servers reply. The reason of a refusal appears
only in its log lines, so `capture_errors` captures these while a client is opened.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from duewheel.config.settings import Settings
from duewheel.doctor.findings import UNREACHABLE, Diagnosis
from duewheel.errors import DuewheelError
from duewheel.kafka.clients import ClientSettings

_AT_A_TIME = 16
_REMEDY = "correct kafka.bootstrap_servers, name resolution or firewall"


class _LastError(logging.Handler):
    """Keeps the last log line about a failed connection."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        if line.startswith("Bootstrap connection to"):
            self.text = line


def examine(settings: Settings) -> Iterator[Diagnosis]:
    """Connects to each server from this host; skipped if the clients use a proxy."""
    if settings.kafka.client.get("proxy_url") or settings.kafka.client.get("socks5_proxy"):
        return
    seconds = settings.dequeue.call_deadline.total_seconds()
    servers = settings.kafka.bootstrap_servers
    with ThreadPoolExecutor(_AT_A_TIME) as pool:
        yield from check(
            list(pool.map(lambda server: (server, _refusal(server, seconds)), servers))
        )


def check(refusals: Sequence[tuple[str, str]]) -> Iterator[Diagnosis]:
    """Makes a finding for each server with its defect or ""; UNREACHABLE if all have one."""
    if all(refusal for _, refusal in refusals):
        servers = ",".join(server for server, _ in refusals)
        found = "; ".join(dict.fromkeys(refusal for _, refusal in refusals))
        yield Diagnosis(UNREACHABLE, "error", servers, f"takes no connections: {found}", _REMEDY)
        return
    for server, refusal in refusals:
        if refusal:
            found = f"takes no connections: {refusal}"
            yield Diagnosis("bootstrap_server", "warning", server, found, _REMEDY)
        else:
            yield Diagnosis("bootstrap_server", "ok", server, "takes connections")


def _refusal(server: str, seconds: float) -> str:
    host, _, port = server.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), seconds).close()
    except OSError as error:
        return str(error)
    return ""


def not_through(client: ClientSettings, error: DuewheelError, last_error: str) -> Diagnosis:
    """Makes the finding of servers that take connections and accept no client."""
    last = f"; last log line: {client.redacted(last_error)}" if last_error else ""
    return Diagnosis(
        "kafka_refuses",
        "error",
        client.address,
        f"takes connections, but accepts no client: {error}{last}",
        "correct [kafka.client]: a broker that disconnects needs another security_protocol, or has "
        "no such user with this password",
    )


@contextmanager
def capture_errors() -> Iterator[_LastError]:
    """Captures the clients' log lines: failures become findings, and some are expected."""
    clients, errors = logging.getLogger("kafka"), _LastError()
    before = clients.propagate
    clients.propagate = False
    clients.addHandler(errors)
    try:
        yield errors
    finally:
        clients.removeHandler(errors)
        clients.propagate = before
