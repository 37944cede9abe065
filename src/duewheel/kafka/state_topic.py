"""Reads a shard's newest progress record from its partition of the state topic.

Each shard has a partition of its own, the one of its index: an open transaction holds back the
stable offset of every partition that it has written to, and would hide another shard's records. A
partition also receives the transactions of `reshard`; the first one those of `dlq replay` and
`import`, too.

Order matters. The end offset is read, open transactions included, after the caller's
`init_transactions` has returned: so every record of this shard that may be committed lies below it.
Then committed records are read until the position reaches that end: while another transaction is
open there, the position stays below it, and the newest record may be hidden.

Reading starts a bounded number of offsets before the end, where the newest record almost always
lies, then further back, at last at the beginning. Compaction decides how much lies there, so a
deadline bounds the time without headway. Records beyond the end are not read, so reading ends.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.admin import OffsetSpec
from kafka.errors import KafkaError, UnknownTopicOrPartitionError, for_code
from kafka.protocol.consumer import IsolationLevel
from kafka.structs import TopicPartition

from duewheel.checkpoints.held_copies import HELD_PREFIX
from duewheel.checkpoints.progress import Progress
from duewheel.errors import ConfigError, DuewheelError
from duewheel.kafka.clients import ClientSettings, close, open_admin, open_reader
from duewheel.kafka.deadline import Deadline
from duewheel.kafka.polling import records_until
from duewheel.schemas.batches import TopicPartition as Place
from duewheel.wheel.publisher_protocol import Seen

T = TypeVar("T")

# A shard writes at least two offsets a transaction, record and marker: the first step covers 500
# transactions at most, the second 50,000.
SEARCH_STEPS = (1_000, 100_000)
_COORDINATOR_S = 3.0  # for its answer
_CLOCK_KEY = b"clock"


@dataclass(frozen=True, slots=True)
class StateRecord:
    """A record of the state topic.

    Attributes:
        value: its bytes.
        timestamp_ms: when the broker took it, by its clock.
        beside: the newest records of other keys, among those read while searching this one.
    """

    value: bytes
    timestamp_ms: int
    beside: Mapping[bytes, StateRecord] = field(default_factory=dict)


def place_of(state_topic: str, shard: int) -> TopicPartition:
    """The partition of a shard's records; records of no shard are in that of shard 0."""
    return TopicPartition(state_topic, shard)


def newest_record(
    settings: ClientSettings,
    admin: KafkaAdminClient,
    place: TopicPartition,
    key: bytes,
    deadline: Deadline,
    *,
    past_open: bool = True,
    search_steps: Sequence[int] = SEARCH_STEPS,
) -> StateRecord | None:
    """Reads the newest committed record with this key; None before the first.

    Args:
        settings, admin: of the cluster.
        place: the partition to read.
        key: of the record.
        deadline: for the call; as long as reading makes headway it is renewed.
        past_open: wait for open transactions, which may hold a newer one.
        search_steps: how many offsets before the end to begin, smallest first; if all of them find
            nothing, reading begins at the log's start.

    Raises:
        KafkaUnavailable: no headway in time.
    """

    def search(
        consumer: KafkaConsumer, where: TopicPartition, bounds: tuple[int, int]
    ) -> StateRecord | None:
        return _search(consumer, where, key, bounds, deadline, search_steps)

    found = _within_ends(settings, admin, [place], search, deadline, past_open=past_open)
    return found[0] if found else None


def newest_of(
    settings: ClientSettings,
    place: TopicPartition,
    key: bytes,
    deadline: Deadline,
    *,
    past_open: bool = True,
) -> StateRecord | None:
    """As `newest_record`, with a client of its own."""
    admin = open_admin(settings, deadline)
    try:
        return newest_record(settings, admin, place, key, deadline, past_open=past_open)
    finally:
        close(admin)


def newest_records(
    settings: ClientSettings,
    admin: KafkaAdminClient,
    topic: str,
    deadline: Deadline,
    *,
    past_open: bool = True,
) -> dict[bytes, StateRecord]:
    """The newest committed record of every key; each key lies in one partition. Reads the whole
    topic: slow.

    The arguments and the errors are those of `newest_record`.
    """

    def read(
        consumer: KafkaConsumer, where: TopicPartition, bounds: tuple[int, int]
    ) -> dict[bytes, StateRecord]:
        consumer.assign([where])
        consumer.seek(where, bounds[0])
        return _read(consumer, where, bounds[1], deadline)

    partitions = partitions_of(settings, admin, topic, deadline)
    found = _within_ends(settings, admin, partitions, read, deadline, past_open=past_open)
    return {key: record for each in found for key, record in each.items()}


def partitions_of(
    settings: ClientSettings, admin: KafkaAdminClient, topic: str, deadline: Deadline
) -> list[TopicPartition]:
    """The partitions of a topic that `duewheel init` creates.

    Raises:
        ConfigError: there is no such topic, or no right to describe it.
        KafkaUnavailable: no answer in time.
    """

    def ask() -> list[TopicPartition]:
        (row,) = admin.describe_topics([topic])
        if row["error_code"] == UnknownTopicOrPartitionError.errno:
            raise ConfigError(
                f"Kafka at {settings.address} has no topic {topic!r}: `duewheel init` creates it"
            )
        if row["error_code"]:
            raise for_code(row["error_code"])
        return [TopicPartition(topic, number) for number in range(len(row["partitions"]))]

    return settings.call(deadline, f"look up {topic}", ask)


def last_write_ms(
    settings: ClientSettings,
    admin: KafkaAdminClient,
    place: TopicPartition,
    key: bytes,
    deadline: Deadline,
) -> int:
    """When the broker took the newest record with this key that an open transaction hides; 0
    if there is none. Otherwise an owner would seem silent while another writer's open transaction
    hides its records from every reader of committed records.

    Raises:
        KafkaUnavailable: no answer in time.
    """
    stable, end = ends_of(settings, admin, place, deadline)
    if stable == end:
        return 0
    consumer = open_reader(settings, deadline, isolation_level="read_uncommitted")
    try:
        consumer.assign([place])
        consumer.seek(place, max(stable, end - SEARCH_STEPS[0]))
        found = settings.call(
            deadline,
            f"read what is not committed in {place.topic}",
            lambda: _read(consumer, place, end, deadline),
        )
        return found[key].timestamp_ms if key in found else 0
    finally:
        close(consumer)


def ends_of(
    settings: ClientSettings, admin: KafkaAdminClient, place: TopicPartition, deadline: Deadline
) -> tuple[int, int]:
    """The stable end of a partition, and its end with open transactions included.

    Raises:
        KafkaUnavailable: no answer in time.
    """
    return settings.call(
        deadline,
        f"ask for the ends of {place.topic}",
        lambda: (
            _offset(admin, place, OffsetSpec.LATEST, committed=True),
            _offset(admin, place, OffsetSpec.LATEST),
        ),
    )


def _within_ends(
    settings: ClientSettings,
    admin: KafkaAdminClient,
    partitions: Sequence[TopicPartition],
    reading: Callable[[KafkaConsumer, TopicPartition, tuple[int, int]], T],
    deadline: Deadline,
    *,
    past_open: bool,
) -> list[T]:
    """The result of `reading` for each partition that is not empty."""

    def ends() -> list[tuple[TopicPartition, tuple[int, int]]]:
        bounds = [
            (
                _offset(admin, place, OffsetSpec.EARLIEST),
                _offset(admin, place, OffsetSpec.LATEST, committed=not past_open),
            )
            for place in partitions
        ]
        return [each for each in zip(partitions, bounds, strict=True) if each[1][0] < each[1][1]]

    bounds = settings.call(deadline, f"ask for the ends of {partitions[0].topic}", ends)
    if not bounds:
        return []
    consumer = open_reader(settings, deadline)
    try:
        return settings.call(
            deadline,
            f"read the progress in {partitions[0].topic}",
            lambda: [reading(consumer, place, within) for place, within in bounds],
        )
    finally:
        close(consumer)


class KafkaProgressReader:
    """The ProgressReader (wheel/publisher_protocol.py) of one shard. It keeps one client; a
    call that fails drops it, and the next one opens another. It does not wait for open
    transactions.
    """

    def __init__(
        self,
        settings: ClientSettings,
        place: TopicPartition,
        key: bytes,
        transactional_id: str,
        *,
        stopping: threading.Event | None = None,
        deadline_s: float = 30.0,
    ) -> None:
        """Connects nothing.

        Args:
            settings: of the client.
            place: the partition of the shard.
            key: of the shard's records.
            transactional_id: of the shard's owner.
            stopping: once set, no call waits longer than a moment for Kafka.
            deadline_s: for one call.
        """
        self._settings = settings
        self._partition = place
        self._key = key
        self._transactional_id = transactional_id
        self._stopping = stopping
        self._deadline_s = deadline_s
        self._consumer: KafkaConsumer | None = None
        self._end = 0
        self._newest: StateRecord | None = None
        self._seen: Seen | None = None

    def newest(self) -> Seen | None:
        """See ProgressReader."""
        deadline = Deadline(self._deadline_s, self._stopping)
        try:
            if self._consumer is None:
                self._end, self._newest = 0, None
                self._consumer = open_reader(self._settings, deadline)
            consumer = self._consumer
            found = self._settings.call(
                deadline,
                f"read the progress in {self._partition.topic}",
                lambda: self._poll(consumer, deadline),
            )
        except DuewheelError:
            self.close()
            raise
        if found is None:
            return None
        if self._seen is None or found is not self._newest:
            self._newest = found
            self._seen = Seen(Progress.decode(found.value), found.timestamp_ms)
        return self._seen

    def require_coordinator(self) -> None:
        """See ProgressReader."""
        deadline = Deadline(_COORDINATOR_S, self._stopping)
        # A client of its own: after the coordinator has moved, a cached client keeps asking
        # the former one, which refuses.
        admin = open_admin(self._settings, deadline)
        try:
            self._settings.call(
                deadline,
                f"ask the coordinator of {self._transactional_id}",
                lambda: _ask_coordinator(admin, self._transactional_id),
            )
        finally:
            close(admin)

    def _poll(self, consumer: KafkaConsumer, deadline: Deadline) -> StateRecord | None:
        """Read the end each time: otherwise a broker that is down would look like no news."""
        where = self._partition
        end = int(consumer.end_offsets([where], timeout_ms=deadline.remaining_ms())[where])
        before, self._end = self._end, end
        if end == before:
            return self._newest
        if 0 < before < end:
            return _read(consumer, where, end, deadline).get(self._key, self._newest)
        # The first call, or a topic that was recreated.
        firsts = consumer.beginning_offsets([where], timeout_ms=deadline.remaining_ms())
        return _search(consumer, where, self._key, (int(firsts[where]), end), deadline)

    def close(self) -> None:
        """Drop the client."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            close(consumer)


def _ask_coordinator(admin: KafkaAdminClient, transactional_id: str) -> None:
    try:
        admin.describe_transactions([transactional_id])
    except KafkaError as error:
        # Other errors are answers of a coordinator: no such id, or a broker older than 3.0 without
        # this request.
        if error.retriable:
            raise


def broker_now_ms(settings: ClientSettings, partition: TopicPartition, deadline: Deadline) -> int:
    """The brokers' clock: the timestamp of a record that is written for that alone.

    Args:
        settings: of the cluster.
        partition: of a topic whose timestamps are the brokers'.
        deadline: for the call.

    Raises:
        KafkaUnavailable: no answer in time.
    """
    producer = settings.open(KafkaProducer, deadline)
    try:
        return settings.call(
            deadline,
            "ask for the brokers' clock",
            lambda: int(
                producer.send(partition.topic, key=_CLOCK_KEY, partition=partition.partition)
                .get(timeout=deadline.remaining_s())
                .timestamp
            ),
        )
    finally:
        close(producer)


def log_ends(
    settings: ClientSettings,
    admin: KafkaAdminClient,
    partitions: Sequence[Place],
    deadline: Deadline,
) -> dict[Place, int]:
    """The end of each partition, open transactions included; left out without an answer.

    Raises:
        KafkaUnavailable: there was no answer at all in time.
    """

    def ask(partitions: Sequence[Place]) -> dict[Place, int]:
        wanted = {TopicPartition(*place): OffsetSpec.LATEST for place in partitions}
        level = IsolationLevel.READ_UNCOMMITTED
        found = admin.list_partition_offsets(wanted, isolation_level=level)
        return {(p.topic, p.partition): int(end.offset) for p, end in found.items()}

    def ask_each() -> dict[Place, int]:
        try:
            return ask(partitions)
        except KafkaError:  # a partition that is missing, or has no leader, fails the whole request
            ends: dict[Place, int] = {}
            for place in partitions:
                with contextlib.suppress(KafkaError):
                    ends |= ask([place])
            return ends

    return settings.call(deadline, "ask for the ends of timer partitions", ask_each)


def _offset(
    admin: KafkaAdminClient, partition: TopicPartition, spec: OffsetSpec, *, committed: bool = False
) -> int:
    level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
    found = admin.list_partition_offsets({partition: spec}, isolation_level=level)
    return int(found[partition].offset)


def _starts(start: int, end: int, search_steps: Sequence[int]) -> Iterator[int]:
    """Where to start reading: near the end, further back, at last at the beginning."""
    for step in search_steps:
        if end - step > start:
            yield end - step
    yield start


def _search(
    consumer: KafkaConsumer,
    partition: TopicPartition,
    key: bytes,
    bounds: tuple[int, int],
    deadline: Deadline,
    search_steps: Sequence[int] = SEARCH_STEPS,
) -> StateRecord | None:
    first, end = bounds
    consumer.assign([partition])
    for start in _starts(first, end, search_steps):
        consumer.seek(partition, start)
        newest = _read(consumer, partition, end, deadline)
        found = newest.pop(key, None)
        if found is not None:
            return replace(found, beside=newest)
    return None


def _read(
    consumer: KafkaConsumer, partition: TopicPartition, end: int, deadline: Deadline
) -> dict[bytes, StateRecord]:
    """Read up to `end`: the newest record of every key, without held copies (held_copies.py)."""
    records = records_until(consumer, partition, end, deadline)
    keys = ((record.key, record) for record in records if not record.key.startswith(HELD_PREFIX))
    return {key: StateRecord(record.value, record.timestamp) for key, record in keys}
