"""Sends ready-made batches by kafka-python's sender; no other module uses the producer's internals.

kafka-python takes one record per call and encodes it in Python, 12 to 17 µs each. A ready batch in
its accumulator costs the same whatever it holds; sequence numbers, retries, the transaction's
partitions and the commit stay kafka-python's. This module relies on:

    accumulator   a deque of ProducerBatch per partition, the set of incomplete ones, a lock each
    sender        one thread; drains one batch per partition at a time (idempotence mutes the rest)
    metadata      one request covers all topics in its set; a topic that its answer does not
                  have is absent, whatever was known before
    batch         asks its records for set_producer_state, close, buffer, size_in_bytes, next_offset
    transactions  partitions are added before their first batch, and asked for again for ever while
                  one of them does not exist, or the transaction before is not ended; EndTxn waits
                  for incomplete batches

None of this is public: the version is pinned exactly, and `check_internals` refuses any other. The
publisher's thread calls all of it; kafka-python's sender calls `ReadyRecords`, too.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import kafka
from kafka import KafkaProducer
from kafka.errors import KafkaTimeoutError, TopicAuthorizationFailedError
from kafka.producer.producer_batch import FinalState, ProducerBatch
from kafka.structs import TopicPartition as KafkaPartition

from duewheel.deadline import Deadline, DeadlineExceeded
from duewheel.errors import KafkaUnavailable, Misconfigured
from duewheel.kafka.connect.private_parts import missing_part
from duewheel.schemas.partition_names import partition_name, some_of
from duewheel.schemas.wire.batch_header import HEADER_BYTES
from duewheel.schemas.wire.record_batch import Batch, seal

T = TypeVar("T")

SUPPORTED_VERSION = "3.0.12"
# Before 2.7 a fenced producer re-initialises itself, and fences its successor; before 2.8 there are
# no topic ids, and a recreated topic goes unnoticed.
OLDEST_BROKER = (2, 8)
_NO_STAMP = -1
# How long there may be no headway before metadata decides whether topics or partitions are missing.
# Brokers learn of a new topic sooner: it costs no transaction.
_MISSING_AFTER_S = 0.5

_TOUCHED = {
    "": ("_accumulator", "_sender", "_transaction_manager", "_closed", "_unregister_cleanup"),
    "_accumulator": ("_batches", "_incomplete", "_tp_lock", "_closed"),
    "_accumulator._incomplete": ("add",),
    "_metadata": ("set_topics", "_topics", "request_update", "partitions_for_topic"),
    "_sender": ("wakeup", "force_close", "join", "is_alive"),
    "_transaction_manager": (
        *("begin_commit", "maybe_add_partition_to_transaction"),
        "_partitions_in_transaction",
    ),
}


def check_internals(producer: KafkaProducer) -> None:
    """Refuses to work on a kafka-python or a broker that this module was not written for.

    Raises:
        Misconfigured: another version, a missing attribute, or a broker that is too old.
    """
    if kafka.__version__ != SUPPORTED_VERSION:
        raise Misconfigured(
            f"kafka-python is {kafka.__version__}, this version of duewheel needs exactly "
            f"{SUPPORTED_VERSION}: pip install 'kafka-python=={SUPPORTED_VERSION}'"
        )
    if missing := missing_part(producer, _TOUCHED):
        raise Misconfigured(
            f"kafka-python {kafka.__version__} has no {missing}: its files are not those of the "
            f"published {SUPPORTED_VERSION}"
        )
    broker = producer.config["api_version"]
    if broker < OLDEST_BROKER:
        shown, oldest = (".".join(map(str, each[:2])) for each in (broker, OLDEST_BROKER))
        raise Misconfigured(f"the Kafka broker is {shown}, duewheel needs {oldest} or newer")


class ReadyRecords:
    """Stands where kafka-python expects its MemoryRecordsBuilder.

    Not thread-safe by itself: the accumulator's lock of the partition covers every call.
    """

    magic = 2

    def __init__(self, batch: Batch, timestamp_ms: int) -> None:
        self._batch = batch
        self._timestamp_ms = timestamp_ms
        self._sealed: bytearray | None = None
        self._transactional = False
        self.producer_id = -1
        self.producer_epoch = -1
        self.base_sequence = -1

    def set_producer_state(
        self, producer_id: int, producer_epoch: int, base_sequence: int, is_transactional: bool
    ) -> None:
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.base_sequence = base_sequence
        self._transactional = is_transactional
        self._sealed = None

    def append(self, *_record: object) -> None:
        """Refuses the record: kafka-python then opens a batch of its own."""

    def is_full(self) -> bool:
        return True

    def next_offset(self) -> int:
        return self._batch.count

    def size_in_bytes(self) -> int:
        return HEADER_BYTES + len(self._batch.body)

    def compression_rate(self) -> float:
        return 1.0

    def close(self) -> None:
        """Nothing to do yet: an aborted batch is closed too, and need not be sealed."""

    def buffer(self) -> bytearray:
        if self._sealed is None:
            self._sealed = seal(
                self._batch.body,
                self._batch.count,
                timestamp_ms=self._timestamp_ms,
                producer_id=self.producer_id,
                producer_epoch=self.producer_epoch,
                base_sequence=self.base_sequence,
                transactional=self._transactional,
                codec=self._batch.codec,
            )
        return self._sealed


class WholeBatch(ProducerBatch):  # type: ignore[misc]  # kafka-python carries no types
    """A batch that kafka-python never splits.

    Splitting would decode the records and lose null header values. With a count of 1 a refusal for
    size fails the batch instead; sequence numbers take their count from next_offset.
    """

    @property
    def record_count(self) -> int:
        return 1


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one batch.

    Attributes:
        stamp_ms: the broker's time when it took the batch; None without LogAppendTime, or if the
            batch was sent twice because the first answer was lost.
    """

    error: Exception | None  # None if it was acknowledged
    failed_itself: bool  # it caused the error; otherwise it was aborted with another batch
    stamp_ms: int | None = None


def causes(parts: Sequence[T], outcomes: Sequence[Outcome]) -> list[tuple[T, Exception]]:
    """Which of a transaction's first batches have failed by themselves, and why."""
    return [
        (part, outcome.error)
        for part, outcome in zip(parts, outcomes, strict=False)  # the state topic's come last
        if outcome.failed_itself and outcome.error is not None
    ]


class NoAnswer(Exception):
    """These partitions left their batches unanswered while other partitions answered."""

    def __init__(self, partitions: frozenset[KafkaPartition], seconds: float) -> None:
        names = some_of(map(partition_name, partitions))
        super().__init__(f"{names}: no answer to a batch for {seconds:g} s, others were answered")
        self.partitions = partitions


class NotInKafka(KafkaUnavailable):
    """Kafka's metadata does not have these topics, or some of their partitions."""

    def __init__(self, topics: Iterable[str], names: Iterable[str]) -> None:
        super().__init__(f"{some_of(names)}: not in Kafka's metadata")
        self.topics = frozenset(topics)


def announce(producer: KafkaProducer, topics: Iterable[str]) -> None:
    """Makes the producer request the metadata of all these topics at once. Does not block.

    The set is replaced as a whole: another thread may be iterating over the old one.
    """
    metadata = producer._metadata
    metadata.set_topics(metadata._topics.union(topics))


def load(producer: KafkaProducer, topics: Sequence[str], deadline: Deadline) -> None:
    """Loads the topics' leaders into the producer, all by one request.

    Raises:
        DeadlineExceeded: no answer.
        NotInKafka: the brokers' answers do not have some of the topics.
    """
    announce(producer, topics)
    known, patience = producer._metadata.partitions_for_topic, deadline.part(_MISSING_AFTER_S)
    answers = 0  # the first may be to a request from before the announcement
    while missing := [topic for topic in topics if known(topic) is None]:
        if answers > 1 and not patience.remaining_s():
            raise NotInKafka(missing, missing)
        deadline.check(f"look up {some_of(missing)}")
        answers += _refreshed(producer, deadline.part(_MISSING_AFTER_S))


def _refreshed(producer: KafkaProducer, deadline: Deadline) -> bool:
    """Requests the metadata of all topics again; False without an answer."""
    answered = threading.Event()
    future = producer._metadata.request_update().add_both(lambda _: answered.set())
    producer._sender.wakeup()
    return answered.wait(deadline.remaining_s()) and future.succeeded()


def enqueue(
    producer: KafkaProducer,
    batches: Sequence[tuple[KafkaPartition, Batch]],
    timestamp_ms: int,
) -> list[WholeBatch]:
    """Hands batches to the sender, in order within each partition. Does not block.

    The producer must have every topic's metadata: a batch for another topic is never sent.
    """
    accumulator = producer._accumulator
    if accumulator._closed:
        raise DeadlineExceeded("the producer was closed before its batches were queued")
    # All partitions first: they then reach the coordinator in one request.
    for partition in dict.fromkeys(partition for partition, _ in batches):
        producer._transaction_manager.maybe_add_partition_to_transaction(partition)
    queued = []
    for partition, ready in batches:
        batch = WholeBatch(partition, ReadyRecords(ready, timestamp_ms))
        with accumulator._tp_lock(partition):
            accumulator._batches[partition].append(batch)
            accumulator._incomplete.add(batch)
        queued.append(batch)
    producer._sender.wakeup()
    return queued


def has_begun(producer: KafkaProducer) -> bool:
    """Whether Kafka has added partitions to the transaction, once batches are queued."""
    return bool(producer._transaction_manager._partitions_in_transaction)


def await_outcomes(
    producer: KafkaProducer,
    batches: Sequence[WholeBatch],
    deadline: Deadline,
    quiet_s: float = math.inf,
    meanwhile: Callable[[], object] = lambda: None,
) -> list[Outcome]:
    """Waits for every batch, and returns every result. After a failure kafka-python may leave
    batches without one: they count as aborted with it.

    Args:
        batches: the last one stands for the cluster: without a result of it, the cluster as a
            whole may be down.
        quiet_s: how long no further result may come once the last batch has its own, or a batch
            has failed by itself.
        meanwhile: is called again and again during a long wait; its errors are raised.

    Raises:
        DeadlineExceeded: a batch has no result yet.
        NotInKafka: some of their partitions do not exist any more.
        NoAnswer: no further result for `quiet_s`.
    """
    outcomes, is_over = list[Outcome](), False
    # Backwards: one response has the results of many, and each wait that ends among them would take
    # turns with the sender.
    for batch in reversed(batches):
        is_over = is_over or not _await(batch, producer, batches, deadline, quiet_s, meanwhile)
        if is_over and not batch.is_done:
            outcomes.append(Outcome(KafkaTimeoutError("no result"), failed_itself=False))
            continue
        _, stamp_ms, error_of = batch.produce_future.value
        error = error_of(0) if error_of is not None else None
        stamped = error is None and stamp_ms != _NO_STAMP
        outcomes.append(Outcome(error, _failed_itself(batch, error), stamp_ms if stamped else None))
    return outcomes[::-1]


def _failed_itself(batch: WholeBatch, error: Exception | None) -> bool:
    """A coordinator that refuses to add topics to the transaction names them all, and no batch is
    sent: kafka-python aborts those of the others with the same error.
    """
    if isinstance(error, TopicAuthorizationFailedError) and isinstance(error.args[0], set):
        return batch.topic_partition.topic in error.args[0]
    return batch.final_state is FinalState.FAILED


def _await(
    batch: WholeBatch,
    producer: KafkaProducer,
    batches: Sequence[WholeBatch],
    deadline: Deadline,
    quiet_s: float,
    meanwhile: Callable[[], object],
) -> bool:
    """Waits for one batch while any of them still get results. False: it will get none."""
    waiting, quiet = len(batches), Deadline(quiet_s)
    while not batch.produce_future.wait(timeout=min(_MISSING_AFTER_S, deadline.remaining_s())):
        late = _late(batches)
        if deadline.remaining_s() <= 0:
            raise deadline.exceeded(some_of(map(partition_name, late)), "no answer to a batch")
        has_failed = any(each.final_state is FinalState.FAILED for each in batches)
        if not has_failed:  # else the transaction before has ended
            meanwhile()
        if len(late) < waiting:
            waiting, quiet = len(late), Deadline(quiet_s)
            continue
        if missing := _missing(producer, late, deadline):
            raise NotInKafka({each.topic for each in missing}, map(partition_name, missing))
        # One response has the results of many partitions, and may have come meanwhile: those that
        # only shared it with a slow one are not late.
        is_quiet = not quiet.remaining_s() and len(_late(batches)) == len(late)
        if is_quiet and has_failed:
            return False
        if is_quiet and batches[-1].is_done:
            raise NoAnswer(frozenset(late), quiet_s)
    return True


def _late(batches: Sequence[WholeBatch]) -> list[KafkaPartition]:
    """The partitions of the batches without a result."""
    return [batch.topic_partition for batch in batches if not batch.is_done]


def _missing(
    producer: KafkaProducer, partitions: Iterable[KafkaPartition], deadline: Deadline
) -> list[KafkaPartition]:
    """Those of the partitions that do not exist, by metadata from now; none without an answer."""
    if not _refreshed(producer, deadline.part(_MISSING_AFTER_S)):
        return []
    known = producer._metadata.partitions_for_topic
    return [each for each in partitions if each.partition not in (known(each.topic) or ())]


def commit(producer: KafkaProducer, deadline: Deadline) -> None:
    """Commits; unlike `commit_transaction`, within a deadline, which a stop may shorten.

    Raises:
        DeadlineExceeded: no answer; the transaction may be committed.
        KafkaError: not committed, or fenced.
    """
    result = producer._transaction_manager.begin_commit()
    producer._sender.wakeup()
    while not result.wait(timeout_ms=min(_MISSING_AFTER_S * 1000, deadline.remaining_ms())):
        if not deadline.remaining_s():
            raise deadline.exceeded("commit", "no answer")


def stop(producer: KafkaProducer, seconds: float) -> bool:
    """Stops the sender for good; queued batches are dropped, not flushed. Returns whether its
    thread has ended within so many seconds. It ends in any case: at the next answer, or when its
    request times out.
    """
    producer._sender.force_close()
    producer._sender.join(seconds)
    # The public close flushes first and raises while batches are incomplete. Marked as closed, it
    # also stays out of the garbage collector's way, where it could block for seconds.
    producer._unregister_cleanup()
    producer._closed = True
    return not producer._sender.is_alive()
