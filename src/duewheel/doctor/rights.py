"""Rights: what duewheel's principal may do, as far as brokers tell without its being done.

Metadata lists the operations that are allowed on a topic. For transactional ids there is no such
list: DescribeTransactions shows whether they may be looked at, and the trial (trial.py) writes
under one of its own. docs/kafka.md lists all that is needed.
"""

from __future__ import annotations

from collections.abc import Iterator

from kafka.errors import (
    CoordinatorNotAvailableError,
    TransactionalIdAuthorizationFailedError,
    TransactionalIdNotFoundError,
)

from duewheel.doctor.cluster import Cluster, Topic
from duewheel.doctor.findings import Diagnosis
from duewheel.errors import ConfigError, KafkaUnavailable
from duewheel.kafka import shard_settings

# By the part that a topic plays: what nothing works without, and what is missed at times.
_TIMER = ({"READ", "WRITE", "DESCRIBE"}, {"DESCRIBE_CONFIGS"})
_STATE = ({"READ", "WRITE", "DESCRIBE"}, {"DESCRIBE_CONFIGS"})
_WRITTEN = ({"WRITE", "DESCRIBE"}, {"READ", "DESCRIBE_CONFIGS"})  # dead letters, answers
_TARGET = ({"WRITE", "DESCRIBE"}, {"DESCRIBE_CONFIGS"})
Needed = tuple[set[str], set[str]]

_MISSED = {
    "READ": "commands that read it (`dlq list`, `dlq replay`) do not work",
    "DESCRIBE_CONFIGS": "its settings and size limit are not known",
}


def examine(cluster: Cluster) -> Iterator[Diagnosis]:
    """Every topic that is there, or that this principal may not see; then the transactional id."""
    settings = cluster.settings
    needed = dict.fromkeys(cluster.targets, _TARGET)
    needed |= dict.fromkeys(settings.service_topics.values(), _WRITTEN)
    needed |= dict.fromkeys(cluster.timer_topics, _TIMER) | {settings.state_topic: _STATE}
    principal = _principal(cluster)
    for name, topic in cluster.topics(list(needed)).items():
        if topic.is_there or topic.is_forbidden:
            yield from judge(topic, needed[name], cluster.address, principal)
    yield _transactional_id(cluster, principal)


def judge(topic: Topic, needed: Needed, address: str, principal: str) -> Iterator[Diagnosis]:
    """What a principal lacks on a topic."""
    code, subject = "topic_rights", f"topic {topic.name}"
    vital, useful = needed
    if topic.is_there and topic.rights is None:
        yield Diagnosis(
            code, "ok", subject, "the broker does not list rights: none is missing so far"
        )
        return
    lacking = (vital | useful) - (topic.rights or set())
    lost = sorted(lacking & vital)
    if lost:
        text = f"{principal} lacks {', '.join(lost)}: duewheel cannot work"
        yield Diagnosis(code, "error", subject, text, _grant(address, principal, topic.name, lost))
    for right in sorted(lacking - vital):
        yield Diagnosis(
            code,
            "warning",
            subject,
            f"{principal} lacks {right}: {_MISSED[right]}",
            _grant(address, principal, topic.name, [right]),
        )
    if not lacking:
        yield Diagnosis(code, "ok", subject, ", ".join(sorted(vital | useful)))


def _grant(address: str, principal: str, topic: str, rights: list[str]) -> str:
    named = " ".join(f"--operation {right.title().replace('_', '')}" for right in rights)
    return (
        f"kafka-acls.sh --bootstrap-server {address} --add --allow-principal {principal} "
        f"{named} --topic {topic}"
    )


def _principal(cluster: Cluster) -> str:
    """As ACLs name it, if that can be known here."""
    name = cluster.settings.kafka.client_options("admin").get("sasl_plain_username")
    if name:
        return f"User:{name}"
    protocol = cluster.settings.kafka.client.get("security_protocol", "PLAINTEXT")
    return "User:ANONYMOUS" if protocol == "PLAINTEXT" else "User:<principal>"


def _transactional_id(cluster: Cluster, principal: str) -> Diagnosis:
    """Whether the shard's id may be looked at, and what is open under it."""
    name = shard_settings.transactional_id(cluster.settings)
    code, subject = "transactional_id", f"transactional id {name}"
    deadline = cluster.deadline()

    def look() -> str:
        try:
            found = cluster.admin.describe_transactions([name])[name]
        except (TransactionalIdNotFoundError, CoordinatorNotAvailableError):
            return "may be looked at; nobody has used it yet"
        return f"may be looked at; its transaction is {found.state.value}"

    try:
        text = cluster.client.call(deadline, f"describe {subject}", look)
    except ConfigError:
        return Diagnosis(
            code,
            "error",
            subject,
            f"{principal} may not use it ({TransactionalIdAuthorizationFailedError.__name__})",
            f"kafka-acls.sh --bootstrap-server {cluster.address} --add --allow-principal "
            f"{principal} --operation Write --operation Describe --transactional-id "
            f"{cluster.settings.app.id}. --resource-pattern-type prefixed",
        )
    except KafkaUnavailable as error:
        return Diagnosis(
            code, "warning", subject, str(error), "see docs/kafka.md for what is needed"
        )
    return Diagnosis(code, "ok", subject, text)
