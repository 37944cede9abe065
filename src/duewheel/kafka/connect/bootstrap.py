"""Checks, before a command begins, that a bootstrap server logs a client in.

kafka-python retries until its deadline whatever the servers reply, and names the reason of a
refusal in its log lines alone: a wrong port would cost half a minute, and a page of logs.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from kafka import KafkaAdminClient

from duewheel.config.settings import Settings
from duewheel.deadline import Deadline
from duewheel.kafka.connect.clients import LOGIN_S, KafkaClients
from duewheel.kafka.connect.network_client import manager_of


def advertised_brokers(admin: KafkaAdminClient) -> list[tuple[int, str, int]]:
    """Id, host and port of every broker as the bootstrap server advertises them, by id.

    Works even if none of those addresses can be reached: no public call gets that far then.
    """
    brokers = manager_of(admin).cluster.brokers()
    return sorted((broker.node_id, broker.host, broker.port) for broker in brokers)


def require_connection(settings: Settings, seconds: float = LOGIN_S) -> None:
    """Refuses to go on if no server logs a client in, as KafkaClients.require_login."""
    KafkaClients(settings.kafka.client_options("admin")).require_login(Deadline(seconds))


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
