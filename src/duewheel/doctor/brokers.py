"""Checks each broker: its advertised address, its APIs and version, its settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kafka import KafkaAdminClient
from kafka.errors import UnsupportedVersionError

from duewheel.api.examination import UNREACHABLE, DoctorFinding
from duewheel.doctor import apis
from duewheel.doctor.cluster import Cluster
from duewheel.doctor.findings import REFUSES, Check, Ended, Findings
from duewheel.doctor.remedies import SETTINGS_OR_LISTENER, KafkaCommands, of_failure
from duewheel.errors import ConfigError, DuewheelError
from duewheel.kafka import shard_settings
from duewheel.kafka.connect.bootstrap import advertised_brokers
from duewheel.kafka.ledger.producer_internals import OLDEST_BROKER
from duewheel.kafka.topics.description import read_settings
from duewheel.kafka.transaction_limits import TransactionLimits
from duewheel.threads import each_beside

_AT_A_TIME = 16  # brokers examined in parallel
_TRANSACTION_MAX = "transaction.max.timeout.ms"
_REQUEST_MAX = "socket.request.max.bytes"
_REQUEST_HEADER_BYTES = 1024


@dataclass(frozen=True, slots=True)
class _Answer:
    """The answer of one broker: the APIs that it offers, or the reason why there is none."""

    number: int
    place: str
    took_ms: int = 0
    version: tuple[int, ...] = ()
    offered: apis.Offered = field(default_factory=dict)
    problem: str = ""
    is_refusal: bool = False  # it refuses the client settings

    @property
    def name(self) -> str:
        return f"broker {self.number}"


def examine(cluster: Cluster) -> Findings:
    """Checks all brokers in parallel, so that several dead ones cost one deadline together.

    Raises:
        Ended: none is at the address that it advertises, or all refuse the client settings.
    """
    answers = _ask(cluster)
    for answer in answers:
        yield _check_reachable(answer)
    reached = [answer for answer in answers if not answer.problem]
    if not reached:
        raise Ended(_none_reached(cluster.clients.address, answers))
    yield from apis.check_apis({answer.name: answer.offered for answer in reached})
    for answer in reached:
        yield check_version(answer.name, answer.version)
    yield _check_features(cluster)
    limits = shard_settings.publisher_limits(cluster.settings)
    numbers = [str(answer.number) for answer in reached]
    config = cluster.reader.call(
        "read settings", lambda admin: read_settings(admin, numbers, kind="BROKER")
    )
    for answer in reached:
        readable = config.get(str(answer.number), {})
        yield from check_settings(answer.name, cluster.commands, readable, limits)


def _ask(cluster: Cluster) -> list[_Answer]:
    # One of its own: a broker that is away would cost the other threads the cluster's connections.
    with cluster.clients.opened(KafkaAdminClient, cluster.reader.deadline()) as admin:
        brokers = advertised_brokers(admin)
        return each_beside(
            "examine", lambda broker: _answer(cluster, admin, *broker), brokers, _AT_A_TIME
        )


def _answer(
    cluster: Cluster, admin: KafkaAdminClient, number: int, host: str, port: int
) -> _Answer:
    place = f"{host}:{port}"
    began_ms = cluster.clock.boottime_ms()
    try:
        found = cluster.clients.call(
            cluster.reader.deadline(),
            f"connect to broker {number} at {place}",
            lambda: admin.get_broker_version_data(number),
        )
    except DuewheelError as error:
        return _Answer(number, place, problem=str(error), is_refusal=isinstance(error, ConfigError))
    took_ms = cluster.clock.boottime_ms() - began_ms
    return _Answer(number, place, took_ms, found.broker_version, dict(found.api_versions))


def _check_reachable(answer: _Answer) -> DoctorFinding:
    check = Check("broker_reachable", answer.name)
    if not answer.problem:
        return check.ok(f"{answer.place} answers, first after {answer.took_ms} ms")
    if answer.is_refusal:
        return check.error(answer.problem, SETTINGS_OR_LISTENER)
    return check.error(
        answer.problem,
        f"this host must reach {answer.place}, which the broker's advertised.listeners name: "
        "correct them, or name resolution and firewall",
    )


def _none_reached(address: str, answers: Sequence[_Answer]) -> DoctorFinding:
    if all(answer.is_refusal for answer in answers):
        check = Check(REFUSES, address)
        return check.error("every broker refuses this client", SETTINGS_OR_LISTENER)
    return Check(UNREACHABLE, address).error(
        "no broker can be reached at the address that it advertises",
        "correct the brokers' advertised.listeners, name resolution or firewall",
    )


def check_version(name: str, version: tuple[int, ...]) -> DoctorFinding:
    """Checks the version that kafka-python derives from the APIs; duewheel refuses an older one."""
    shown = ".".join(map(str, version))
    return Check("kafka_version", name).of(
        "error" if version < OLDEST_BROKER else "ok",
        f"its APIs are those of Kafka {shown}; {apis.OLDEST_KAFKA} or newer is required",
        "upgrade the brokers: older ones have no topic ids, or no safe fencing",
    )


def _check_features(cluster: Cluster) -> DoctorFinding:
    """Reports whether the brokers guard transactions (KIP-890); without it the clients do."""
    check = Check("transaction_version", "cluster")
    try:
        features = cluster.reader.call("read features", lambda admin: admin.describe_features())
    except DuewheelError as error:
        if not isinstance(error.kafka_error, UnsupportedVersionError):
            return check.warning(str(error), of_failure(error))
        features = {}
    low_high = features.get("transaction.version", {}).get("finalized")
    level = "not reported: before Kafka 4.0, or none" if low_high is None else str(low_high[1])
    return check.ok(f"transaction.version is {level}")


def check_settings(
    name: str, commands: KafkaCommands, config: Mapping[str, str], limits: TransactionLimits
) -> Findings:
    """Compares the settings of a broker that this client may read with the publisher's bounds."""
    if not config:
        yield Check("broker_settings", name).warning(
            "its settings may not be read: transaction time-outs and request sizes are not checked",
            commands.acl(["DESCRIBE_CONFIGS"], "--cluster"),
        )
        return
    if _TRANSACTION_MAX in config:
        most, usual = int(config[_TRANSACTION_MAX]), limits.transaction_timeout_ms
        yield Check("transaction_timeout", name).of(
            "error" if most < usual else "ok",
            f"{_TRANSACTION_MAX} is {most}; dequeue.transaction_timeout_ms is {usual}",
            f"set {_TRANSACTION_MAX}={usual} in the brokers' properties, or lower "
            "dequeue.transaction_timeout_ms and dequeue.call_deadline here",
        )
    if _REQUEST_MAX in config:
        most, needed = int(config[_REQUEST_MAX]), limits.batch_bytes_max + _REQUEST_HEADER_BYTES
        yield Check("request_size", name).of(
            "warning" if most < needed else "ok",
            f"{_REQUEST_MAX} is {most}, the largest batch {limits.batch_bytes_max}",
            f"set {_REQUEST_MAX}={needed} in the brokers' properties",
        )
