"""Checks the rights of duewheel's principal, as far as brokers list them.

Metadata lists the operations that a client may do on a topic. Transactional ids have no such list:
DescribeTransactions shows the right to describe them, and the trial (trial.py) writes under an id
of its own. docs/security.md lists all rights.
"""

from __future__ import annotations

from functools import partial

from kafka import KafkaAdminClient
from kafka.errors import (
    CoordinatorNotAvailableError,
    TransactionalIdAuthorizationFailedError,
    TransactionalIdNotFoundError,
    UnsupportedVersionError,
)

from duewheel.api.examination import DoctorFinding
from duewheel.doctor.cluster import TRANSACTION_LOG, Cluster
from duewheel.doctor.findings import Check, Findings
from duewheel.doctor.remedies import BROKERS_LOG, KafkaCommands
from duewheel.errors import ConfigError, KafkaUnavailable
from duewheel.kafka import shard_settings
from duewheel.kafka.topics.description import Topic

# By the role of a topic: the vital rights; and the useful ones, with the loss without each.
Needed = tuple[set[str], dict[str, str]]
_CONFIGS = {
    "DESCRIBE_CONFIGS": "its settings and size limit cannot be read; a setting that no transaction "
    "survives (docs/kafka.md) would delay all deliveries",
}
_READ: Needed = ({"READ", "WRITE", "DESCRIBE"}, _CONFIGS)
_WRITTEN: Needed = ({"WRITE", "DESCRIBE"}, _CONFIGS)
_WRITTEN_AND_SHOWN: dict[str, Needed] = {
    key: ({"WRITE", "DESCRIBE"}, {"READ": lost, **_CONFIGS})
    for key, lost in {
        "timer.dead_letter_topic": "`dlq list` and `dlq replay` do not work",
        "timer.reply_topic": "`cancel` and `reschedule` get no replies",
        "timer.receipts_topic": "`receipts` does not work",
    }.items()
}


def examine(cluster: Cluster) -> Findings:
    """Checks every existing or forbidden topic, then the transactional id."""
    settings = cluster.settings
    needed = dict.fromkeys(settings.timer.named_targets, _WRITTEN)
    for key, name in settings.service_topics.items():
        needed[name] = _WRITTEN_AND_SHOWN.get(key, _WRITTEN)
    needed |= dict.fromkeys(cluster.timer_topics, _READ) | {settings.state_topic: _READ}
    for name, of_role in needed.items():
        topic = cluster.topics[name]
        if topic.exists or topic.is_forbidden:
            yield from check_topic(topic, of_role, cluster.commands)
    yield _check_transactional_id(cluster, shard_settings.transactional_id(settings))


def check_topic(topic: Topic, needed: Needed, commands: KafkaCommands) -> Findings:
    """Checks which rights a principal lacks on a topic."""
    check = Check("topic_rights", f"topic {topic.name}")
    grant = partial(commands.acl, resource=f"--topic {topic.name}")
    vital, useful = needed
    if topic.exists and topic.rights is None:
        yield check.ok("the broker does not list rights: none is missing so far")
        return
    lacking = vital.union(useful) - (topic.rights or set())
    lost = sorted(lacking & vital)
    if lost:
        text = f"{commands.principal} lacks {', '.join(lost)}: duewheel cannot work"
        yield check.error(text, grant(lost))
    for right in sorted(lacking - vital):
        text = f"{commands.principal} lacks {right}: {useful[right]}"
        yield check.warning(text, grant([right]))
    if not lacking:
        yield check.ok(", ".join(sorted(vital.union(useful))))


def _check_transactional_id(cluster: Cluster, name: str) -> DoctorFinding:
    """Checks the right to describe an id, and reports the state of its transaction."""
    check = Check("transactional_id", f"transactional id {name}")

    def describe(admin: KafkaAdminClient) -> str:
        try:
            transaction = admin.describe_transactions([name])[name]
        except (TransactionalIdNotFoundError, CoordinatorNotAvailableError) as error:
            # Before the first transaction of a cluster, no broker coordinates any.
            is_away = isinstance(error, CoordinatorNotAvailableError)
            if is_away and cluster.topics[TRANSACTION_LOG].exists:
                raise
            return "may be described; it was never used"
        except UnsupportedVersionError:  # Kafka 2.8; apis.py has a finding of each API
            return "its state is unknown: the brokers describe no transactions"
        return f"may be described; its transaction is {transaction.state.value}"

    try:
        text = cluster.reader.call(f"describe {check.subject}", describe)
    except ConfigError as error:
        if not isinstance(error.kafka_error, TransactionalIdAuthorizationFailedError):
            raise
        commands, refusal = cluster.commands, TransactionalIdAuthorizationFailedError.__name__
        text = f"{commands.principal} may not use it ({refusal})"
        return check.error(text, commands.transactional_ids(cluster.settings.app.id))
    except KafkaUnavailable as error:
        return check.warning(str(error), f"check its coordinator's broker: {BROKERS_LOG}")
    return check.ok(text)
