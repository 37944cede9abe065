"""Reads ranges of topics, and follows topics, over kafka-python's connections.

It takes whole record batches: columns.py reads them as columns, records.py one by one. Metadata,
security, connections and the protocol stay kafka-python's. This module does the rest of a
consumer's work:

- It sends requests to the leader of each partition (leader_requests.py); after an error it reads
  the metadata again.
- Where retention has deleted the next offset, it continues at the log's start.
- An end is the last stable offset, unless `committed` is False.
- A partition that is missing, or has no leader, is waited for; `missing_ok` and `present` leave it
  out. `existing` refuses a missing topic.
- The first call connects. A call that fails closes the connections, and the next one opens others:
  after its deadline the failed one may still run in them.

Not thread-safe: one reader, one thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Self

from kafka import errors

from duewheel.errors import ConfigError, DuewheelError, KafkaUnavailable
from duewheel.kafka.clients import ClientSettings
from duewheel.kafka.deadline import Deadline, within
from duewheel.kafka.log.ends import EARLIEST, LATEST
from duewheel.kafka.log.leader_requests import Fetched, LeaderRequests, partition_name
from duewheel.kafka.log.records import Record, records_of

if TYPE_CHECKING:  # the client has no numpy
    from duewheel.config.bounds import Bound
    from duewheel.schemas.batches import OffsetRanges, TopicPartition

INIT_MAKES_IT = ": `duewheel init` creates it"
_FETCH_BYTES = 1 << 20
_AHEAD_S = 0.5  # before an enclosing call ends, whose message would not say why


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


class LogReader:
    """Connections to one cluster, kept between calls.

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
            settings: of the cluster.
            topics: of `partitions`; those of other partitions are added once they are asked for.
            stopping: once set, no call waits more than STOP_GRACE_S (deadline.py) for Kafka. With
                an event each call to Kafka costs a thread; Spark stops its tasks without one.
            waits: for retries.
            committed: records of open and aborted transactions are left out.
            deadline: see the class; in the place of `stopping` and of those of `waits`.
        """
        self._settings = settings
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

        Args:
            kind: of topic, for the error.
            hint: likewise.

        Raises:
            ConfigError: there is no such topic, or no right to describe it.
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
            partitions: of the reader's topics.
            time: EARLIEST: the log's start. LATEST: its end. Else epoch ms: the first offset of
                that time or a later one, -1 if there is none.
            committed: the end is the last stable offset, where a reader of committed records ends;
                None: as the reader reads.
            missing_ok: leave out partitions that a broker does not know, as those of a deleted
                topic; for a moment they may be any. Otherwise they are waited for.

        Raises:
            KafkaUnavailable: no answer within a minute.
            ConfigError: the rights do not suffice.
        """
        missing = list(partitions)
        offsets: dict[TopicPartition, int] = {}
        deadline = self._deadline()
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
            partitions: of the reader's topics; None: all.
            committed: as for `offsets`.

        Raises:
            KafkaUnavailable, ConfigError: as `offsets`.
        """
        places = self.partitions() if partitions is None else list(partitions)
        starts = self.offsets(places, EARLIEST)
        ends = self.offsets(places, LATEST, committed=committed)
        firsts = since.offsets(ends, self.offsets_at) if since else starts
        lasts = until.offsets(ends, self.offsets_at) if until else ends
        return {place: (max(starts[place], firsts[place]), lasts[place]) for place in places}

    def present(
        self, partitions: Iterable[TopicPartition], time: int, *, committed: bool | None = None
    ) -> dict[TopicPartition, int]:
        """As `offsets`, without the partitions that do not answer now: those that are missing, have
        no leader, or may not be described.

        Raises:
            KafkaUnavailable: no broker answers in time.
        """
        offsets: dict[TopicPartition, int] = {}
        for attempt in range(2):
            left = [each for each in partitions if each not in offsets]
            if left and attempt:  # a leader may have moved
                self._read_metadata(self._deadline())
            answers = self._answers_of(left, time, committed) if left else {}
            offsets |= {p: each for p, each in answers.items() if not isinstance(each, Exception)}
        return offsets

    def offsets_at(self, time_ms: int) -> dict[TopicPartition, int]:
        """The first offset of each partition whose timestamp is `time_ms` or later; partitions
        without one are left out.

        Raises:
            KafkaUnavailable, ConfigError: as `offsets`.
        """
        found = self.offsets(self.partitions(), max(0, time_ms))
        return {partition: offset for partition, offset in found.items() if offset >= 0}

    def read(self, ranges: OffsetRanges, bytes_max: int) -> Iterator[list[Fetched]]:
        """The batches of the ranges, in parts; those of a partition in their order.

        A part has the answers to one round of fetches, each partition at most once. A batch may
        have records outside its range, which columns.py and records.py drop.

        Args:
            ranges: first offset, and the one behind the last, of each partition. The caller may
                lower a last one meanwhile.
            bytes_max: of an answer, unless a batch is larger. The ranges of one broker share it.

        Raises:
            KafkaUnavailable: no position has moved for a minute.
            ConfigError: the rights do not suffice.
        """
        positions = {p: first for p, (first, _) in ranges.items()}
        deadline = self._deadline()
        while positions := {p: at for p, at in positions.items() if at < ranges[p][1]}:
            part, refused, failures = self._fetch(positions, bytes_max)
            failures += self._move_to_log_starts(refused, positions)
            if part:
                yield part
                deadline = self._deadline()  # the caller's work on the part does not count
                deadline.renew()
            elif not failures and deadline.remaining_s() <= _AHEAD_S:
                raise KafkaUnavailable(
                    f"nothing comes from {', '.join(map(partition_name, positions))}: at offset "
                    f"{next(iter(positions.values()))}, perhaps held back by an open transaction; "
                    "if it stays open, kafka-transactions.sh find-hanging names it"
                )
            self._retry_before(deadline, failures)

    def records(
        self, ranges: OffsetRanges, bytes_max: int = _FETCH_BYTES
    ) -> Iterator[tuple[list[Record], Mapping[TopicPartition, int]]]:
        """The records of the ranges one by one, in parts.

        Yields:
            Records, those of a partition in their order; and for each partition of the part the
            offset below which it is read.

        Raises:
            KafkaUnavailable, ConfigError: as `read`.
        """
        for part in self.read(ranges, bytes_max):
            untils = {each.partition: ranges[each.partition][1] for each in part}
            records = [r for each in part for r in records_of(each, untils[each.partition])]
            yield records, {p.partition: min(p.end, untils[p.partition]) for p in part}

    def poll(
        self, positions: dict[TopicPartition, int], bytes_max: int = _FETCH_BYTES
    ) -> Iterator[Record]:
        """The records that have been added; moves the positions behind them. Returns soon if there
        are none, or while a leader does not answer. Where a log has lost the position, as one that
        was recreated, it is read from its start.

        Args:
            positions: the next offset of each partition.
            bytes_max: as for `read`.

        Raises:
            KafkaUnavailable, ConfigError: an error that no retry mends, such as a lost right.
        """
        part, refused, failures = self._fetch(positions, bytes_max)
        positions.update(self.offsets(refused, EARLIEST))
        self._retry_before(self._deadline(), failures)
        return chain.from_iterable(map(records_of, part))

    def _answers_of(
        self, partitions: Sequence[TopicPartition], time: int, committed: bool | None
    ) -> dict[TopicPartition, int | Exception]:
        new = {topic for topic, _ in partitions}.difference(self._topics)
        if new:
            self._topics += sorted(new)
            if self._connected is not None:
                self._connected.set_topics(self._topics)
                self._read_metadata(self._deadline())
        committed = self._committed if committed is None else committed
        answers: dict[TopicPartition, int | Exception] = self._run(
            "read the offsets", self._requests.list_offsets, partitions, time, committed
        )
        return answers

    def _fetch(
        self, positions: dict[TopicPartition, int], bytes_max: int
    ) -> tuple[list[Fetched], list[TopicPartition], list[Exception]]:
        """One round of fetches: the answers, whose positions are moved; the partitions that are
        asked for an offset that they do not have; and failures.
        """
        part: list[Fetched] = []
        failures: list[Exception] = []
        refused: list[TopicPartition] = []
        answers = self._run(
            "fetch", self._requests.fetch, dict(positions), bytes_max, self._committed
        )
        for partition, answer in answers.items():
            if isinstance(answer, errors.OffsetOutOfRangeError):
                refused.append(partition)
            elif isinstance(answer, Exception):
                failures.append(answer)
            elif answer.end > positions[partition]:
                positions[partition] = answer.end
                part.append(answer)
        return part, refused, failures

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

    @property
    def _requests(self) -> LeaderRequests:
        """Connects, unless that was done.

        Raises:
            KafkaUnavailable: no broker answers.
            ConfigError: the settings do not fit.
        """
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
        """The result of a coroutine. Each request in it has kafka-python's time-out.

        Raises:
            KafkaUnavailable, ConfigError: as `ClientSettings.call`.
        """
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
