"""Kafka's topics in memory, and clients of them: those that duewheel's own client opens.

A record gets its place and its time here as from a broker, and is read again as record batches.
Every topic exists, with the same number of partitions. Readers see committed records alone: those
of an open transaction hold back all later ones of their partition, and those of an aborted one
leave a gap. A transaction that is open for too long is aborted, and its producer fenced. A
record for a topic without a leader fails its own future and nothing else, as kafka-python's does
after `delivery_timeout_ms`. Each client is as much of kafka-python's as duewheel's client calls.

Thread-safe: `changed` guards the records. A reader of replies waits in a thread of its own.
"""

from __future__ import annotations

import struct
import threading
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kafka import KafkaProducer
from kafka.consumer.fetcher import ConsumerRecord
from kafka.errors import IllegalStateError, KafkaTimeoutError, MessageSizeTooLargeError
from kafka.producer.future import FutureProduceResult, FutureRecordMetadata
from kafka.record.default_records import DefaultRecordBatchBuilder
from kafka.structs import TopicPartition as KafkaPartition

from duewheel.clock import Clock
from duewheel.kafka.log.leader_requests import Fetched, LeaderRequests
from duewheel.kafka.log.list_offsets_times import EARLIEST
from duewheel.schemas.batches import TopicPartition
from duewheel.schemas.wire.record_batch import Batch
from duewheel.schemas.wire.record_rows import rows_of

PARTITIONS = 4  # of each topic
TRANSACTION_TIMEOUT_MS = int(KafkaProducer.DEFAULT_CONFIG["transaction_timeout_ms"])

_NEWS_S = 0.1  # a broker waits so long for new records before it answers without any
_BATCH_BYTES_MAX = 1 << 30  # in one answer to a fetch
_CREATE_TIME = 0


@dataclass(eq=False)
class MemoryTransaction:
    """Records and offsets that become visible together, or never.

    Attributes:
        transactional_id: the producer's.
        records: in the order in which they were sent.
        firsts: the first offset of these in each of their partitions.
        offsets: those of consumer groups, by group and partition.
        until_ms: when it is aborted; None: it is empty, so no reader waits for it.
    """

    transactional_id: str
    records: list[ConsumerRecord] = field(default_factory=list)
    firsts: dict[TopicPartition, int] = field(default_factory=dict)
    offsets: dict[tuple[str, TopicPartition], int] = field(default_factory=dict)
    until_ms: int | None = None


class MemoryCluster:
    """The topics; see the module's head.

    Attributes:
        changed: notified of each record that becomes visible; guards all.
        after_send: called with each record of a producer once it is visible, in its thread.
        group_offsets: where a group continues, by group and partition.
        owners: the producer that owns a transactional id.
        leaderless: topics whose partitions take no records of producers.
    """

    def __init__(self, clock: Clock, append_time: Container[str] = ()) -> None:
        """`clock`: of the brokers. `append_time`: topics whose records have its time alone."""
        self.changed = threading.Condition(threading.RLock())
        self.after_send: Callable[[ConsumerRecord], None] = lambda _: None
        self.is_closed = False
        self.group_offsets: dict[tuple[str, TopicPartition], int] = {}
        self.owners: dict[str, MemoryProducer] = {}
        self.leaderless: set[str] = set()
        self._clock, self._append_time = clock, append_time
        # None: a record of an aborted transaction.
        self._logs: defaultdict[TopicPartition, list[ConsumerRecord | None]] = defaultdict(list)
        self._open: list[MemoryTransaction] = []
        self._unseen: list[ConsumerRecord] = []  # in the order in which they were sent
        self._arrivals: defaultdict[str, list[ConsumerRecord]] = defaultdict(list)

    def open(self, kind: type, **options: Any) -> MemoryProducer:
        """Opens a client in the place of one of kafka-python's.

        Raises:
            NotImplementedError: there is none of this kind.
        """
        if kind is KafkaProducer:
            return MemoryProducer(self, **options)
        raise NotImplementedError(
            "the test kit stands for KafkaProducer only: "
            f"{kind.__name__} needs a Kafka, as `duewheel dev-broker run` starts one"
        )

    def close(self) -> None:
        """Ends the clients that are still open: they raise from here on."""
        with self.changed:
            self.is_closed = True
            self.changed.notify_all()

    def require_open(self) -> None:
        """Refuses a client that has outlived its test.

        Raises:
            IllegalStateError: the cluster is closed.
        """
        if self.is_closed:
            raise IllegalStateError("the test with this client has ended")

    # ---- records ---------------------------------------------------------------------------

    def append(
        self,
        partition: TopicPartition,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
        timestamp_ms: int | None = None,
        transaction: MemoryTransaction | None = None,
    ) -> ConsumerRecord:
        """Writes a record, by default with the present time and committed."""
        with self.changed:
            log = self._logs[partition]
            if timestamp_ms is None or partition[0] in self._append_time:
                timestamp_ms = self._clock.now_ms()
            sizes = (-1 if data is None else len(data) for data in (key, value))
            place = *partition, None, len(log), timestamp_ms, _CREATE_TIME
            record = ConsumerRecord(*place, key, value, list(headers), None, *sizes, -1)
            log.append(record)
            self._unseen.append(record)
            if transaction is None:
                self._show()
            else:
                transaction.records.append(record)
                transaction.firsts.setdefault(partition, record.offset)
                self.has_begun(transaction)
            return record

    def write(self, partition: TopicPartition, batch: Batch, timestamp_ms: int) -> None:
        """Writes the records of an encoded batch."""
        with self.changed:
            for _, _, key, value, headers in rows_of(batch.body, batch.count):
                self.append(partition, key, value, headers, timestamp_ms)

    def records(self, topic: str) -> list[ConsumerRecord]:
        """Lists the records of a topic in the order in which they became visible."""
        with self.changed:
            return list(self._arrivals[topic])

    def end(self, partition: TopicPartition) -> int:
        """The offset after the last record that readers see."""
        with self.changed:
            held = [each.firsts[partition] for each in self._open if partition in each.firsts]
            return min(held, default=len(self._logs[partition]))

    def slice(self, partition: TopicPartition, begin: int) -> list[ConsumerRecord]:
        """Lists the records of a partition from an offset on, up to the end."""
        with self.changed:
            records = self._logs[partition][begin : self.end(partition)]
            return [record for record in records if record is not None]

    def fetched(self, partition: TopicPartition, begin: int) -> Fetched:
        """Answers a fetch from an offset on, up to the end, as brokers do: with record batches."""
        with self.changed:
            records, end = self.slice(partition, begin), self.end(partition)
        octets = bytearray()
        if records:
            builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, _BATCH_BYTES_MAX)
            for each in records:
                delta = each.offset - begin
                builder.append(delta, each.timestamp, each.key, each.value, each.headers)
            octets = bytearray(builder.build())
            struct.pack_into(">q", octets, 0, begin)
        return Fetched(partition, memoryview(octets), (), begin, end)

    def _show(self) -> None:
        """Lets readers see the records that no open transaction holds back any more."""
        unseen = self._unseen
        places = {(record.topic, record.partition) for record in unseen}
        ends = {place: self.end(place) for place in places}
        self._unseen = []
        for record in unseen:
            place = (record.topic, record.partition)
            if record.offset >= ends[place]:
                self._unseen.append(record)
            elif self._logs[place][record.offset] is not None:
                self._arrivals[record.topic].append(record)
        self.changed.notify_all()

    # ---- transactions ----------------------------------------------------------------------

    def begin(self, transactional_id: str) -> MemoryTransaction:
        """Opens a transaction."""
        with self.changed:
            transaction = MemoryTransaction(transactional_id)
            self._open.append(transaction)
            return transaction

    def has_begun(self, transaction: MemoryTransaction) -> None:
        """Bounds the time of an open transaction, from its first record or offset on."""
        if transaction.until_ms is None:
            transaction.until_ms = self._clock.now_ms() + TRANSACTION_TIMEOUT_MS

    @property
    def next_timeout_ms(self) -> int | None:
        """When the next open transaction is aborted; None: there is none."""
        return min((t.until_ms for t in self._open if t.until_ms is not None), default=None)

    def end_timed_out(self) -> None:
        """Aborts the transactions that have been open for too long, and fences their producers."""
        now_ms = self._clock.now_ms()
        with self.changed:
            for each in [t for t in self._open if t.until_ms is not None and t.until_ms <= now_ms]:
                del self.owners[each.transactional_id]
                self.finish(each, commit=False)

    def finish(self, transaction: MemoryTransaction, *, commit: bool) -> None:
        """Ends an open transaction."""
        with self.changed:
            self._open.remove(transaction)
            if commit:
                self.group_offsets |= transaction.offsets
            else:
                for record in transaction.records:
                    self._logs[record.topic, record.partition][record.offset] = None
            self._show()
        for record in transaction.records if commit else ():
            self.after_send(record)

    def take_over(self, transactional_id: str, owner: MemoryProducer) -> None:
        """Makes a producer the owner of its id: a former one's open transaction is aborted."""
        with self.changed:
            self.owners[transactional_id] = owner
            for each in [t for t in self._open if t.transactional_id == transactional_id]:
                self.finish(each, commit=False)

    # ---- kafka-python's ClusterMetadata, for partitioners ------------------------------------

    def topics(self) -> Sequence[str]:
        """Lists the topics with records; a partitioner adds its own."""
        return list(self._arrivals)

    def partitions_for_topic(self, topic: str) -> set[int]:
        """Returns the partitions of any topic, which then exists."""
        self._arrivals[topic]
        return set(range(PARTITIONS))

    available_partitions_for_topic = partitions_for_topic


class MemoryProducer:
    """Stands where KafkaProducer stands: each record is written, and acknowledged, at once."""

    def __init__(
        self,
        cluster: MemoryCluster,
        *,
        partitioner: Any,
        key_serializer: Any,
        value_serializer: Any,
        max_request_size: int = KafkaProducer.DEFAULT_CONFIG["max_request_size"],
        **_: Any,
    ) -> None:
        self._cluster = cluster
        self._bytes_max = max_request_size
        self._is_closed = False
        self._transaction: MemoryTransaction | None = None  # of a transactional one
        self._partitioner = partitioner
        self._key_serializer, self._value_serializer = key_serializer, value_serializer

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Sequence[tuple[str, bytes]] | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> FutureRecordMetadata:
        """As KafkaProducer; a record without key and partition goes to partition 0."""
        self._cluster.require_open()
        if self._is_closed:
            raise IllegalStateError("the producer is closed")
        headers = list(headers or ())
        octets_of_key = self._key_serializer.serialize(topic, headers, key)
        octets = self._value_serializer.serialize(topic, headers, value)
        _require_writable(octets_of_key, octets, headers, self._bytes_max)
        numbers = self._cluster.partitions_for_topic(topic)
        if partition is None:
            partition = 0
            if octets_of_key is not None:
                partition = self._partitioner.partition(
                    *(topic, key, octets_of_key, value, octets, self._cluster)
                )
        elif partition not in numbers:
            raise ValueError(f"Unrecognized partition {partition} for topic {topic}")
        place = (topic, partition)
        sent = FutureProduceResult(KafkaPartition(*place))
        future = FutureRecordMetadata(sent, 0, timestamp_ms, None, -1, -1, -1)
        if topic in self._cluster.leaderless:
            sent.failure(KafkaTimeoutError(f"Expiring 1 record(s) for {topic}-{partition}"))
            return future
        record = self._cluster.append(
            *(place, octets_of_key, octets, headers, timestamp_ms, self._transaction)
        )
        if self._transaction is None:
            self._cluster.after_send(record)
        sent.success((record.offset, record.timestamp, None))
        return future

    def partitions_for(self, topic: str) -> set[int]:
        """As KafkaProducer."""
        return self._cluster.partitions_for_topic(topic)

    def flush(self, timeout: float | None = None) -> None:
        """As KafkaProducer: nothing waits."""

    def close(self, timeout: float | None = None) -> None:
        """As KafkaProducer: it sends no more. An open transaction stays open."""
        self._is_closed = True


class MemoryLeaders(LeaderRequests):
    """Stands where a reader has its requests to the leaders: each answers at once, but for news."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self._cluster = cluster

    def run(self, call: Callable[..., Any], *args: Any) -> Any:
        """See LeaderRequests. The coroutines of this class wait for nothing."""
        try:
            call(*args).send(None)
        except StopIteration as returned:
            return returned.value
        raise AssertionError("a coroutine without an await has ended")

    def set_topics(self, topics: Iterable[str]) -> None:
        """See LeaderRequests: every topic exists."""

    async def refresh_metadata(self) -> None:
        """See LeaderRequests."""

    def request_metadata(self) -> None:
        """See LeaderRequests."""

    def partitions_of(self, topic: str) -> list[int]:
        """See LeaderRequests."""
        return sorted(self._cluster.partitions_for_topic(topic))

    def is_throttled(self) -> bool:
        """See LeaderRequests."""
        return False

    def close(self) -> None:
        """See LeaderRequests: there is nothing to close."""

    async def list_offsets(
        self, partitions: Sequence[TopicPartition], time: int, committed: bool
    ) -> dict[TopicPartition, int | Exception]:
        """See LeaderRequests."""
        return {p: 0 if time == EARLIEST else self._cluster.end(p) for p in partitions}

    async def fetch(
        self, positions: Mapping[TopicPartition, int], *_: Any
    ) -> dict[TopicPartition, Fetched | Exception]:
        """See LeaderRequests. Waits for news as a broker does."""
        cluster = self._cluster
        with cluster.changed:
            cluster.changed.wait_for(
                lambda: (
                    cluster.is_closed or any(at < cluster.end(p) for p, at in positions.items())
                ),
                _NEWS_S,
            )
            cluster.require_open()
            return {p: cluster.fetched(p, at) for p, at in positions.items()}


def _require_writable(
    key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, Any]], bytes_max: int
) -> None:
    """Refuses the same records as KafkaProducer.

    Raises:
        ValueError, TypeError, MessageSizeTooLargeError: as KafkaProducer.
    """
    if key is None and value is None:
        raise ValueError("Need at least one: key or value")
    for data in (key, value):
        if not isinstance(data, bytes | bytearray | memoryview | None):
            raise TypeError(f"Unsupported type for a serialized key or value: {type(data)}")
    if not all(isinstance(octets, bytes) for _, octets in headers):
        raise TypeError("All headers items must be (str, bytes) tuples")
    size = DefaultRecordBatchBuilder.estimate_size_in_bytes(key, value, headers)
    if size > bytes_max:
        raise MessageSizeTooLargeError(f"{size} bytes are more than max_request_size, {bytes_max}")
