"""Makes findings of the bootstrap servers: whether they take connections, and accept a client."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from duewheel.api.examination import UNREACHABLE
from duewheel.config.settings import Settings
from duewheel.doctor.findings import Diagnosis
from duewheel.errors import ConfigError, DuewheelError
from duewheel.kafka.connect.bootstrap import REMEDY, refusals
from duewheel.kafka.connect.clients import ClientSettings


def examine(settings: Settings) -> Iterator[Diagnosis]:
    """Connects to each server from this host; skipped if the clients use a proxy."""
    yield from check(refusals(settings, settings.dequeue.call_deadline.total_seconds()))


def check(by_server: Sequence[tuple[str, str]]) -> Iterator[Diagnosis]:
    """Makes a finding for each server with its defect or ""; UNREACHABLE if all have one."""
    if by_server and all(refusal for _, refusal in by_server):
        servers = ",".join(server for server, _ in by_server)
        reasons = "; ".join(dict.fromkeys(refusal for _, refusal in by_server))
        yield Diagnosis(UNREACHABLE, "error", servers, f"takes no connections: {reasons}", REMEDY)
        return
    for server, refusal in by_server:
        if refusal:
            defect = f"takes no connections: {refusal}"
            yield Diagnosis("bootstrap_server", "warning", server, defect, REMEDY)
        else:
            yield Diagnosis("bootstrap_server", "ok", server, "takes connections")


def not_through(client: ClientSettings, error: DuewheelError, last_error: str) -> Diagnosis:
    """Makes the finding of servers that take connections and accept no client."""
    if isinstance(error, ConfigError):  # it says which setting is wrong
        remedy = "correct [kafka.client]"
        return Diagnosis("kafka_refuses", "error", client.address, str(error), remedy)
    last = f"; last log line: {client.redacted(last_error)}" if last_error else ""
    found = f"takes connections, but accepts no client: {error}{last}"
    remedy = "the log of the brokers has the reason"
    return Diagnosis("kafka_refuses", "error", client.address, found, remedy)
