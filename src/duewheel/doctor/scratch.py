"""The scratch topic, where the trials write instead of in a shard's topics.

Topic, transactional id and group of the trials have the name `<app.id>.doctor.<shard>`, which no
other part of duewheel uses; the hosts of several shards may be examined at the same time. The topic
is created with one partition per broker, so that each broker leads one, and is deleted afterwards.
Without the right to create topics, an operator can create it once (the finding has the command):
such a topic stays, and its retention deletes the records after an hour.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from kafka.errors import TopicAlreadyExistsError, for_code

from duewheel.doctor.cluster import Cluster
from duewheel.doctor.findings import Diagnosis
from duewheel.errors import DuewheelError
from duewheel.kafka.ledger.producer_internals import advertised_brokers

_SETTINGS = {"message.timestamp.type": "LogAppendTime", "retention.ms": "3600000"}


@dataclass(frozen=True, slots=True)
class ScratchTopic:
    """The topic, and for each broker that leads a partition the number of one."""

    topic: str
    partition_of: dict[int, int]


def name_of(cluster: Cluster) -> str:
    """Returns the name of the topic, the transactional id and the group."""
    return f"{cluster.settings.app.id}.doctor.{cluster.settings.shard.index}"


@contextlib.contextmanager
def scratch_topic(cluster: Cluster) -> Iterator[ScratchTopic | Diagnosis]:
    """Yields the topic for the length of a with block, or the finding why it cannot be created."""
    name = name_of(cluster)
    existed = cluster.topics([name])[name].exists
    if not existed:
        refusal = _create(cluster, name)
        if refusal:
            yield _refused(cluster, name, refusal)
            return
    try:
        rows = cluster.topics([name])[name].partitions
        yield ScratchTopic(name, {row["leader_id"]: row["partition_index"] for row in rows})
    finally:
        if not existed:
            with contextlib.suppress(DuewheelError):
                cluster.ask("delete the scratch topic", lambda admin: admin.delete_topics([name]))


def _create(cluster: Cluster, name: str) -> str:
    """Creates the topic and waits for its metadata; returns the reason of a refusal, or ""."""
    brokers = advertised_brokers(cluster.admin)
    wanted = {
        name: {
            "num_partitions": max(1, len(brokers)),
            "replication_factor": -1,
            "configs": _SETTINGS,
        }
    }
    answer = cluster.ask(
        "create the scratch topic", lambda admin: admin.create_topics(wanted, raise_errors=False)
    )
    (row,) = answer["topics"]
    error = for_code(row["error_code"])
    if row["error_code"] and error is not TopicAlreadyExistsError:
        return f"{error.__name__}: {row.get('error_message') or 'no reason given'}"
    timeout_ms = cluster.deadline().remaining_ms()
    cluster.ask(
        "wait for the scratch topic", lambda admin: admin.wait_for_topics([name], timeout_ms)
    )
    return ""


def _refused(cluster: Cluster, name: str, refusal: str) -> Diagnosis:
    settings = " ".join(f"--config {key}={value}" for key, value in _SETTINGS.items())
    return Diagnosis(
        "scratch_topic",
        "warning",
        f"topic {name}",
        f"cannot be created ({refusal}): transactions and clocks are not checked",
        f"kafka-topics.sh --bootstrap-server {cluster.address} --create --topic {name} {settings}",
    )
