"""Reads ranges of topics as raw record batches, over kafka-python's connections.

kafka-python's consumer decodes one record at a time in Python; the batches of an answer can be read
as columns (schemas/wire/record_reader.py). Metadata, security, connections and the protocol stay
kafka-python's. This module does the rest of a consumer's work:

- It sends requests to the leader of each partition (leader_requests.py); after an error it reads
  the metadata again.
- Where retention has deleted the next offset, it continues at the log's start.

Not thread-safe: one reader, one thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from kafka import errors

from duewheel.errors import DuewheelError, KafkaUnavailable
from duewheel.kafka.clients import ClientSettings, close
from duewheel.kafka.deadline import Deadline, within
from duewheel.kafka.leader_requests import Fetched, LeaderRequests, partition_name
from duewheel.kafka.log_ends import EARLIEST
from duewheel.schemas.batches import OffsetRanges, TopicPartition

_FRAME_BYTES_MAX = (1 << 31) - 1  # a broker sends a first batch whole, above the requested bytes
_METADATA_AGE_MS = 2_000  # so soon are added partitions seen


@dataclass(frozen=True, slots=True)
class Waits:
    """How long a reader waits, and by which clock.

    Attributes:
        stalled_s: without progress, until a call fails.
        retry_s: between two attempts.
        sleep: waits so many seconds.
        now_s: a clock that only goes forward.
    """

    stalled_s: float = 60.0
    retry_s: float = 0.1
    sleep: Callable[[float], None] = time.sleep
    now_s: Callable[[], float] = time.monotonic


_WAITS = Waits()


class RawReader:
    """Connections to one cluster, kept between calls."""

    def __init__(
        self,
        settings: ClientSettings,
        topics: Sequence[str],
        stopping: threading.Event | None = None,
        waits: Waits = _WAITS,
    ) -> None:
        """
        Args:
            settings: of the cluster.
            topics: that may be read.
            stopping: once set, no call waits more than STOP_GRACE_S (deadline.py) for Kafka. With
                an event each call to Kafka costs a thread; Spark stops its tasks without one.
            waits: for retries.

        Raises:
            KafkaUnavailable: no broker answers.
            ConfigError: the settings do not fit.
        """
        self._settings = settings
        self._topics = list(topics)
        self._stopping = stopping
        self._waits = waits
        deadline = self._deadline()
        self._client = settings.connect(
            deadline,
            receive_message_max_bytes=_FRAME_BYTES_MAX,
            metadata_max_age_ms=_METADATA_AGE_MS,
        )
        self._manager = self._client._manager  # noqa: SLF001 - KafkaConsumer takes it the same way
        self._requests = LeaderRequests(self._client)
        # Otherwise a metadata request would create a deleted topic again, on most clusters.
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
        """An offset of each partition.

        Args:
            partitions: of the reader's topics.
            time: EARLIEST: the log's start. LATEST: the last stable offset, where reading ends.

        Raises:
            KafkaUnavailable: no answer within a minute.
            ConfigError: the rights do not suffice.
        """
        missing = list(partitions)
        offsets = dict[TopicPartition, int]()
        deadline = self._deadline()
        while missing:
            answers = self._run("read the offsets", self._requests.list_offsets, missing, time)
            failures = []
            for partition, answer in answers.items():
                if isinstance(answer, Exception):
                    failures.append(answer)
                else:
                    offsets[partition] = answer
            missing = [each for each in missing if each not in offsets]
            self._retry_before(deadline, failures)
        return offsets

    def read(self, ranges: OffsetRanges, bytes_max: int) -> Iterator[list[Fetched]]:
        """The batches of the ranges, in parts; those of a partition in their order.

        A part has the answers to one round of fetches, each partition at most once. A batch may
        have records outside its range, which raw_records.py drops.

        Args:
            ranges: first offset, and the one behind the last, of each partition.
            bytes_max: of an answer, unless a batch is larger. The ranges of one broker share it.

        Raises:
            KafkaUnavailable: no position has moved for a minute.
            ConfigError: the rights do not suffice.
        """
        positions = {p: first for p, (first, until) in ranges.items() if first < until}
        deadline = self._deadline()
        while positions:
            part: list[Fetched] = []
            failures: list[Exception] = []
            refused: list[TopicPartition] = []
            answers = self._run("fetch", self._requests.fetch, positions, bytes_max)
            for partition, answer in answers.items():
                if isinstance(answer, errors.OffsetOutOfRangeError):
                    refused.append(partition)
                elif isinstance(answer, Exception):
                    failures.append(answer)
                elif answer.end > positions[partition]:
                    positions[partition] = answer.end
                    part.append(answer)
            if refused:
                failures += self._move_to_log_starts(refused, positions)
            positions = {p: offset for p, offset in positions.items() if offset < ranges[p][1]}
            if part:
                yield part
                deadline = self._deadline()  # the caller's work on the part does not count
            elif not failures and not deadline.remaining_s():
                raise KafkaUnavailable(
                    f"nothing comes from {', '.join(map(partition_name, positions))}"
                )
            self._retry_before(deadline, failures)

    def _move_to_log_starts(
        self, refused: Sequence[TopicPartition], positions: dict[TopicPartition, int]
    ) -> list[Exception]:
        """Move positions that are out of range to their logs' starts; returns errors of the others.

        An offset at or above the log's start is below the end that the range was planned with. So
        another leader may have it, and the fetch is repeated; or the log has lost its end, and the
        next start of ingest refuses it. To skip the offset would lose its record without a trace.
        """
        failures: list[Exception] = []
        for partition, start in self.offsets(refused, EARLIEST).items():
            if positions[partition] < start:
                positions[partition] = start
            else:
                at = f"{partition_name(partition)} at {positions[partition]}"
                failures.append(errors.OffsetNotAvailableError(at))
        return failures

    def _read_metadata(self, deadline: Deadline) -> None:
        while True:
            try:
                self._run("read the metadata", self._client.cluster.refresh_metadata)
            except KafkaUnavailable:  # one broker; another one may answer the next attempt
                if not deadline.remaining_s():
                    raise
            else:
                return
            self._waits.sleep(self._waits.retry_s)

    def _retry_before(self, deadline: Deadline, failures: Sequence[Exception]) -> None:
        """Wait before requests are repeated, if some have failed.

        Raises:
            KafkaUnavailable, ConfigError: a failure, if the deadline has passed or its kind is not
                retriable.
        """
        for error in failures:
            if not deadline.remaining_s() or not getattr(error, "retriable", False):
                with self._settings.explained("read"):
                    raise error
        if failures:
            if any(self._client.throttle_delay(b.node_id) for b in self._client.cluster.brokers()):
                # The broker holds back what exceeds the client's quota. A part that is large for a
                # small quota takes more than a minute, and a new start would take it again.
                deadline.renew()
            self._client.cluster.request_update()
            self._waits.sleep(self._waits.retry_s)

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
        return Deadline(self._waits.stalled_s, self._stopping, self._waits.now_s)
