"""Describes target topics, as Kafka has them now.

Two requests cover all topics at once: partitions and rights; then the largest batch, whether a key
is required, how many replicas must be in sync, and whether a transaction survives the settings
(transaction_settings.py). A third one finds partitions of new topics that brokers have not made
yet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from kafka import KafkaAdminClient

from duewheel.deadline import Deadline
from duewheel.errors import DuewheelError, KafkaUnavailable
from duewheel.kafka.connect.clients import KafkaClients
from duewheel.kafka.log.compression import Compression
from duewheel.kafka.log.reader import LogReader
from duewheel.kafka.targets.refusal_limits import RefusalLimits
from duewheel.kafka.targets.slow_targets import NAMES as SLOW_SETTINGS
from duewheel.kafka.targets.slow_targets import slow_by
from duewheel.kafka.targets.unavailable_partitions import takes_writes
from duewheel.kafka.topics.description import Topic, TopicSettings, describe, describe_settings
from duewheel.kafka.topics.transaction_settings import NAMES as TIMESTAMP_SETTINGS
from duewheel.kafka.topics.transaction_settings import unsurvivable
from duewheel.kafka.transaction_limits import TransactionLimits
from duewheel.schemas.wire.batch_header import HEADER_BYTES
from duewheel.schemas.wire.codec_names import CODECS, Codec
from duewheel.schemas.wire.varint import varint
from duewheel.wheel.target_rules import Reason, Target

# The settings that are read of each target.
_BATCH_BOUNDS = ("max.message.bytes", "segment.bytes", "internal.segment.bytes")
_RECORD_BOUND = "max.decompressed.message.bytes"  # since Kafka 4.2.2, in compressed batches
_CODEC = "compression.type"
SETTINGS = (
    *_BATCH_BOUNDS,
    _RECORD_BOUND,
    "cleanup.policy",
    "min.insync.replicas",
    _CODEC,
    *TIMESTAMP_SETTINGS,
    *SLOW_SETTINGS,
)
# Also for names that no topic can have, without a request: over a name of more than 32 KiB a broker
# drops the connection instead of refusing it.
NONE_SUCH = Target(0, 0, refusal=Reason.UNKNOWN_TARGET_TOPIC)
_LOGS_S = 2.0  # for the answer which partitions have logs


class TargetDescriber:
    """See the module's head. Any thread may call it; threads may share an admin client."""

    def __init__(
        self,
        clients: KafkaClients,
        limits: TransactionLimits,
        refusals: RefusalLimits,
        compression: Compression,
        is_complete: Callable[[str, Target], bool],
    ) -> None:
        """`is_complete`: whether all partitions of a topic are known to have logs."""
        self._clients, self._limits, self._refusals = clients, limits, refusals
        self._compression, self._is_complete = compression, is_complete

    def describe(self, admin: KafkaAdminClient, topics: list[str]) -> dict[str, Target]:
        """The target of each topic; kafka-python's errors, and KafkaUnavailable for a topic without
        a leader just now.
        """
        found = describe(admin, topics)
        targets = {topic: self._classified(found.get(topic)) for topic in topics}
        usable = [topic for topic, target in targets.items() if not target.refusal]
        config = describe_settings(admin, usable, SETTINGS)
        targets |= {
            topic: self._limited(targets[topic], found[topic], config.get(topic, TopicSettings()))
            for topic in usable
        }
        new = {t: targets[t] for t in usable if not self._is_complete(t, targets[t])}
        return targets | _without_logs(self._clients, new)

    def _classified(self, topic: Topic | None) -> Target:
        if topic is None or topic.is_absent or topic.is_internal:
            return NONE_SUCH
        # An old broker lists no rights.
        if topic.is_forbidden or (topic.rights and "WRITE" not in topic.rights):
            return Target(0, 0, refusal=Reason.TARGET_NOT_AUTHORIZED)
        if not topic.exists or not topic.partitions:
            raise KafkaUnavailable(
                f"Kafka at {self._clients.address}: topic {topic.name!r}: "
                f"error {topic.error_code}, no partitions"
            )
        return Target(len(topic.partitions), self._limits.batch_bytes_max, topic_id=topic.id)

    def _limited(self, target: Target, topic: Topic, settings: TopicSettings) -> Target:
        """The target with the limits of its configuration; without the right to read that, with
        the limits that refusals have shown.
        """
        config = settings.values
        bounds = [int(config[name]) for name in _BATCH_BOUNDS if name in config]
        codec = _codec(config.get(_CODEC, "producer"), self._compression.of(topic.name))
        if codec != "none":
            bounds = list(map(_plain_bytes, bounds))
            bounds.append(
                _bytes_alone(int(config.get(_RECORD_BOUND, self._limits.batch_bytes_max)))
            )
        bounds.append(self._refusals.record_bytes(topic.name) or self._limits.batch_bytes_max)
        found = unsurvivable(config)
        closed_by = f"{found.name}={found.value}" if found else ""
        in_sync_min = int(config.get("min.insync.replicas", 1))
        return replace(
            target,
            batch_bytes_max=min(*bounds, self._limits.batch_bytes_max),
            key_required="compact" in config.get("cleanup.policy", ""),
            unavailable=frozenset(
                each.number
                for each in topic.partitions
                if closed_by or not takes_writes(each, in_sync_min)
            ),
            closed_by=closed_by,
            slow_by=slow_by(settings),
            codec=codec,
        )


def _codec(kept: str, configured: Codec) -> Codec:
    """The codec of batches to a topic with this `compression.type`: a broker compresses a batch of
    another codec again, or decompresses it.
    """
    if kept == "producer":
        return configured
    return next((codec for codec in CODECS if codec == kept), "none")  # "uncompressed"


def _plain_bytes(bytes_max: int) -> int:
    """The most bytes that no codec makes more than so many: one that finds nothing to compress adds
    0.16 % at most, and a header.
    """
    return max(0, bytes_max - bytes_max // 500 - 64)


def _bytes_alone(record_bytes: int) -> int:
    """The size of a batch of one record, of so many bytes after its length."""
    return HEADER_BYTES + len(varint(record_bytes)) + record_bytes


def _without_logs(clients: KafkaClients, targets: Mapping[str, Target]) -> dict[str, Target]:
    """The targets, with their partitions that have no log as unavailable ones. Without an answer
    they are as they were.

    A broker makes the logs of new partitions one after the other, those of 2,000 in 10 to 20 s,
    while metadata names their leaders already. A transaction waits for the last of its partitions,
    and those of other topics are as fast as ever. So rows for a partition without a log are parked.
    """
    partitions = [
        (topic, number)
        for topic, target in targets.items()
        for number in range(target.partitions)
        if number not in target.unavailable
    ]
    found = dict(targets)
    if not partitions:
        return found
    try:
        with LogReader(clients, list(targets), partial(Deadline, _LOGS_S)) as reader:
            present = reader.present_ends(partitions, committed=False)
    except DuewheelError:
        return found
    absent: dict[str, set[int]] = {}
    for topic, number in set(partitions).difference(present):
        absent.setdefault(topic, set()).add(number)
    for topic, numbers in absent.items():
        found[topic] = replace(found[topic], unavailable=found[topic].unavailable | numbers)
    return found
