"""Makes findings of the bootstrap servers: whether they take connections, and accept a client."""

from __future__ import annotations

from collections.abc import Sequence

from duewheel.api.examination import UNREACHABLE, DoctorFinding
from duewheel.doctor.cluster import Cluster
from duewheel.doctor.findings import Check, Ended, Findings
from duewheel.errors import ConfigError, DuewheelError
from duewheel.kafka.connect.bootstrap import REMEDY, capture_errors, connect_errors
from duewheel.kafka.connect.clients import KafkaClients


def examine(cluster: Cluster) -> Findings:
    """Connects to each server from this host, unless the clients use a proxy; then as a client.

    Raises:
        Ended: none takes a connection, or accepts the client.
    """
    call_s = cluster.settings.dequeue.call_deadline.total_seconds()
    yield from check_servers(connect_errors(cluster.settings, call_s))
    with capture_errors() as errors:
        try:
            cluster.reader.call("connect", lambda _: None)
        except DuewheelError as error:
            raise Ended(client_refused(cluster.clients, error, errors.text)) from error


def check_servers(by_server: Sequence[tuple[str, str]]) -> Findings:
    """Makes a finding for each server with its error or "".

    Raises:
        Ended: all have one.
    """
    if by_server and all(error for _, error in by_server):
        servers = ",".join(server for server, _ in by_server)
        reasons = "; ".join(dict.fromkeys(error for _, error in by_server))
        found = f"takes no connections: {reasons}"
        raise Ended(Check(UNREACHABLE, servers).error(found, REMEDY))
    for server, error in by_server:
        check = Check("bootstrap_server", server)
        if error:
            yield check.warning(f"takes no connections: {error}", REMEDY)
        else:
            yield check.ok("takes connections")


def client_refused(clients: KafkaClients, error: DuewheelError, last_error: str) -> DoctorFinding:
    """Makes the finding of servers that take connections and accept no client."""
    check = Check("kafka_refuses", clients.address)
    if isinstance(error, ConfigError):  # it says which setting is wrong
        return check.error(str(error), "correct [kafka.client]")
    last = f"; last log line: {clients.options.redacted(last_error)}" if last_error else ""
    found = f"takes connections, but accepts no client: {error}{last}"
    return check.error(found, "the log of the brokers has the reason")
