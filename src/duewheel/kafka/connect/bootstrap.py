"""Checks that the bootstrap servers take connections and log a client in, and says why they do not.

kafka-python retries until its deadline whatever the servers reply, and names the reason of a
refusal in its log lines alone: a wrong port would cost half a minute, and a page of logs.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from kafka import KafkaAdminClient

from duewheel.config.settings import Settings
from duewheel.errors import KafkaUnavailable
from duewheel.kafka.connect.clients import LOGIN_S, KafkaClients
from duewheel.kafka.connect.deadline import Deadline
from duewheel.kafka.connect.login import SERVERS_AT_A_TIME, host_and_port, why_refused
from duewheel.kafka.connect.network_client import manager_of
from duewheel.threads import each_beside

_CONNECT_S = 3.0
REMEDY = "correct kafka.bootstrap_servers, name resolution or firewall"


def connect_errors(settings: Settings, seconds: float) -> list[tuple[str, str]]:
    """Connects to each server from this host; returns it with the system's error, or "". Returns
    nothing if the clients use a proxy: this host then need not reach them.
    """
    if settings.kafka.client.get("proxy_url") or settings.kafka.client.get("socks5_proxy"):
        return []
    servers = settings.kafka.bootstrap_servers
    return each_beside(
        "connect", lambda each: (each, _connect_error(each, seconds)), servers, SERVERS_AT_A_TIME
    )


def advertised_brokers(admin: KafkaAdminClient) -> list[tuple[int, str, int]]:
    """Id, host and port of every broker as the bootstrap server advertises them, by id.

    Works even if none of those addresses can be reached: no public call gets that far then.
    """
    brokers = manager_of(admin).cluster.brokers()
    return sorted((broker.node_id, broker.host, broker.port) for broker in brokers)


def why_unreachable(settings: Settings) -> str:
    """Each server's reason, if none takes a connection from this host; else ""."""
    by_server = connect_errors(settings, _CONNECT_S)
    if not by_server or not all(error for _, error in by_server):
        return ""
    reasons = "; ".join(f"{server}: {error}" for server, error in by_server)
    return f"Kafka takes no connections: {reasons}"


def require_connection(settings: Settings) -> None:
    """Refuses to go on if no server logs a client in.

    Raises:
        ConfigError: the servers refuse the client settings; with the reason.
        KafkaUnavailable: with each server's reason.
    """
    if unreachable := why_unreachable(settings):
        raise KafkaUnavailable(f"{unreachable} ({REMEDY})")
    client = KafkaClients(settings.kafka.client_options("admin"))
    made = client.attempts(Deadline(LOGIN_S))
    if any(not each.problem for each in made):
        return
    why = why_refused(made)
    if why:
        raise client.refused(why)
    reasons = "; ".join(f"{each.server}: {each.problem}" for each in made)
    raise KafkaUnavailable(f"Kafka answers no client: {client.options.redacted(reasons)}")


def _connect_error(server: str, seconds: float) -> str:
    try:
        socket.create_connection(host_and_port(server), seconds).close()
    except OSError as error:
        return str(error)
    return ""


class _LastError(logging.Handler):
    """Keeps the last log line about a failed connection."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        if line.startswith("Bootstrap connection to"):
            self.text = line


@contextmanager
def capture_errors() -> Iterator[_LastError]:
    """Captures the clients' log lines, for a caller who reports failures itself."""
    clients, errors = logging.getLogger("kafka"), _LastError()
    before = clients.propagate
    clients.propagate = False
    clients.addHandler(errors)
    try:
        yield errors
    finally:
        clients.removeHandler(errors)
        clients.propagate = before
