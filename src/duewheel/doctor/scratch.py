"""The scratch topic: where the trials write, so that nothing of a shard's is touched.

It has the name `<app.id>.doctor.<shard>`, as have the trials' transactional id and group: nobody
else uses them, and each shard's host may be examined at the same time. It is made with as many
partitions as there are brokers, so that each leads one, and deleted afterwards. Where the right to
create topics is missing, an operator may make it once (the finding says how): then it stays, and
its records go after an hour.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from kafka.errors import TopicAlreadyExistsError, for_code

from duewheel.doctor.cluster import Cluster
from duewheel.doctor.findings import Diagnosis
from duewheel.errors import DuewheelError
from duewheel.kafka.producer_internals import advertised_brokers

_SETTINGS = {"message.timestamp.type": "LogAppendTime", "retention.ms": "3600000"}


@dataclass(frozen=True, slots=True)
class ScratchTopic:
    """The topic, and the number of a partition for each broker that leads one."""

    topic: str
    partition_of: dict[int, int]


def name_of(cluster: Cluster) -> str:
    """Of the topic, the transactional id and the group."""
    return f"{cluster.settings.app.id}.doctor.{cluster.settings.shard.index}"


@contextlib.contextmanager
def scratch_topic(cluster: Cluster) -> Iterator[ScratchTopic | Diagnosis]:
    """The topic for the length of a with block; or why there is none."""
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
    """Create it and wait until it is known; why that is refused, if it is."""
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
        f"cannot be created ({refusal}): transactions and clocks are not tried",
        f"kafka-topics.sh --bootstrap-server {cluster.address} --create --topic {name} {settings}",
    )
