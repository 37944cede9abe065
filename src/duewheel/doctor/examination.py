"""Runs the whole examination: this host, then the cluster, one part after the other.

Invariant: it writes only under the scratch names (scratch.py) and in a temporary folder
(data_directory.py), and locks or writes nothing of a shard, which may run meanwhile or not exist
yet. A part that fails becomes one finding, and the next part follows; none does if no broker can be
reached.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import closing

from duewheel.clock import Clock
from duewheel.config.settings import Settings
from duewheel.doctor import (
    brokers,
    clocks,
    data_directory,
    host,
    registry,
    rights,
    servers,
    shard,
    targets,
    topics,
    trial,
)
from duewheel.doctor.apis import OLDEST_KAFKA
from duewheel.doctor.cluster import Cluster
from duewheel.doctor.findings import REFUSES, Check, Ended, Findings
from duewheel.doctor.remedies import CLIENT_SETTINGS, of_failure
from duewheel.doctor.scratch import ScratchTopic
from duewheel.errors import ConfigError, DuewheelError
from duewheel.kafka.connect.bootstrap import capture_errors
from duewheel.kafka.connect.clients import KafkaClients
from duewheel.kafka.connect.login import in_words
from duewheel.kafka.topics.topic_checks import TopicChecks

_TRIALS = "transactions and clocks"
Begun = Callable[[str, int], None]  # called for each part: its name, and the number of parts


def _on_scratch_topic(cluster: Cluster) -> Findings:
    clients = cluster.clients
    with closing(ScratchTopic(cluster)) as scratch:
        yield from guarded(_TRIALS, scratch.create(), clients)
        if scratch.partitions:
            yield from guarded("transactions", trial.examine(cluster, scratch), clients)
            yield from guarded("clocks", clocks.examine(cluster, scratch), clients)
    yield from scratch.left


_OF_HOST: Mapping[str, Callable[[Settings], Findings]] = {
    "data directory": data_directory.examine,
    "host": host.examine,
    "registry": registry.examine,
}
_OF_CLUSTER: Mapping[str, Callable[[Cluster], Findings]] = {
    "bootstrap servers": servers.examine,
    "brokers": brokers.examine,
    # Before the topics: the first transaction makes Kafka create its own topics.
    _TRIALS: _on_scratch_topic,
    "topics": topics.examine,
    "targets": targets.examine,
    "shard": shard.examine,
    "rights": rights.examine,
}


def examine(settings: Settings, clock: Clock, begun: Begun) -> Findings:
    """Runs all parts, and yields their findings; calls `begun` before each part."""
    parts = len(_OF_HOST) + len(_OF_CLUSTER)
    for name, of_host in _OF_HOST.items():
        begun(name, parts)
        yield from guarded(name, of_host(settings))
    call_s = settings.dequeue.call_deadline.total_seconds()
    try:
        reader = TopicChecks(settings.kafka.client_options("admin"), call_s)
    except ConfigError as error:
        yield Check(REFUSES, settings.kafka.servers).error(str(error), CLIENT_SETTINGS)
        return
    with capture_errors(), reader:
        cluster = Cluster(settings, reader, clock)
        try:
            for name, of_cluster in _OF_CLUSTER.items():
                begun(name, parts)
                yield from guarded(name, of_cluster(cluster), cluster.clients)
        except Ended as end:
            yield end.finding


def guarded(name: str, part: Findings, clients: KafkaClients | None = None) -> Findings:
    """Yields a part's findings; a failure, or an answer that does not parse, becomes the last.

    Args:
        clients: those of the part; None: it does not ask Kafka.

    Raises:
        Ended: as the part.
    """
    check = Check("not_examined", name)
    try:
        yield from part
    except Ended:
        raise
    except DuewheelError as error:
        yield check.error(str(error), of_failure(error))
    except PermissionError as error:
        yield check.error(str(error), f"check the rights of user {os.geteuid()} on this host")
    except OSError as error:
        yield check.error(str(error), "check this host's disk and limits: df, dmesg, ulimit -a")
    except Exception as error:  # noqa: BLE001 - kafka-python on an answer that it did not expect
        defect = "a defect of duewheel"
        if clients is None:
            yield check.error(in_words(error), defect)
            return
        other = f"an answer that no Apache Kafka from {OLDEST_KAFKA} on gives: check its version"
        yield check.error(clients.explain(error), f"{defect}, or {other}")
