"""Requests to the leaders of partitions: offsets, and record batches as the brokers send them.

Committed fetches end at the last stable offset, and each lists the aborted transactions whose
records it holds.

Each call sends one request to each leader and reads the answers; an error is the answer for its
partition. connection.py decides which to repeat. The coroutines run in the event loop of
kafka-python's client.

No other read goes below kafka-python's consumer. A consumer decodes records itself, and
raises for ever at a header name that is no UTF-8; no setting replaces its decoder. So the client
package, too, takes whole record batches from here. All that is used exists in every kafka-python
from 3.0.0 on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeVar

from kafka import errors
from kafka.future import Future
from kafka.protocol.consumer import FetchRequest, ListOffsetsRequest
from kafka.structs import TopicPartition as KafkaPartition

from duewheel.deadline import Deadline
from duewheel.errors import DuewheelError
from duewheel.kafka.connect.clients import KafkaClients, close
from duewheel.kafka.connect.network_client import manager_of, set_topics
from duewheel.schemas.partition_names import partition_name
from duewheel.schemas.wire.batch_reader import CorruptBatch, end_offset

if TYPE_CHECKING:  # the client has no numpy
    from duewheel.schemas.batches import TopicPartition

_READ_ALL, _READ_COMMITTED = 0, 1
NO_END = 1 << 62
_FETCH_VERSION_MAX = 12  # later ones name topics by id
# A broker's, for bytes. Ranges end at known offsets, so it hardly ever waits; a reader that follows
# waits so long for a broker without news, while another broker's news is there.
_MAX_WAIT_MS = 100
# At least of a partition, where many share an answer. Whole batches of most producers, which would
# else come one by one.
_SHARE_BYTES_MIN = 1 << 20
_FRAME_BYTES_MAX = (1 << 31) - 1  # a broker sends a first batch whole, above the requested bytes
_METADATA_AGE_MS = 2_000  # so soon are added partitions seen, and leaders that have moved
_CHECK_MS = 1_000  # between checks whether a leader without answer still is one

_FetchTopic = FetchRequest.FetchTopic
_FetchPartition = _FetchTopic.FetchPartition
_OffsetsTopic = ListOffsetsRequest.ListOffsetsTopic
_OffsetsPartition = _OffsetsTopic.ListOffsetsPartition

# Topics, each with the parts of a request or a response for its partitions.
_ByTopic = Iterable[tuple[str, Iterable[Any]]]
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Fetched:
    """A broker's answer to a fetch, for one partition.

    Attributes:
        partition: which.
        octets: record batches end to end; the last may be cut off.
        aborted: producer id and first offset of each aborted transaction.
        begin: the requested offset. The first batch may have records below it, which were read
            before, or which retention has deleted.
        end: offset after the last whole batch, where the next fetch begins; of a range, at most
            a batch after its end.
    """

    partition: TopicPartition
    octets: memoryview
    aborted: Sequence[tuple[int, int]]
    begin: int
    end: int

    @classmethod
    def of(cls, partition: TopicPartition, answer: Any, begin: int, until: int = NO_END) -> Fetched:
        """Makes it of kafka-python's answer, which is no error, to a fetch from `begin` on. Offsets
        from `until` on are of no interest.
        """
        octets = memoryview(answer.records or b"")
        aborted = [
            (each.producer_id, each.first_offset) for each in answer.aborted_transactions or ()
        ]
        return cls(partition, octets, aborted, begin, max(begin, end_offset(octets, until)))


class LeaderRequests:
    """Sends the requests over a client of kafka-python. Not thread-safe."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._manager = manager_of(client)  # KafkaConsumer takes it the same way

    @classmethod
    def connect(cls, clients: KafkaClients, topics: Sequence[str], deadline: Deadline) -> Self:
        """Opens a client that knows these topics; it has no metadata of them yet."""
        client = clients.connect(
            deadline,
            receive_message_max_bytes=_FRAME_BYTES_MAX,
            metadata_max_age_ms=_METADATA_AGE_MS,
        )
        # Otherwise a metadata request would create a deleted topic again, on most clusters.
        client.cluster.config["allow_auto_create_topics"] = False
        requests = cls(client)
        requests.set_topics(topics)
        return requests

    def set_topics(self, topics: Iterable[str]) -> None:
        """Changes the topics of the metadata, which is then to be read."""
        set_topics(self._client, topics)

    def run(self, call: Callable[..., Any], *args: Any) -> Any:
        """The result of a coroutine. Each request in it has kafka-python's time-out."""
        return self._manager.run(call, *args)

    async def refresh_metadata(self) -> None:
        """Reads the partitions and leaders of the topics."""
        await self._client.cluster.refresh_metadata()

    def request_metadata(self) -> None:
        """Has the metadata read soon: a leader may have moved."""
        self._client.cluster.request_update()

    def partitions_of(self, topic: str) -> list[int]:
        """The numbers of a topic's partitions, as the metadata has them now."""
        return sorted(self._client.cluster.partitions_for_topic(topic) or ())

    def topic_id(self, topic: str) -> str:
        """Kafka's id of a topic that is in the metadata."""
        return str(self._client.cluster.topic_id(topic))

    def require_authorized(self, topic: str) -> None:
        """Raises kafka-python's error if the metadata refuses to describe a topic."""
        if topic in self._client.cluster.unauthorized_topics:
            raise errors.TopicAuthorizationFailedError(topic)

    def is_throttled(self) -> bool:
        """Whether a broker delays the client, which exceeds its quota."""
        brokers = self._client.cluster.brokers()
        return any(self._client.throttle_delay(broker.node_id) for broker in brokers)

    def close(self) -> None:
        """Closes all connections."""
        close(self._client)

    async def list_offsets(
        self, partitions: Sequence[TopicPartition], at: int, committed: bool
    ) -> dict[TopicPartition, int | Exception]:
        """An offset of each partition.

        Args:
            at: EARLIEST: the log's start. LATEST: its end. Else epoch ms: the first offset of
                that time or a later one, -1 if there is none.
            committed: the end is the last stable offset, and only offsets below it count.
        """
        entries = {
            (topic, number): _OffsetsPartition(partition_index=number, timestamp=at)
            for topic, number in partitions
        }

        def request(topics: _ByTopic) -> Any:
            return ListOffsetsRequest(
                replica_id=-1,
                isolation_level=_READ_COMMITTED if committed else _READ_ALL,
                topics=[_OffsetsTopic(name=topic, partitions=each) for topic, each in topics],
            )

        return await self._ask(
            entries,
            request,
            lambda response: [(topic.name, topic.partitions) for topic in response.topics],
            lambda _, answer: int(answer.offset),
        )

    async def fetch(
        self,
        positions: Mapping[TopicPartition, int],
        bytes_max: int,
        committed: bool,
        untils: Mapping[TopicPartition, int] | None = None,
    ) -> dict[TopicPartition, Fetched | Exception]:
        """Record batches from these positions on.

        Args:
            positions: offset of each partition.
            bytes_max: bounds a leader's response, but for a larger first batch. Partitions share
                it: one with a backlog would fill it, and most of it may be after its range.
            committed: the answers end at the last stable offset.
            untils: the offsets after the ranges of partitions that have some.
        """
        share = min(bytes_max, max(bytes_max // max(len(positions), 1), _SHARE_BYTES_MIN))
        entries = {
            (topic, number): _FetchPartition(
                partition=number, fetch_offset=position, partition_max_bytes=share
            )
            for (topic, number), position in positions.items()
        }

        def fetched(partition: TopicPartition, answer: Any) -> Fetched:
            try:
                until = (untils or {}).get(partition, NO_END)
                return Fetched.of(partition, answer, positions[partition], until)
            except CorruptBatch as error:
                raise unreadable(partition, error) from error

        return await self._ask(
            entries,
            lambda topics: _fetch_request(topics, bytes_max, committed),
            lambda response: [(topic.topic, topic.partitions) for topic in response.responses],
            fetched,
        )

    async def await_news(
        self, positions: Mapping[TopicPartition, int], committed: bool, wait_ms: int
    ) -> bool:
        """Whether there may be records from one of these positions on. Waits until a leader has
        some, or fails, but for `wait_ms` at most. It does not wait for other leaders, which answer
        nothing else on this connection before.
        """
        entries = {
            (topic, number): _FetchPartition(
                partition=number, fetch_offset=position, partition_max_bytes=1
            )
            for (topic, number), position in positions.items()
        }
        first = Future()

        def answered(answer: Any) -> None:
            if not first.is_done:
                first.success(answer)

        leaders = self._by_leader(entries)
        for node, partitions in leaders.items():
            if node is None or not self._client.cluster.broker_metadata(node):
                return True
            request = _fetch_request(_by_topic(partitions, entries), 1, committed, wait_ms)
            self._manager.send(request, node).add_both(answered)
        answer = await self._while_led(first, leaders)
        return isinstance(answer, Exception) or any(
            each.error_code or each.records for t in answer.responses for each in t.partitions
        )

    async def _ask(
        self,
        entries: Mapping[TopicPartition, Any],
        request: Callable[[_ByTopic], Any],
        answers_in: Callable[[Any], _ByTopic],
        read: Callable[[TopicPartition, Any], Answer],
    ) -> dict[TopicPartition, Answer | Exception]:
        """Sends one request to each leader, all at once; returns an answer or error of each
        partition.

        Args:
            entries: the part of a request for each partition.
            request: makes one of the entries for one leader.
            answers_in: the answers for partitions in a leader's response.
            read: reads an answer that is no error.
        """
        answers: dict[TopicPartition, Answer | Exception] = {}
        leaders = self._by_leader(entries)
        # A leader that the metadata does not list is about to come, or to go.
        sent = {
            node: self._manager.send(request(_by_topic(partitions, entries)), node)
            for node, partitions in leaders.items()
            if node is not None and self._client.cluster.broker_metadata(node)
        }
        for node, partitions in leaders.items():
            try:
                if node not in sent:
                    raise _no_leader(node, partitions)
                response = await self._while_led(sent[node], {node: partitions})
            except errors.KafkaError as error:
                answers |= dict.fromkeys(partitions, error)
                continue
            for topic, of_topic in answers_in(response):
                for answer in of_topic:
                    partition = (topic, answer.partition_index)
                    failure = _failure(answer.error_code, partition)
                    answers[partition] = failure or read(partition, answer)
        return answers

    async def _while_led(
        self, answer: Future, leaders: Mapping[int | None, Sequence[TopicPartition]]
    ) -> Any:
        """The answer of these leaders; an error once another broker leads one of the partitions.
        One that hangs would be waited for until kafka-python's time-out.
        """
        while not answer.is_done:
            try:
                return await self._manager.wait_for(answer, _CHECK_MS)
            except errors.KafkaTimeoutError:
                now = self._by_leader(each for led in leaders.values() for each in led)
                if not answer.is_done and now != leaders:
                    names = ", ".join(partition_name(p) for led in leaders.values() for p in led)
                    raise errors.NotLeaderForPartitionError(names) from None
        return await answer

    def _by_leader(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[int | None, list[TopicPartition]]:
        """The partitions of each broker; -1: those without a leader; None: those that the metadata
        lacks.
        """
        leaders: dict[int | None, list[TopicPartition]] = {}
        for partition in partitions:
            leader = self._client.cluster.leader_for_partition(KafkaPartition(*partition))
            leaders.setdefault(leader, []).append(partition)
        return leaders


def _fetch_request(
    topics: _ByTopic, bytes_max: int, committed: bool, wait_ms: int = _MAX_WAIT_MS
) -> FetchRequest:
    return FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=bytes_max,
        isolation_level=_READ_COMMITTED if committed else _READ_ALL,
        topics=[_FetchTopic(topic=topic, partitions=each) for topic, each in topics],
        max_version=_FETCH_VERSION_MAX,
    )


def _no_leader(node: int | None, partitions: Iterable[TopicPartition]) -> Exception:
    """The error of partitions that no known broker leads."""
    names = ", ".join(map(partition_name, partitions))
    error: Exception = errors.LeaderNotAvailableError(f"no leader of {names}")
    if node is None:
        error = errors.UnknownTopicOrPartitionError(names)
    return error


def _by_topic(
    partitions: Iterable[TopicPartition], entries: Mapping[TopicPartition, Any]
) -> _ByTopic:
    topics: dict[str, list[Any]] = {}
    for partition in partitions:
        topics.setdefault(partition[0], []).append(entries[partition])
    return topics.items()


def unreadable(partition: TopicPartition, error: CorruptBatch) -> DuewheelError:
    """The error of a partition that has a damaged batch. Another fetch, or another leader, may have
    it whole: a dead letter would be final.
    """
    name = partition_name(partition)
    return DuewheelError(
        f"{name}: {error}. No read gets past it until a replica leads that has the batch as it "
        "was, or the log is deleted up to behind it. Of a timer topic, `duewheel reconfigure "
        f"--skip {name}@<that offset>` has ingest leave out a batch with a wrong checksum"
    )


def _failure(code: int, partition: TopicPartition) -> Exception | None:
    if not code:
        return None
    error: Exception = errors.for_code(code)(partition_name(partition))
    return error
