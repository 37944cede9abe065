"""Reads topics, their settings and offsets, over a connection that the first call opens."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self, TypeVar

from kafka import KafkaAdminClient
from kafka.errors import for_code

from duewheel.deadline import Deadline
from duewheel.errors import KafkaUnavailable, Misconfigured, Unacknowledged
from duewheel.kafka.connect.clients import KafkaClients, close
from duewheel.kafka.log.connection import LogConnection
from duewheel.kafka.log.list_offsets_times import EARLIEST, LATEST
from duewheel.kafka.topics.description import Topic, describe, read_settings
from duewheel.schemas.batches import TopicPartition

T = TypeVar("T")
_DEADLINE_S = 30.0


class TopicReader:
    """See the module's head. Not thread-safe. Every call has a deadline, and raises
    KafkaUnavailable, naming the address, when it passes; Misconfigured, if a right is missing.

    Example:
        with TopicReader(settings.kafka.client_options("admin")) as reader:
            reader.starts(["orders.delayed"])     # {("orders.delayed", 0): 1234, …}
    """

    def __init__(
        self,
        client: Mapping[str, Any],
        deadline_s: float = _DEADLINE_S,
        stopping: threading.Event | None = None,
    ) -> None:
        """Checks the client settings; connects nothing.

        Args:
            client: kafka-python settings: address, security.
            stopping: once set, no call waits longer than a moment for Kafka.

        Raises:
            Misconfigured: a client setting is unknown or decided by duewheel.
        """
        self.clients = KafkaClients(client)
        self._deadline_s = deadline_s
        self._stopping = stopping
        self._client: KafkaAdminClient | None = None
        # Without topics of its own: it would read the metadata of deleted ones again and again.
        self._connection = LogConnection(self.clients, (), self.deadline)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Drops the connections; the next call opens others."""
        client, self._client = self._client, None
        if client is not None:
            close(client)
        self._connection.close()

    def deadline(self) -> Deadline:
        """A deadline for one call, from now on."""
        return Deadline(self._deadline_s, self._stopping)

    def call(self, what: str, call: Callable[[KafkaAdminClient], T], *, writes: bool = False) -> T:
        """The result of a call of the admin client.

        Raises:
            Unacknowledged: it `writes`, and there is no answer in time.
        """
        deadline = self.deadline()
        run = self.clients.write if writes else self.clients.call
        try:
            if self._client is None:
                self._client = self.clients.open(KafkaAdminClient, deadline)
            client = self._client
            return run(deadline, what, lambda: call(client))
        except (KafkaUnavailable, Unacknowledged):
            # Without this a call that hangs in the old client would never end.
            self.close()
            raise

    def topic_names(self) -> list[str]:
        """All topics of the cluster that this user may describe."""
        return self.call("list topics", lambda c: [str(name) for name in c.list_topics()])

    def topics(self, names: Sequence[str]) -> dict[str, Topic]:
        """Describes topics, existing or not, with the settings that may be read."""
        found = self.call("look up topics", lambda client: describe(client, names))
        config = self.topic_settings([name for name, topic in found.items() if topic.exists])
        return {name: replace(topic, config=config.get(name, {})) for name, topic in found.items()}

    def existing(self, names: Sequence[str]) -> dict[str, Topic]:
        """Describes existing topics without their settings; every other error of one is raised."""
        topics = self.call("look up topics", lambda client: describe(client, names))
        for topic in topics.values():
            if topic.exists or topic.is_absent:
                continue
            error = for_code(topic.error_code)
            text = f"Kafka at {self.clients.address}: topic {topic.name!r}: {error.__name__}"
            if topic.is_forbidden:
                refusal = Misconfigured(f"{text}: the right Describe is needed")
                refusal.kafka_error = error()
                raise refusal
            raise KafkaUnavailable(text)
        return {name: topic for name, topic in topics.items() if topic.exists}

    def partition_counts(self, names: Sequence[str]) -> dict[str, int]:
        """Number of partitions by topic; a topic that does not exist is left out."""
        return {name: len(topic.partitions) for name, topic in self.existing(names).items()}

    def topic_ids(self, names: Sequence[str]) -> dict[str, str]:
        """Kafka's id of each topic (`Topic.id`); a topic that does not exist is left out."""
        return {name: topic.id for name, topic in self.existing(names).items()}

    def topic_settings(self, names: Sequence[str]) -> dict[str, dict[str, str]]:
        """The settings of topics; topics whose settings may not be read are left out."""
        return self.call("read topic settings", lambda client: read_settings(client, names))

    def starts(self, topics: Sequence[str]) -> dict[TopicPartition, int]:
        """The log start of each partition of existing topics."""
        return self._offsets(topics, EARLIEST, committed=False)

    def ends(self, topics: Sequence[str], *, committed: bool) -> dict[TopicPartition, int]:
        """The end of each partition of existing topics, as LogConnection.ends."""
        return self._offsets(topics, LATEST, committed=committed)

    def offsets_at(self, topics: Sequence[str], time_ms: int) -> dict[TopicPartition, int]:
        """The first offset whose timestamp is `time_ms` or later, committed or not, by partition;
        partitions without one are left out.
        """
        found = self._offsets(topics, max(0, time_ms), committed=False)
        return {partition: offset for partition, offset in found.items() if offset >= 0}

    def _offsets(
        self, topics: Sequence[str], time: int, *, committed: bool
    ) -> dict[TopicPartition, int]:
        counts = self.partition_counts(topics)
        wanted = [(topic, number) for topic, count in counts.items() for number in range(count)]
        answers = self._connection.ask(wanted, time, committed=committed)
        with self.clients.explained("ask for offsets"):
            # All or none: a partition that is left out would pass for one that does not exist.
            return {place: _offset(answer) for place, answer in answers.items()}


def _offset(answer: int | Exception) -> int:
    if isinstance(answer, Exception):
        raise answer
    return answer
