"""What is known of the topics that messages go to, looked up before a transaction begins.

Two requests to the broker tell of all topics at once: partitions and rights, then the largest
batch and whether a key is needed. Answers are kept for a while, missing topics for a shorter one,
so that a topic that is created later is found and one that never comes costs next to nothing. The
names are the users': what is too old goes, and never more than `_ENTRIES_MAX` are kept.

What cannot be known beforehand is learned from refusals. A refused batch of several records is
made again at half the size, until a refused batch holds the bad record alone; that one is then
remembered by its source and becomes a dead letter.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

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
_ENTRIES_MAX = 10_000
_ASKED_MAX = 1_000  # topics of one request, so that its answer stays small
# A broker drops the connection over a name of more than 32 KiB instead of refusing it.
_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
_NONE_SUCH = Target(0, 0, refusal=Reason.UNKNOWN_TARGET_TOPIC)

T = TypeVar("T")


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


class _Believed(Generic[T]):
    """Values by topic, each believed for a while. Bounded: the oldest make room."""

    def __init__(self) -> None:
        self._entries: dict[str, tuple[T, float]] = {}  # until when; the oldest first

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, topic: str) -> T | None:
        value, until = self._entries.get(topic, (None, 0.0))
        return value if until > time.monotonic() else None

    def latest(self, topic: str) -> T | None:
        """The value however old."""
        return self._entries.get(topic, (None, 0.0))[0]

    def put(self, topic: str, value: T, age_s: float) -> None:
        self._entries.pop(topic, None)
        self._entries[topic] = (value, time.monotonic() + age_s)
        if len(self._entries) > _ENTRIES_MAX:
            del self._entries[next(iter(self._entries))]

    def drop_old(self) -> None:
        now = time.monotonic()
        for topic in [topic for topic, (_, until) in self._entries.items() if until <= now]:
            del self._entries[topic]

    def pop(self, topic: str) -> None:
        self._entries.pop(topic, None)

    def clear(self) -> None:
        self._entries.clear()


class TargetCatalog:
    """Targets by topic, kept for a while.

    Not thread-safe: its publisher owns it. `recall`, `batch_bytes` and `refused` may be used by any
    thread: each looks up one entry, or a set that never changes, at a time.

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
        self._known: _Believed[Target] = _Believed()
        self._smaller: _Believed[int] = _Believed()  # bytes of a batch
        self._record_limit: _Believed[int] = _Believed()
        self.refused: frozenset[bytes] = frozenset()

    def resolve(
        self, admin: KafkaAdminClient, topics: Iterable[str], deadline: Deadline
    ) -> dict[str, Target]:
        """What is known of each topic, asked for where it is not known or too old.

        Raises:
            KafkaUnavailable: no answer, or a topic without a leader just now.
        """
        targets = {topic: self._known.get(topic) for topic in topics}
        unknown = iter([topic for topic, target in targets.items() if target is None])
        while some := list(itertools.islice(unknown, _ASKED_MAX)):
            for believed in (self._known, self._smaller, self._record_limit):
                believed.drop_old()
            targets.update(self._look_up(admin, some, deadline))
        return {topic: target for topic, target in targets.items() if target is not None}

    def recall(self, topics: Iterable[str]) -> dict[str, Target]:
        """What was known of those topics that are remembered, however long ago; asks nobody."""
        targets = {t: self._known.latest(t) if _possible(t) else _NONE_SUCH for t in topics}
        return {topic: target for topic, target in targets.items() if target is not None}

    def _look_up(
        self, admin: KafkaAdminClient, topics: list[str], deadline: Deadline
    ) -> dict[str, Target]:
        named = [topic for topic in topics if _possible(topic)]
        targets = dict.fromkeys(topics, _NONE_SUCH)
        if named:
            found = self._settings.call(deadline, "look up topics", lambda: self._ask(admin, named))
            for topic, target in found.items():
                age_s = self._missing_age_s if target.refusal else self._age_s
                self._known.put(topic, target, age_s)
            targets.update(found)
        return targets

    def forget(self) -> None:
        """Ask again for everything; what refusals have taught is kept."""
        self._known.clear()

    def batch_bytes(self, topic: str, target: Target) -> int:
        """How large to make this topic's batches, in bytes."""
        return min(self._smaller.get(topic) or self._batch_bytes, target.batch_bytes_max)

    def learn(self, batch: SentBatch, error: Exception) -> bool:
        """Draw the conclusion from a refused batch; False if the error says nothing about it."""
        if not isinstance(error, _REFUSALS):
            return False
        if batch.source is None:
            self._smaller.put(batch.topic, batch.size // 2, self._age_s)
        elif isinstance(error, _TOO_LARGE):
            self._record_limit.put(batch.topic, batch.size - 1, self._age_s)
            self._known.pop(batch.topic)
        else:
            self.refused |= {batch.source}
        return True

    def settle(self, deliveries: Deliveries) -> None:
        """These rows are out for good: forget which of them were refused before."""
        if self.refused:
            self.refused = self.refused.difference(deliveries.source.to_pylist())

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
            return _NONE_SUCH
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
        learned = self._record_limit.get(topic) or self._batch_bytes_max
        return replace(
            target,
            batch_bytes_max=min(limit, learned, self._batch_bytes_max),
            key_required="compact" in policy,
        )


def _possible(topic: str) -> bool:
    return _TOPIC_NAME.fullmatch(topic) is not None


def _may_write(operations: object) -> bool:
    """Whether the broker's list of rights includes writing; an old broker sends none."""
    if not isinstance(operations, list) or not operations:
        return True
    return not {"WRITE", "ALL"}.isdisjoint(map(str, operations))
