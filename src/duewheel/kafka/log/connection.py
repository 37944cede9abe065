"""Where logs begin and end, over kafka-python's connections to the leaders of partitions.

Metadata, security, connections and the protocol stay kafka-python's.

- An end is the last stable offset, unless `committed` is False.
- A partition that is missing, or has no leader, is waited for; `missing_ok` and `present` leave it
  out. `existing` refuses a missing topic.
- After an error the metadata is read again.
- The first call connects. A request that fails closes the connections, and the next one opens
  others: after its deadline the failed one may still run in them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from kafka import errors

from duewheel.errors import ConfigError, DuewheelError, KafkaUnavailable
from duewheel.kafka.connect.clients import ClientSettings
from duewheel.kafka.connect.deadline import Deadline, within
from duewheel.kafka.log.ends import EARLIEST, LATEST
from duewheel.kafka.log.leader_requests import LeaderRequests

if TYPE_CHECKING:  # the client has no numpy
    from duewheel.config.bounds import Bound
    from duewheel.schemas.batches import TopicPartition

INIT_MAKES_IT = ": `duewheel init` creates it"


@dataclass(frozen=True, slots=True)
class Waits:
    """How long a reader waits, and by which clock."""

    stalled_s: float = 60.0  # without headway, until a call fails
    retry_s: float = 0.1  # between two attempts
    sleep: Callable[[float], None] = time.sleep
    now_s: Callable[[], float] = time.monotonic


_WAITS = Waits()


class LogConnection:
    """Connections to one cluster, kept between calls. Not thread-safe.

    Attributes:
        deadline: a caller's, for everything that the reader does from now on; headway renews it.
            None: a call fails after `Waits.stalled_s` without headway.
    """

    def __init__(
        self,
        settings: ClientSettings,
        topics: Sequence[str] = (),
        stopping: threading.Event | None = None,
        waits: Waits = _WAITS,
        *,
        committed: bool = True,
        deadline: Deadline | None = None,
    ) -> None:
        """Connects nothing.

        Args:
            topics: `partitions` lists theirs; other topics are added once they are asked for.
            stopping: once set, no call waits more than STOP_GRACE_S (deadline.py) for Kafka. With
                an event each call to Kafka costs a thread; Spark stops its tasks without one.
            waits: for retries.
            committed: records of open and aborted transactions are left out.
            deadline: see the class; in the place of `stopping` and of those of `waits`.
        """
        self._settings = settings
        self._own_topics = tuple(topics)
        self._topics = list(topics)
        self._stopping = stopping
        self._waits = waits
        self._committed = committed
        self.deadline = deadline
        self._connected: LeaderRequests | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections; another call opens others."""
        connected, self._connected = self._connected, None
        if connected is not None:
            connected.close()

    def partitions(self) -> list[TopicPartition]:
        """All partitions of the topics, as the metadata has them now."""
        return [
            (topic, number)
            for topic in self._topics
            for number in self._requests.partitions_of(topic)
        ]

    def topic_id(self) -> str:
        """Kafka's id of the reader's one topic, which exists; another one has another id."""
        (topic,) = self._topics
        return self._requests.topic_id(topic)

    def existing(self, kind: str = "topic", hint: str = "") -> list[TopicPartition]:
        """All partitions of the reader's one topic.

        Raises:
            ConfigError: there is no such topic, whose `kind` the text names before the `hint`; or
                no right to describe it.
        """
        (topic,) = self._topics
        partitions = self.partitions()
        if not partitions:
            with self._settings.explained(f"look up {topic}"):
                self._requests.require_authorized(topic)
            raise ConfigError(f"Kafka at {self._settings.address} has no {kind} {topic!r}{hint}")
        return partitions

    def offsets(
        self,
        partitions: Iterable[TopicPartition],
        time: int,
        *,
        committed: bool | None = None,
        missing_ok: bool = False,
    ) -> dict[TopicPartition, int]:
        """An offset of each partition.

        Args:
            time: EARLIEST: the log's start. LATEST: its end. Else epoch ms: the first offset of
                that time or a later one, -1 if there is none.
            committed: the end is the last stable offset, where a reader of committed records ends;
                None: as the reader reads.
            missing_ok: leave out partitions that a broker does not know, as those of a deleted
                topic; for a moment they may be any. Otherwise they are waited for.
        """
        missing = list(partitions)
        offsets: dict[TopicPartition, int] = {}
        deadline = self._deadline()
        if self._adds_topics(missing):
            self._read_metadata(deadline)
        while missing:
            answers = self._answers_of(missing, time, committed)
            failures = []
            for partition, answer in answers.items():
                if not isinstance(answer, Exception):
                    offsets[partition] = answer
                elif missing_ok and isinstance(answer, errors.UnknownTopicOrPartitionError):
                    missing.remove(partition)
                    self._requests.request_metadata()
                else:
                    failures.append(answer)
            missing = [each for each in missing if each not in offsets]
            self._retry_before(deadline, failures)
        return offsets

    def bounds(
        self,
        since: Bound | None = None,
        until: Bound | None = None,
        *,
        partitions: Iterable[TopicPartition] | None = None,
        committed: bool | None = None,
    ) -> dict[TopicPartition, tuple[int, int]]:
        """First offset and end of each partition, as they are now; a range may be empty.

        Args:
            since: where to begin; None: at the log's start.
            until: where to end, at the present end at most.
            partitions: None: all of the reader's topics.
            committed: as for `offsets`.
        """
        places = self.partitions() if partitions is None else list(partitions)
        starts = self.offsets(places, EARLIEST)
        ends = self.offsets(places, LATEST, committed=committed)
        firsts = since.offsets(ends, self.offsets_at) if since else starts
        lasts = until.offsets(ends, self.offsets_at) if until else ends
        return {place: (max(starts[place], firsts[place]), lasts[place]) for place in places}

    def answers(
        self, partitions: Iterable[TopicPartition], time: int, *, committed: bool | None = None
    ) -> dict[TopicPartition, int | Exception]:
        """As `offsets`, at once: with the error of each partition that does not answer now, such as
        one that is missing or has no leader.
        """
        try:
            return self._present_answers(list(partitions), time, committed)
        finally:
            # kafka-python reads the metadata of all topics again and again, ten times a second
            # once one of them is deleted.
            if self._topics != [*self._own_topics]:
                self._topics = [*self._own_topics]
                if self._connected is not None:
                    self._connected.set_topics(self._topics)

    def _present_answers(
        self, left: list[TopicPartition], time: int, committed: bool | None
    ) -> dict[TopicPartition, int | Exception]:
        answers: dict[TopicPartition, int | Exception] = {}
        for attempt in range(2):
            if left and (self._adds_topics(left) or attempt):  # then a leader may have moved
                try:
                    self._run("read the metadata", self._requests.refresh_metadata)
                except KafkaUnavailable:
                    if not answers:
                        raise
                    break  # the answers so far count, though the broker asked now is away
            answers |= self._answers_of(left, time, committed) if left else {}
            left = [each for each in left if not isinstance(answers.get(each), int)]
        return answers

    def present(
        self, partitions: Iterable[TopicPartition], time: int, *, committed: bool | None = None
    ) -> dict[TopicPartition, int]:
        """As `answers`, without errors."""
        answers = self.answers(partitions, time, committed=committed)
        return {p: each for p, each in answers.items() if not isinstance(each, Exception)}

    def offsets_at(self, time_ms: int) -> dict[TopicPartition, int]:
        """The first offset of each partition whose timestamp is `time_ms` or later; partitions
        without one are left out.
        """
        found = self.offsets(self.partitions(), max(0, time_ms))
        return {partition: offset for partition, offset in found.items() if offset >= 0}

    def _answers_of(
        self, partitions: Sequence[TopicPartition], time: int, committed: bool | None
    ) -> dict[TopicPartition, int | Exception]:
        committed = self._committed if committed is None else committed
        answers: dict[TopicPartition, int | Exception] = self._run(
            "read the offsets", self._requests.list_offsets, partitions, time, committed
        )
        return answers

    def _adds_topics(self, partitions: Iterable[TopicPartition]) -> bool:
        """Adds topics that are not the reader's yet; whether their metadata must be read."""
        new = {topic for topic, _ in partitions}.difference(self._topics)
        self._topics += sorted(new)
        if not new or self._connected is None:
            return False
        self._connected.set_topics(self._topics)
        return True

    @property
    def _requests(self) -> LeaderRequests:
        """Connects, unless that was done."""
        if self._connected is None:
            deadline = self._deadline()
            self._connected = LeaderRequests.connect(self._settings, self._topics, deadline)
            self._read_metadata(deadline)
        return self._connected

    def _read_metadata(self, deadline: Deadline) -> None:
        refresh = self._requests.refresh_metadata
        while True:
            try:
                self._attempt("read the metadata", refresh)
            except KafkaUnavailable:  # one broker; another one may answer the next attempt
                if not deadline.remaining_s():
                    self.close()
                    raise
            except DuewheelError:
                self.close()
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
            if self._requests.is_throttled():
                # A part that is large for a small quota takes more than a minute, and a new start
                # would take it again.
                deadline.renew()
            self._requests.request_metadata()
            self._waits.sleep(self._waits.retry_s)

    def _run(self, what: str, call: Callable[..., Any], *args: Any) -> Any:
        """The result of a coroutine. Each request in it has kafka-python's time-out."""
        try:
            return self._attempt(what, call, *args)
        except BaseException:
            self.close()
            raise

    def _attempt(self, what: str, call: Callable[..., Any], *args: Any) -> Any:
        run = partial(self._requests.run, call, *args)
        with self._settings.explained(what):
            if self._stopping is None and self.deadline is None:
                return run()
            return within(self._deadline(), what, run)

    def _deadline(self) -> Deadline:
        return self.deadline or Deadline(self._waits.stalled_s, self._stopping, self._waits.now_s)
