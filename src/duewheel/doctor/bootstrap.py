"""Checks that the bootstrap servers take connections, and let a client through.

kafka-python retries until its deadline whatever the servers reply. The reason of a refusal appears
only in its log lines, so `listening` captures these while a client is opened.
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
_REMEDY = "mend kafka.bootstrap_servers, name resolution or firewall"


class _LastWords(logging.Handler):
    """Keeps the last line about a connection that failed."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        if line.startswith("Bootstrap connection to"):
            self.text = line


def examine(settings: Settings) -> Iterator[Diagnosis]:
    """Each server by itself, from this host; not where a proxy stands between."""
    if settings.kafka.client.get("proxy_url") or settings.kafka.client.get("socks5_proxy"):
        return
    seconds = settings.dequeue.call_deadline.total_seconds()
    servers = settings.kafka.bootstrap_servers
    with ThreadPoolExecutor(_AT_A_TIME) as pool:
        yield from check(
            list(pool.map(lambda server: (server, _refusal(server, seconds)), servers))
        )


def check(refusals: Sequence[tuple[str, str]]) -> Iterator[Diagnosis]:
    """Findings on servers, each with its defect or "". Without a good server it is UNREACHABLE."""
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


def not_through(client: ClientSettings, error: DuewheelError, last_words: str) -> Diagnosis:
    """The servers take connections, and no client gets through."""
    last = f"; last log line: {client.redacted(last_words)}" if last_words else ""
    return Diagnosis(
        "kafka_refuses",
        "error",
        client.address,
        f"takes connections, and lets no client through: {error}{last}",
        "mend [kafka.client]: a broker that disconnects wants another security_protocol, or knows "
        "no such user and password",
    )


@contextmanager
def listening() -> Iterator[_LastWords]:
    """Capture the clients' log lines: failures become findings, and some are expected."""
    clients, words = logging.getLogger("kafka"), _LastWords()
    before = clients.propagate
    clients.propagate = False
    clients.addHandler(words)
    try:
        yield words
    finally:
        clients.removeHandler(words)
        clients.propagate = before
