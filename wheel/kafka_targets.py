"""What is known of the topics that messages go to, looked up before a transaction begins.

Two requests to the broker tell of all topics at once: partitions and rights, then the largest
batch and whether a key is needed. Answers are kept for a while, missing topics for a shorter one,
so that a topic that is created later is found and one that never comes costs next to nothing.

What cannot be known beforehand is learned from refusals. A refused batch of several records is
made again at half the size, until a refused batch holds the bad record alone; that one is then
remembered by its source and becomes a dead letter.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace

from kafka import KafkaAdminClient
from kafka.admin import ConfigResource
from kafka.errors import (
    InvalidRecordError,
    InvalidTopicError,
    MessageSizeTooLargeError,
    PolicyViolationError,
    RecordListTooLargeError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)

from duewheel.errors import KafkaUnavailable
from duewheel.schemas.timers import Deliveries
from duewheel.wheel.deadline import Deadline
from duewheel.wheel.kafka_clients import ClientSettings
from duewheel.wheel.routing import Reason, Target

_TOO_LARGE = (MessageSizeTooLargeError, RecordListTooLargeError)
# Verdicts on the content of a batch. A refused timestamp is not one: then a clock is wrong.
_REFUSALS = (*_TOO_LARGE, InvalidRecordError, PolicyViolationError)
_NO_SUCH_TOPIC = (UnknownTopicOrPartitionError.errno, InvalidTopicError.errno)
_NOT_AUTHORIZED = TopicAuthorizationFailedError.errno


@dataclass(frozen=True, slots=True)
class SentBatch:
    """A batch as it was sent, for judging a refusal.

    Attributes:
        topic: where to.
        size: bytes, header included.
        source: TIMER_SOURCE of its record if it holds one only, else None.
    """

    topic: str
    size: int
    source: bytes | None


@dataclass(slots=True)
class _Known:
    target: Target
    until: float


class TargetCatalog:
    """Targets by topic, kept for a while. Not thread-safe: its publisher owns it.

    Example:
        targets = catalog.resolve(admin, ["orders", "nowhere"], deadline)
        targets["nowhere"].refusal          # Reason.UNKNOWN_TARGET_TOPIC
    """

    def __init__(
        self,
        settings: ClientSettings,
        *,
        batch_bytes: int,
        batch_bytes_max: int,
        age_s: float,
        missing_age_s: float,
    ) -> None:
        """An empty catalog.

        Args:
            settings: for error texts.
            batch_bytes: what a batch should hold.
            batch_bytes_max: what it may hold, whatever a topic allows.
            age_s: how long an answer is believed.
            missing_age_s: how long a refusal is.
        """
        self._settings = settings
        self._batch_bytes = batch_bytes
        self._batch_bytes_max = batch_bytes_max
        self._age_s = age_s
        self._missing_age_s = missing_age_s
        self._known: dict[str, _Known] = {}
        self._smaller: dict[str, tuple[int, float]] = {}  # bytes of a batch, until when
        self._record_limit: dict[str, tuple[int, float]] = {}
        self.refused: set[bytes] = set()

    def resolve(
        self, admin: KafkaAdminClient, topics: Iterable[str], deadline: Deadline
    ) -> dict[str, Target]:
        """What is known of each topic, asked for where it is not known or too old.

        Raises:
            KafkaUnavailable: no answer, or a topic without a leader just now.
        """
        wanted = list(dict.fromkeys(topics))
        now = time.monotonic()
        stale = [t for t in wanted if t not in self._known or self._known[t].until < now]
        if stale:
            found = self._settings.call(deadline, "look up topics", lambda: self._ask(admin, stale))
            for topic, target in found.items():
                age_s = self._missing_age_s if target.refusal else self._age_s
                self._known[topic] = _Known(target, time.monotonic() + age_s)
        return {topic: self._known[topic].target for topic in wanted}

    def forget(self) -> None:
        """Ask again for everything; what refusals have taught is kept."""
        self._known.clear()

    def batch_bytes(self, topic: str, target: Target) -> int:
        """How large to make this topic's batches, in bytes."""
        wanted = _while_valid(self._smaller, topic, self._batch_bytes)
        return min(wanted, target.batch_bytes_max)

    def learn(self, batch: SentBatch, error: Exception) -> bool:
        """Draw the conclusion from a refused batch; False if the error says nothing about it."""
        if not isinstance(error, _REFUSALS):
            return False
        until = time.monotonic() + self._age_s
        if batch.source is None:
            self._smaller[batch.topic] = (batch.size // 2, until)
        elif isinstance(error, _TOO_LARGE):
            self._record_limit[batch.topic] = (batch.size - 1, until)
            self._known.pop(batch.topic, None)
        else:
            self.refused.add(batch.source)
        return True

    def settle(self, deliveries: Deliveries) -> None:
        """These rows are out for good: forget which of them were refused before."""
        if self.refused:
            self.refused.difference_update(deliveries.source.to_pylist())

    def _ask(self, admin: KafkaAdminClient, topics: list[str]) -> dict[str, Target]:
        found = {row["name"]: row for row in admin.describe_topics(topics)}
        targets = {topic: self._judge(topic, found.get(topic, {})) for topic in topics}
        there = [topic for topic, target in targets.items() if not target.refusal]
        wanted = ["max.message.bytes", "cleanup.policy"]
        resources = [ConfigResource("TOPIC", topic, wanted) for topic in there]
        if there:
            configs = admin.describe_configs(resources, config_filter="all").get("topic", {})
            for topic in there:
                targets[topic] = self._limited(topic, targets[topic], configs.get(topic, {}))
        return targets

    def _judge(self, topic: str, row: dict[str, object]) -> Target:
        error = row.get("error_code", UnknownTopicOrPartitionError.errno)
        partitions = row.get("partitions")
        if error in _NO_SUCH_TOPIC or row.get("is_internal"):
            return Target(0, 0, refusal=Reason.UNKNOWN_TARGET_TOPIC)
        if error == _NOT_AUTHORIZED or not _may_write(row.get("authorized_operations")):
            return Target(0, 0, refusal=Reason.TARGET_NOT_AUTHORIZED)
        if error or not isinstance(partitions, list) or not partitions:
            raise KafkaUnavailable(
                f"Kafka at {self._settings.address}: topic {topic!r}: error {error}, no partitions"
            )
        return Target(len(partitions), self._batch_bytes_max)

    def _limited(self, topic: str, target: Target, config: dict[str, dict[str, str]]) -> Target:
        """The target with what its configuration says; without the right to read it, refusals
        will tell.
        """
        limit = int(config.get("max.message.bytes", {}).get("value", self._batch_bytes_max))
        policy = config.get("cleanup.policy", {}).get("value", "")
        learned = _while_valid(self._record_limit, topic, self._batch_bytes_max)
        return replace(
            target,
            batch_bytes_max=min(limit, learned, self._batch_bytes_max),
            key_required="compact" in policy,
        )


def _while_valid(learned: dict[str, tuple[int, float]], topic: str, otherwise: int) -> int:
    value, until = learned.get(topic, (otherwise, 0.0))
    return value if until > time.monotonic() else otherwise


def _may_write(operations: object) -> bool:
    """Whether the broker's list of rights includes writing; an old broker sends none."""
    if not isinstance(operations, list) or not operations:
        return True
    return not {"WRITE", "ALL"}.isdisjoint(map(str, operations))
