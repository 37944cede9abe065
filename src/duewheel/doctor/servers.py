"""Makes findings of the bootstrap servers: whether they log a client in."""

from __future__ import annotations

from collections.abc import Sequence

from duewheel.api.examination import UNREACHABLE, DoctorFinding
from duewheel.deadline import Deadline
from duewheel.doctor.cluster import Cluster
from duewheel.doctor.findings import REFUSES, Check, Ended, Findings
from duewheel.doctor.remedies import BROKERS_LOG, CLIENT_SETTINGS, SETTINGS_OR_LISTENER
from duewheel.errors import ConfigError, DuewheelError, KafkaUnavailable
from duewheel.kafka.connect.bootstrap import capture_errors
from duewheel.kafka.connect.clients import KafkaClients
from duewheel.kafka.connect.login import LoginAttempt, require_one

_REMEDY = "correct kafka.bootstrap_servers, name resolution or firewall"


def examine(cluster: Cluster) -> Findings:
    """Logs in to each server, then connects as a client.

    Raises:
        Ended: none logs a client in, or the client gets no further.
    """
    call_s = cluster.settings.dequeue.call_deadline.total_seconds()
    yield from check_servers(cluster.clients, cluster.clients.attempts(Deadline(call_s)))
    with capture_errors() as errors:
        try:
            cluster.reader.call("connect", lambda _: None)
        except DuewheelError as error:
            raise Ended(client_refused(cluster.clients, error, errors.text)) from error


def check_servers(clients: KafkaClients, made: Sequence[LoginAttempt]) -> Findings:
    """Makes a finding of each server's attempt.

    Raises:
        Ended: all have failed.
    """
    try:
        require_one(made)
    except ConfigError as error:
        raise Ended(client_refused(clients, error, "")) from error
    except KafkaUnavailable as error:
        raise Ended(Check(UNREACHABLE, clients.address).error(str(error), _REMEDY)) from error
    for each in made:
        check = Check("bootstrap_server", each.server)
        if each.problem:
            remedy = SETTINGS_OR_LISTENER if each.is_refusal else _REMEDY
            yield check.warning(f"logs no client in: {each.problem}", remedy)
        else:
            yield check.ok("logs a client in")


def client_refused(clients: KafkaClients, error: DuewheelError, last_error: str) -> DoctorFinding:
    """Makes the finding of servers that can be reached and accept no client."""
    check = Check(REFUSES, clients.address)
    if isinstance(error, ConfigError):
        return check.error(str(error), CLIENT_SETTINGS)
    last = f"; last log line: {clients.options.redacted(last_error)}" if last_error else ""
    return check.error(f"logs a client in, but serves none: {error}{last}", BROKERS_LOG)
