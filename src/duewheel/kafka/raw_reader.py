"""Reads ranges of topics as raw record batches, over kafka-python's connections.

kafka-python's consumer decodes one record at a time in Python; the batches of a response can be
read as columns (schemas/wire/batch_reader.py). Metadata, security, connections and the protocol
stay kafka-python's. What every consumer must do beside that is here:

- a partition is asked at its leader; after an error the metadata is read again
- an offset below the log's start continues there: retention has deleted what lay before
- `read_committed`: no response goes beyond the last stable offset, and each names the transactions
  that were aborted

Not thread-safe: one reader, one thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from time import sleep
from typing import Any, TypeVar

from kafka import TopicPartition as Place
from kafka import errors
from kafka.protocol.consumer import FetchRequest, ListOffsetsRequest

from duewheel.errors import DuewheelError, KafkaUnavailable
from duewheel.kafka.clients import ClientSettings, close
from duewheel.kafka.deadline import Deadline, within
from duewheel.schemas.batches import OffsetRanges, TopicPartition
from duewheel.schemas.wire.batch_reader import end_offset

EARLIEST, LATEST = -2, -1  # times in a ListOffsets request
_READ_COMMITTED = 1
_FETCH_VERSION_MAX = 12  # later ones name topics by id
_STALLED_S = 60.0  # without any record, while a range is not read to its end
_RETRY_S = 0.1
_MAX_WAIT_MS = 100  # of a broker for records that were there when the range was planned
_FRAME_BYTES_MAX = (1 << 31) - 1  # a batch may be larger than the bytes asked for
_METADATA_AGE_MS = 2_000  # until partitions are seen that were added

_FetchTopic = FetchRequest.FetchTopic
_FetchPartition = _FetchTopic.FetchPartition
_OffsetsTopic = ListOffsetsRequest.ListOffsetsTopic
_OffsetsPartition = _OffsetsTopic.ListOffsetsPartition

_ByTopic = dict[str, list[int]]
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Fetched:
    """Part of a range of one partition.

    Attributes:
        partition: which.
        octets: whole record batches; the last may be cut off.
        aborted: producer id and first offset of each aborted transaction.
        begin: the offset that was asked for; a batch may hold records below it, which were read
            before, or were deleted.
        end: the offset from which reading continues.
    """

    partition: TopicPartition
    octets: memoryview
    aborted: Sequence[tuple[int, int]]
    begin: int
    end: int


class RawReader:
    """Connections to one cluster, kept between calls."""

    def __init__(
        self,
        settings: ClientSettings,
        topics: Sequence[str],
        stopping: threading.Event | None = None,
    ) -> None:
        """
        Args:
            settings: of the cluster.
            topics: that may be read.
            stopping: once set, no call waits longer than a moment for Kafka. It costs a thread for
                each call.

        Raises:
            KafkaUnavailable: no broker answers.
            ConfigError: the settings do not fit.
        """
        self._settings = settings
        self._topics = list(topics)
        self._stopping = stopping
        deadline = self._deadline()
        self._client = settings.connect(
            deadline,
            receive_message_max_bytes=_FRAME_BYTES_MAX,
            metadata_max_age_ms=_METADATA_AGE_MS,
        )
        self._manager = self._client._manager  # noqa: SLF001 - its clients have no other way to it
        # Otherwise a request for a topic that was deleted would create it, on most clusters.
        self._client.cluster.config["allow_auto_create_topics"] = False
        self._client.cluster.set_topics(self._topics)
        try:
            self._read_metadata(deadline)
        except DuewheelError:
            self.close()
            raise

    def close(self) -> None:
        """Close all connections."""
        close(self._client)

    def partitions(self) -> list[TopicPartition]:
        """All partitions of the topics, as the metadata has them now."""
        cluster = self._client.cluster
        return [
            (topic, number)
            for topic in self._topics
            for number in sorted(cluster.partitions_for_topic(topic) or ())
        ]

    def offsets(self, partitions: Iterable[TopicPartition], time: int) -> dict[TopicPartition, int]:
        """EARLIEST: the first offset of each; LATEST: the last stable one, where reading ends.

        Raises:
            KafkaUnavailable: no answer within a minute.
            ConfigError: the rights do not suffice.
        """
        wanted = list(partitions)
        found = dict[TopicPartition, int]()
        deadline = self._deadline()
        while wanted:
            answers = self._run("read the offsets", self._ask_offsets, wanted, time)
            failures = []
            for partition, answer in answers.items():
                if isinstance(answer, Exception):
                    failures.append(answer)
                else:
                    found[partition] = answer
            wanted = [each for each in wanted if each not in found]
            self._retry_before(deadline, failures)
        return found

    def read(self, between: OffsetRanges, bytes_max: int) -> Iterator[list[Fetched]]:
        """All batches of the ranges, in parts; those of a partition in their order. A batch may
        hold records outside its range.

        Args:
            between: first offset, and the one behind the last, of each partition.
            bytes_max: of a part, unless a batch is larger.

        Raises:
            KafkaUnavailable: nothing has come for a minute.
            ConfigError: the rights do not suffice.
        """
        left = {p: first for p, (first, until) in between.items() if first < until}
        deadline = self._deadline()
        while left:
            answers = self._run("fetch", self._fetch, left, bytes_max)
            part: list[Fetched] = []
            failures, lost = [], []
            for partition, answer in answers.items():
                if isinstance(answer, errors.OffsetOutOfRangeError):
                    lost.append(partition)
                    continue
                if isinstance(answer, Exception):
                    failures.append(answer)
                    continue
                if answer.end > left[partition]:
                    left[partition] = answer.end
                    deadline = self._deadline()
                    if answer.octets:
                        part.append(answer)
            if lost:
                failures += self._find_again(lost, left)
            left = {p: offset for p, offset in left.items() if offset < between[p][1]}
            if part:
                yield part
                deadline = self._deadline()
            elif not failures and not deadline.remaining_s():
                raise KafkaUnavailable(f"nothing comes from {', '.join(map(_name, left))}")
            self._retry_before(deadline, failures)

    def _find_again(
        self, lost: Sequence[TopicPartition], left: dict[TopicPartition, int]
    ) -> Iterator[Exception]:
        """Correct offsets in `left` that their leaders have refused; yield those to ask again."""
        for partition, start in self.offsets(lost, EARLIEST).items():
            if left[partition] < start:
                left[partition] = start
            else:
                # There was something when the range was planned. Another leader may have it; if
                # the log has lost its end, the next start sees that. To skip it would lose it.
                yield errors.OffsetNotAvailableError(f"{_name(partition)} at {left[partition]}")

    def _read_metadata(self, deadline: Deadline) -> None:
        while True:
            try:
                self._run("read the metadata", self._client.cluster.refresh_metadata)
            except KafkaUnavailable:  # the broker that was asked; others may answer
                if not deadline.remaining_s():
                    raise
            else:
                return
            sleep(_RETRY_S)

    def _retry_before(self, deadline: Deadline, failures: Sequence[Exception]) -> None:
        """Wait before requests are repeated, if some have failed.

        Raises:
            KafkaUnavailable, ConfigError: the first failure, if it is too late or another attempt
                would not help.
        """
        for error in failures:
            if not deadline.remaining_s() or not getattr(error, "retriable", False):
                with self._settings.explained("read"):
                    raise error
        if failures:
            if any(self._client.throttle_delay(b.node_id) for b in self._client.cluster.brokers()):
                deadline.renew()  # a large part of a small quota is waited for longer than a minute
            self._client.cluster.request_update()
            sleep(_RETRY_S)

    def _run(self, what: str, call: Callable[..., Any], *args: Any) -> Any:
        """The result of a coroutine. Each request in it has kafka-python's time-out.

        Raises:
            KafkaUnavailable, ConfigError: as `ClientSettings.call`.
        """
        with self._settings.explained(what):
            if self._stopping is None:
                return self._manager.run(call, *args)
            return within(self._deadline(), what, partial(self._manager.run, call, *args))

    def _deadline(self) -> Deadline:
        return Deadline(_STALLED_S, self._stopping)

    async def _by_leader(self, partitions: Iterable[TopicPartition]) -> dict[int, _ByTopic]:
        """The partitions of each broker, by topic; -1: those without a leader."""
        leaders: dict[int, _ByTopic] = {}
        for topic, number in partitions:
            leader = self._client.cluster.leader_for_partition(Place(topic, number))
            node = -1 if leader is None else leader
            leaders.setdefault(node, {}).setdefault(topic, []).append(number)
        return leaders

    async def _ask(
        self,
        partitions: Iterable[TopicPartition],
        request: Callable[[_ByTopic], Any],
        read: Callable[[Any], Iterator[tuple[TopicPartition, Answer]]],
    ) -> dict[TopicPartition, Answer | Exception]:
        """One request to each leader, all at once, and the answer of each partition."""
        found = dict[TopicPartition, Answer | Exception]()
        leaders = await self._by_leader(partitions)
        # A leader that the metadata does not list is about to come, or to go.
        known = {node for node in leaders if self._client.cluster.broker_metadata(node)}
        sent = {node: self._manager.send(request(leaders[node]), node) for node in known}
        for node, mine in leaders.items():
            try:
                if node not in known:
                    raise errors.LeaderNotAvailableError("a partition has no leader")
                found |= read(await sent[node])
            except errors.KafkaError as error:
                found |= {(topic, n): error for topic, numbers in mine.items() for n in numbers}
        return found

    async def _ask_offsets(
        self, partitions: list[TopicPartition], time: int
    ) -> dict[TopicPartition, int | Exception]:
        def request(mine: _ByTopic) -> Any:
            return ListOffsetsRequest(
                replica_id=-1,
                isolation_level=_READ_COMMITTED,
                topics=[
                    _OffsetsTopic(
                        name=topic,
                        partitions=[
                            _OffsetsPartition(partition_index=number, timestamp=time)
                            for number in numbers
                        ],
                    )
                    for topic, numbers in mine.items()
                ],
            )

        def read(response: Any) -> Iterator[tuple[TopicPartition, int | Exception]]:
            for topic in response.topics:
                for each in topic.partitions:
                    place = (topic.name, each.partition_index)
                    yield place, _error(each.error_code, place) or each.offset

        return dict(await self._ask(partitions, request, read))

    async def _fetch(
        self, at: Mapping[TopicPartition, int], bytes_max: int
    ) -> dict[TopicPartition, Fetched | Exception]:
        def request(mine: _ByTopic) -> Any:
            return FetchRequest(
                max_wait_ms=_MAX_WAIT_MS,
                min_bytes=1,
                max_bytes=bytes_max,
                isolation_level=_READ_COMMITTED,
                topics=[
                    _FetchTopic(
                        topic=topic,
                        partitions=[
                            _FetchPartition(
                                partition=number,
                                fetch_offset=at[topic, number],
                                partition_max_bytes=bytes_max,
                            )
                            for number in numbers
                        ],
                    )
                    for topic, numbers in mine.items()
                ],
                max_version=_FETCH_VERSION_MAX,
            )

        def read(response: Any) -> Iterator[tuple[TopicPartition, Fetched | Exception]]:
            for topic in response.responses:
                for each in topic.partitions:
                    place = (topic.topic, each.partition_index)
                    yield place, _fetched(place, each, at[place])

        return dict(await self._ask(at, request, read))


def _name(partition: TopicPartition) -> str:
    return f"{partition[0]}-{partition[1]}"


def _error(code: int, place: TopicPartition) -> Exception | None:
    if not code:
        return None
    error: Exception = errors.for_code(code)(_name(place))
    return error


def _fetched(place: TopicPartition, answer: Any, begin: int) -> Fetched | Exception:
    if error := _error(answer.error_code, place):
        return error
    octets = memoryview(answer.records or b"")
    aborted = [(each.producer_id, each.first_offset) for each in answer.aborted_transactions or ()]
    return Fetched(place, octets, aborted, begin, max(begin, end_offset(octets)))
