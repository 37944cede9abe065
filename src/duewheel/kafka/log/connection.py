"""A connection to the logs of partitions finds out where they begin and end.

Metadata, security, the sockets to leaders and the protocol stay kafka-python's.

- An end is the last stable offset if it is asked for as `committed`: an open transaction may begin
  there. Otherwise it is the offset of the next record.
- A partition that is missing, or has no leader, is waited for; `missing_ok` and `present_ends`
  leave it out. `existing` refuses a missing topic.
- After an error the metadata is read again.
- The first call connects. A request that fails closes the connections, and the next one opens
  others: after its deadline the failed one may still run in them.
- Each call has one deadline: that of the block that it is in (`bounded_by`), or its own. While a
  read makes headway it is renewed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from kafka import errors

from duewheel.deadline import Deadline
from duewheel.errors import DuewheelError, KafkaUnavailable, Misconfigured
from duewheel.kafka.connect.clients import KafkaClients
from duewheel.kafka.log.leader_requests import LeaderRequests
from duewheel.kafka.log.list_offsets_times import EARLIEST, LATEST

if TYPE_CHECKING:  # the client has no numpy
    from duewheel.config.range_ends import Bound
    from duewheel.schemas.batches import TopicPartition

STALLED_S = 60.0  # without headway, until a call fails
_STALLED = partial(Deadline, STALLED_S)
_RETRY_S = 0.1  # between two attempts


class LogConnection:
    """Connections to one cluster, kept between calls. Not thread-safe."""

    def __init__(
        self,
        clients: KafkaClients,
        topics: Sequence[str] = (),
        begin: Callable[[], Deadline] = _STALLED,
        *,
        committed: bool = True,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Connects nothing.

        Args:
            topics: `partitions` lists theirs; other topics are added once they are asked for.
            begin: gives the deadline of a call outside of `bounded_by`.
            committed: reads leave out the records of open and aborted transactions.
            sleep: waits between two attempts.
        """
        self._clients = clients
        self._own_topics = tuple(topics)
        self._topics = list(topics)
        self._begin = begin
        self._committed = committed
        self._sleep = sleep
        self._connected: LeaderRequests | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def bounded_by(self, deadline: Deadline) -> Iterator[Self]:
        """All calls of a block have this deadline, which headway of reading renews."""
        begin, self._begin = self._begin, lambda: deadline
        try:
            yield self
        finally:
            self._begin = begin

    def close(self) -> None:
        """Closes all connections; another call opens others."""
        connected, self._connected = self._connected, None
        if connected is not None:
            connected.close()

    def partitions(self) -> list[TopicPartition]:
        """All partitions of the topics, as the metadata has them now."""
        requests = self._requests(self._begin())
        return [
            (topic, number) for topic in self._topics for number in requests.partitions_of(topic)
        ]

    def topic_id(self) -> str:
        """Kafka's id of the reader's one topic, which exists; another one has another id."""
        (topic,) = self._topics
        return self._requests(self._begin()).topic_id(topic)

    def existing(self, kind: str = "topic", hint: str = "") -> list[TopicPartition]:
        """All partitions of the reader's one topic.

        Raises:
            Misconfigured: there is no such topic, whose `kind` the text names before the `hint`; or
                no right to describe it.
        """
        (topic,) = self._topics
        partitions = self.partitions()
        if not partitions:
            with self._clients.explained(f"look up {topic}"):
                self._requests(self._begin()).require_authorized(topic)
            raise Misconfigured(f"Kafka at {self._clients.address} has no {kind} {topic!r}{hint}")
        return partitions

    def starts(
        self, partitions: Iterable[TopicPartition], *, missing_ok: bool = False
    ) -> dict[TopicPartition, int]:
        """The log start of each partition; `missing_ok` as for `ends`."""
        return self._offsets(partitions, EARLIEST, committed=False, missing_ok=missing_ok)

    def ends(
        self, partitions: Iterable[TopicPartition], *, committed: bool, missing_ok: bool = False
    ) -> dict[TopicPartition, int]:
        """The end of each partition.

        Args:
            committed: where a reader of committed records ends.
            missing_ok: leave out partitions that a broker does not know, as those of a deleted
                topic; for a moment they may be any. Otherwise they are waited for.
        """
        return self._offsets(partitions, LATEST, committed=committed, missing_ok=missing_ok)

    def _offsets(
        self,
        partitions: Iterable[TopicPartition],
        at: int,
        *,
        committed: bool,
        missing_ok: bool = False,
    ) -> dict[TopicPartition, int]:
        """An offset of each partition, `at` as for `ask`; waits for those that do not answer now.

        Raises:
            KafkaUnavailable: the deadline has passed, or the failure of one is not retriable.
            Misconfigured: a right is missing.
        """
        deadline, missing = self._begin(), list(partitions)
        offsets: dict[TopicPartition, int] = {}
        if self._add_topics(missing):
            self._read_metadata(deadline)
        while missing:
            answers = self._ask_leaders(deadline, missing, at, committed)
            failures = []
            for partition, answer in answers.items():
                if not isinstance(answer, Exception):
                    offsets[partition] = answer
                elif missing_ok and isinstance(answer, errors.UnknownTopicOrPartitionError):
                    missing.remove(partition)
                    self._requests(deadline).request_metadata()
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
        committed: bool,
    ) -> dict[TopicPartition, tuple[int, int]]:
        """First offset and end of each partition, as they are now; a range may be empty.

        Args:
            since: where to begin; None: at the log's start.
            until: where to end, at the present end at most.
            partitions: None: all of the reader's topics.
            committed: as for `ends`.

        Raises:
            ConfigError: `since` is an offset above all ends.
        """
        with self.bounded_by(self._begin()):
            places = self.partitions() if partitions is None else list(partitions)
            starts, ends = self.starts(places), self.ends(places, committed=committed)

            def at_time(time_ms: int) -> dict[TopicPartition, int]:
                found = self._offsets(places, max(0, time_ms), committed=committed)
                return {place: offset for place, offset in found.items() if offset >= 0}

            firsts = since.firsts(ends, at_time) if since else starts
            lasts = until.offsets(ends, at_time) if until else ends
        return {place: (max(starts[place], firsts[place]), lasts[place]) for place in places}

    def ask(
        self, partitions: Iterable[TopicPartition], at: int, *, committed: bool
    ) -> dict[TopicPartition, int | Exception]:
        """An offset of each partition, at once: with the error of each one that does not answer
        now, such as one that is missing or has no leader.

        Args:
            at: EARLIEST: the log's start. LATEST: its end. Else epoch ms: the first offset of
                that time or a later one, -1 if there is none.
            committed: only offsets below the last stable one count.
        """
        try:
            return self._ask_twice(self._begin(), list(partitions), at, committed)
        finally:
            # kafka-python reads the metadata of all topics again and again, ten times a second
            # once one of them is deleted.
            if self._topics != [*self._own_topics]:
                self._topics = [*self._own_topics]
                if self._connected is not None:
                    self._connected.set_topics(self._topics)

    def _ask_twice(
        self, deadline: Deadline, left: list[TopicPartition], at: int, committed: bool
    ) -> dict[TopicPartition, int | Exception]:
        answers: dict[TopicPartition, int | Exception] = {}
        for is_second in (False, True):
            if not left:
                break
            try:
                if self._add_topics(left) or is_second:  # then a leader may have moved
                    refresh = self._requests(deadline).refresh_metadata
                    self._run_or_close(deadline, "read the metadata", refresh)
            except KafkaUnavailable:
                if not answers:
                    raise
                break  # the answers so far count, though the broker asked now is away
            answers |= self._ask_leaders(deadline, left, at, committed)
            left = [each for each in left if not isinstance(answers.get(each), int)]
        return answers

    def present_ends(
        self, partitions: Iterable[TopicPartition], *, committed: bool
    ) -> dict[TopicPartition, int]:
        """The ends that `ask` gets, without errors."""
        answers = self.ask(partitions, LATEST, committed=committed)
        return {p: each for p, each in answers.items() if not isinstance(each, Exception)}

    def await_news(self, positions: Mapping[TopicPartition, int], wait_s: float) -> bool:
        """Whether there may be records from one of these positions on: waits for some, but for
        `wait_s` at most; after an error there may be. The next call waits for the answers that this
        one has not read, so a reader that calls it is of no use for anything else.

        Raises:
            KafkaUnavailable, ConfigError: it cannot connect.
        """
        deadline = self._begin()
        if self._add_topics(positions):
            self._read_metadata(deadline)
        requests, wait_ms = self._requests(deadline), round(wait_s * 1000)
        try:
            # Without a thread for its deadline, which would cost as much again: kafka-python's own
            # time-out is enough.
            return bool(requests.run(requests.await_news, positions, self._committed, wait_ms))
        except errors.KafkaError:
            self.close()
            return True

    def _ask_leaders(
        self,
        deadline: Deadline,
        partitions: Sequence[TopicPartition],
        at: int,
        committed: bool,
    ) -> dict[TopicPartition, int | Exception]:
        list_offsets = self._requests(deadline).list_offsets
        # A partition that the broker leaves out is requested again after a pause, as others are.
        left_out = dict.fromkeys(partitions, errors.LeaderNotAvailableError())
        answers: dict[TopicPartition, int | Exception] = self._run_or_close(
            deadline, "read the offsets", list_offsets, partitions, at, committed
        )
        return left_out | answers

    def _add_topics(self, partitions: Iterable[TopicPartition]) -> bool:
        """Adds topics that are not the reader's yet; returns whether metadata must be read."""
        new = {topic for topic, _ in partitions}.difference(self._topics)
        self._topics += sorted(new)
        if not new or self._connected is None:
            return False
        self._connected.set_topics(self._topics)
        return True

    def _requests(self, deadline: Deadline) -> LeaderRequests:
        """Connects, unless that was done."""
        if self._connected is None:
            self._connected = LeaderRequests.connect(self._clients, self._topics, deadline)
            self._read_metadata(deadline)
        return self._connected

    def _read_metadata(self, deadline: Deadline) -> None:
        refresh = self._requests(deadline).refresh_metadata
        while True:
            try:
                self._run(deadline, "read the metadata", refresh)
            except KafkaUnavailable:  # one broker; another one may answer the next attempt
                if not deadline.remaining_s():
                    self.close()
                    raise
            except DuewheelError:
                self.close()
                raise
            else:
                return
            self._sleep(_RETRY_S)

    def _retry_before(self, deadline: Deadline, failures: Sequence[Exception]) -> None:
        """Waits before requests are repeated, if some have failed.

        Raises:
            KafkaUnavailable, ConfigError: a failure, if the deadline has passed or its kind is not
                retriable.
        """
        for error in failures:
            if not deadline.remaining_s() or not getattr(error, "retriable", False):
                with self._clients.explained("read"):
                    raise error
        if failures:
            requests = self._requests(deadline)
            if requests.is_throttled():
                # A part that is large for a small quota takes more than a minute, and a new start
                # would take it again.
                deadline.renew()
            requests.request_metadata()
            self._sleep(_RETRY_S)

    def _run_or_close(
        self, deadline: Deadline, what: str, call: Callable[..., Any], *args: Any
    ) -> Any:
        """The result of a coroutine; after an error the connections are closed."""
        try:
            return self._run(deadline, what, call, *args)
        except BaseException:
            self.close()
            raise

    def _run(self, deadline: Deadline, what: str, call: Callable[..., Any], *args: Any) -> Any:
        run = self._requests(deadline).run
        return self._clients.call(deadline, what, partial(run, call, *args))
