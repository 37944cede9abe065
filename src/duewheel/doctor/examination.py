"""Runs the whole examination: this host, then the cluster, one part after the other.

Invariant: it writes only under the scratch names (scratch.py) and in a temporary folder
(data_directory.py), and locks or writes nothing of a shard, which may run meanwhile or not exist
yet. A part that fails becomes one finding, and the next part follows; none does if no broker can be
reached.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack

from duewheel.clock import Clock
from duewheel.config.settings import Settings
from duewheel.doctor import (
    bootstrap,
    brokers,
    clocks,
    data_directory,
    host,
    registry,
    rights,
    shard,
    targets,
    topics,
    trial,
)
from duewheel.doctor.apis import OLDEST_KAFKA
from duewheel.doctor.cluster import Cluster
from duewheel.doctor.findings import Check, Ended, Findings
from duewheel.doctor.scratch import not_created, not_deleted, scratch_topic
from duewheel.errors import ConfigError, DuewheelError
from duewheel.kafka.connect.bootstrap import capture_errors
from duewheel.kafka.topics.topic_checks import TopicChecks

# They do not ask Kafka.
_DATA_DIRECTORY, _HOST, _REGISTRY = _WITHOUT_KAFKA = ("data directory", "host", "registry")
Begun = Callable[[str, int], None]  # called for each part: its name, and the number of parts


def examine(settings: Settings, clock: Clock, begun: Begun) -> Findings:
    """Runs all parts, and yields their findings; calls `begun` before each part."""
    call_s = settings.dequeue.call_deadline.total_seconds()
    client = settings.kafka.client_options("admin")
    with capture_errors(), TopicChecks(client, call_s) as reader:
        cluster = Cluster(settings, reader, clock)
        parts: dict[str, Callable[[Cluster], Findings]] = {
            _DATA_DIRECTORY: lambda cluster: data_directory.examine(cluster.settings),
            _HOST: lambda cluster: host.examine(cluster.settings),
            _REGISTRY: lambda cluster: registry.examine(cluster.settings),
            "bootstrap servers": bootstrap.examine,
            "brokers": brokers.examine,
            # Before the topics: the first transaction makes Kafka create its own topics.
            "transactions and clocks": _on_scratch_topic,
            "topics": topics.examine,
            "targets": targets.examine,
            "shard": shard.examine,
            "rights": rights.examine,
        }
        try:
            for name, part in parts.items():
                begun(name, len(parts))
                yield from guarded(name, cluster, part)
        except Ended as end:
            yield end.finding


def guarded(name: str, cluster: Cluster, part: Callable[[Cluster], Findings]) -> Findings:
    """Yields a part's findings; a failure, or an answer that does not parse, becomes the last.

    Raises:
        Ended: as the part.
    """
    check = Check("not_examined", name)
    try:
        yield from part(cluster)
    except Ended:
        raise
    except DuewheelError as error:
        remedy = "check the rights of this user, and the log of the brokers"
        yield check.error(str(error), remedy)
    except OSError as error:
        yield check.error(str(error), f"check the rights of user {os.geteuid()} on this host")
    except Exception as error:  # noqa: BLE001 - kafka-python on an answer that it did not expect
        remedy = "a defect of duewheel"
        if name not in _WITHOUT_KAFKA:
            remedy += ", or an answer that no Apache Kafka "
            remedy += f"from {OLDEST_KAFKA} on gives: check its version"
        yield check.error(cluster.clients.explain(error), remedy)


def _on_scratch_topic(cluster: Cluster) -> Findings:
    with ExitStack() as stack:
        try:
            scratch = stack.enter_context(scratch_topic(cluster))
        except ConfigError as refusal:
            yield not_created(cluster, refusal)
            return
        yield from trial.examine(cluster, scratch)
        yield from clocks.examine(cluster, scratch)
    for why in scratch.stays:
        yield not_deleted(cluster, why)
