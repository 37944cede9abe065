"""Reads topics as an application does: the one place in the tests that makes a Kafka consumer.

Every read up to an end is bounded in time, and fails with the place that cannot be read.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from kafka import KafkaConsumer, TopicPartition
from tests.harness.launcher import wait_until

_GIVE_UP_S = 90.0
_MARKERS_S = 5.0  # longer is a transaction open that a test has left so


@contextmanager
def consumer(servers: str, **settings: Any) -> Iterator[KafkaConsumer]:
    """One of no group that sees committed records only, from the beginning on, by default."""
    usual = {"isolation_level": "read_committed", "auto_offset_reset": "earliest", "group_id": None}
    made = KafkaConsumer(bootstrap_servers=servers, **usual | settings)
    try:
        yield made
    finally:
        made.close()


class TopicReader(threading.Thread):
    """Hands every committed record of topics to a function, in a thread of its own, until `stop`.

    Attributes:
        failure: why it ended before it was stopped.
    """

    def __init__(
        self,
        servers: str,
        topics: Sequence[str],
        take: Callable[[list[Any]], object],
        *,
        from_end: bool = False,
        **settings: Any,
    ) -> None:
        """
        Args:
            servers: of Kafka.
            topics: they exist once it is started.
            take: called with the records of each poll that has any.
            from_end: whether it begins with what is written after this call, at its start if not.
            settings: of the consumer.
        """
        super().__init__(name="topic reader", daemon=True)
        self.failure: BaseException | None = None
        self._topics, self._take, self._stopping = topics, take, threading.Event()
        self._servers, self._settings = servers, settings
        self._starts: dict[TopicPartition, int] = {}
        if from_end:
            with consumer(servers, **settings) as stranger:
                self._starts = dict(stranger.end_offsets(partitions_of(stranger, *topics)))

    def run(self) -> None:
        try:
            self._read()
        except BaseException as failure:
            self.failure = failure
            raise

    def _read(self) -> None:
        with consumer(self._servers, **self._settings) as stranger:
            starts = self._starts or dict.fromkeys(partitions_of(stranger, *self._topics), 0)
            _begin(stranger, starts)
            while not self._stopping.is_set():
                if records := poll(stranger, 100):
                    self._take(records)

    def stop(self) -> None:
        """Wait for its end, if it was started."""
        self._stopping.set()
        if self.ident is not None:
            self.join(_GIVE_UP_S)
            assert not self.is_alive(), f"the reader of {self._topics} does not end"


def poll(stranger: KafkaConsumer, timeout_ms: int) -> list[Any]:
    """The records that have come, partition by partition."""
    polled = stranger.poll(timeout_ms=timeout_ms)
    return [record for records in polled.values() for record in records]


def partitions_of(stranger: KafkaConsumer, *topics: str) -> list[TopicPartition]:
    """All partitions of topics that exist, or are about to."""

    def known() -> bool:
        return all(stranger.partitions_for_topic(topic) for topic in topics)

    wait_until(known, f"no metadata of {topics}", _GIVE_UP_S)
    return [
        TopicPartition(topic, number)
        for topic in topics
        for number in sorted(stranger.partitions_for_topic(topic))
    ]


def read_first(servers: str, topic: str, count: int, **settings: Any) -> list[Any]:
    """The first `count` committed records of a topic, once they are there."""
    found: list[Any] = []
    with consumer(servers, **settings) as stranger:
        _begin(stranger, dict.fromkeys(partitions_of(stranger, topic), 0))
        give_up = time.monotonic() + _GIVE_UP_S
        while len(found) < count:
            assert time.monotonic() < give_up, f"{topic} has {len(found)} records of {count}"
            found += poll(stranger, 100)
    return found[:count]


def read_committed(servers: str, starts: Mapping[TopicPartition, int]) -> list[Any]:
    """Every committed record from these offsets on, partition by partition."""
    with consumer(servers) as stranger:
        return _to_the_end(stranger, starts)


def read_topic(servers: str, topic: str, first: Mapping[int, int] | None = None) -> list[Any]:
    """Every committed record of a topic, partition by partition.

    Args:
        servers, topic: where.
        first: offsets to begin at, by partition; by default the first ones.
    """
    with consumer(servers) as stranger:
        partitions = partitions_of(stranger, topic)
        _await_markers(servers, stranger, partitions)
        return _to_the_end(stranger, {p: (first or {}).get(p.partition, 0) for p in partitions})


def await_markers(servers: str, topic: str) -> None:
    """Waits until committed records of a topic can be read."""
    with consumer(servers) as stranger:
        _await_markers(servers, stranger, partitions_of(stranger, topic))


def _await_markers(
    servers: str, stranger: KafkaConsumer, partitions: Sequence[TopicPartition]
) -> None:
    """Waits for the transactions in them: Kafka acknowledges a commit before its markers are there,
    and a reader of committed records would miss it.
    """
    with consumer(servers, isolation_level="read_uncommitted") as other:
        ends = other.end_offsets(partitions)
    give_up = time.monotonic() + _MARKERS_S
    while time.monotonic() < give_up:
        stable = stranger.end_offsets(partitions)
        if all(stable[partition] >= end for partition, end in ends.items()):
            return
        time.sleep(0.05)


def everything_in(servers: str, topic: str, partitions: int) -> list[Any]:
    """Everything that is in a topic now, of open and aborted transactions, too."""
    with consumer(servers, isolation_level="read_uncommitted") as stranger:
        return _to_the_end(stranger, {TopicPartition(topic, n): 0 for n in range(partitions)})


def _begin(stranger: KafkaConsumer, starts: Mapping[TopicPartition, int]) -> None:
    stranger.assign(list(starts))
    for partition, offset in starts.items():
        stranger.seek(partition, offset)


def _to_the_end(stranger: KafkaConsumer, starts: Mapping[TopicPartition, int]) -> list[Any]:
    """What is there now, from these offsets on."""
    _begin(stranger, starts)
    ends = stranger.end_offsets(list(starts))
    found: dict[TopicPartition, list[Any]] = {partition: [] for partition in starts}
    give_up = time.monotonic() + _GIVE_UP_S
    while any(stranger.position(partition) < end for partition, end in ends.items()):
        assert time.monotonic() < give_up, f"{list(starts)} cannot be read to their ends"
        for record in poll(stranger, 100):
            found[TopicPartition(record.topic, record.partition)].append(record)
    return [record for records in found.values() for record in records]
