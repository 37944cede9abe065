"""Writes ready batches in transactions, by a producer that owns its transactional id.

All that is written exactly once uses it: deliveries with their progress, replays with their
position. A failed transaction stays open: the caller drops the producer, and the next `open` ends
the transaction. wheel/doubt_resolution.py then finds out whether it was committed. A producer
belongs to one thread.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import structlog
from kafka import KafkaProducer
from kafka.structs import TopicPartition as KafkaPartition

from duewheel.deadline import Deadline
from duewheel.errors import DuewheelError, KafkaUnavailable
from duewheel.kafka.connect.clients import KafkaClients
from duewheel.kafka.ledger import producer_internals as internals
from duewheel.kafka.transaction_errors import FENCED, PartitionRefusesId
from duewheel.kafka.transaction_limits import TransactionLimits
from duewheel.schemas.batches import TopicPartition
from duewheel.schemas.wire.record_batch import Batch

_REQUEST_BYTES = 16 * 1024 * 1024  # for batches of several partitions; a larger batch goes alone
_OPTIONS: Mapping[str, Any] = {
    "linger_ms": 0,
    "retry_backoff_ms": 2,  # the default, 100, delays a transaction right after another
    "allow_auto_create_topics": False,
    "max_request_size": _REQUEST_BYTES,
    "metrics_enabled": False,
}
_UNENDED_S = 2.0  # the usual wait for the transaction before is some milliseconds
_BYTES_PER_S = 1 << 20  # a partition that takes a batch slower than this counts as taking none

log = structlog.get_logger(__name__)


class NotBegun(KafkaUnavailable):
    """A transaction cannot begin, because Kafka is still ending the one before."""


class TransactionalProducer:
    """One transactional id, and the producer that owns it while it is open. Not thread-safe.

    Example:
        producer = TransactionalProducer(clients, "app.reshard", limits)
        producer.open(["app.state"], deadline)
        stamp_ms = producer.transact(batches, now_ms)
        producer.stop()
    """

    def __init__(
        self,
        clients: KafkaClients,
        transactional_id: str,
        limits: TransactionLimits,
        stopping: threading.Event | None = None,
        is_ending: Callable[[], bool] = lambda: False,
    ) -> None:
        """`is_ending` asks Kafka whether it has not ended a transaction of the id yet."""
        self._clients = clients
        self.transactional_id = transactional_id
        self._limits = limits
        self._stopping, self._is_ending = stopping, is_ending
        self._producer: KafkaProducer | None = None
        self._warm: set[str] = set()  # topics whose leaders the producer has

    @property
    def is_open(self) -> bool:
        """Whether there is a producer."""
        return self._producer is not None

    def open(self, topics: Iterable[str], deadline: Deadline) -> None:
        """Takes the id, which ends a predecessor's open transaction, and loads these topics'
        metadata. Stops a producer that is open; after an error none is, but the id may be taken.
        """
        self.stop()
        self._producer = open_producer(self._clients, self.transactional_id, self._limits, deadline)
        try:
            self.warm_metadata(topics, deadline)
        except DuewheelError:
            self.stop()
            raise

    def warm_metadata(self, topics: Iterable[str], deadline: Deadline) -> None:
        """Loads the topics' leaders into the producer: a batch for a topic without them is never
        sent. Topics loaded before cost nothing.
        """
        producer, new = self._opened(), [topic for topic in topics if topic not in self._warm]
        if new:
            shown = new[0] if len(new) == 1 else f"{len(new)} topics"
            load = partial(internals.load, producer, new, deadline)
            self._clients.call(deadline, f"look up {shown}", load)
            self._warm.update(new)

    def transact(
        self,
        batches: Iterable[tuple[TopicPartition, Batch]],
        now_ms: int,
        quiet_s: float = math.inf,
        on_failure: Callable[[Sequence[internals.Outcome]], None] = lambda _: None,
    ) -> int | None:
        """One transaction, as `commit_all`, within its deadline. Any error leaves a
        doubt (`doubt_of`).

        Args:
            on_failure: gets the outcomes, in the order of the batches, if one is an error.

        Returns:
            The broker's time of the last batch; None if it is unknown.
        """
        producer = self._opened()
        queued = [(KafkaPartition(*place), batch) for place, batch in batches]
        deadline = Deadline(self._limits.publish_deadline_s, self._stopping)
        outcomes = commit_all(
            producer,
            queued,
            now_ms,
            deadline,
            quiet_s=quiet_s,
            meanwhile=self._begun_check(producer, deadline.part(_UNENDED_S)),
        )
        # The cause first: the other batches were aborted with it, and their errors name no reason.
        for cause in sorted(outcomes, key=lambda outcome: not outcome.failed_itself):
            if cause.error is not None:
                on_failure(outcomes)
                if isinstance(cause.error, FENCED) and not self._is_displaced(cause, outcomes[-1]):
                    raise PartitionRefusesId(type(cause.error).__name__) from cause.error
                raise cause.error
        return outcomes[-1].stamp_ms

    def _is_displaced(self, cause: internals.Outcome, last: internals.Outcome) -> bool:
        """Whether another producer may have the id, after a batch that was fenced. None has it if
        the last batch was taken, or as long as Kafka ends the transaction.
        """
        if last.error is None:
            return False
        of_partition = cause.failed_itself and not last.failed_itself
        return not (of_partition and self._is_ending())

    def stop(self) -> None:
        """Drops the producer; an open transaction is left to the next `open` or its time-out."""
        producer, self._producer = self._producer, None
        self._warm.clear()
        stop_s = Deadline(self._limits.stop_s, self._stopping).remaining_s()
        if producer is not None and not internals.stop(producer, stop_s):
            log.warning("old sender is still ending", transactional_id=self.transactional_id)

    def _begun_check(self, producer: KafkaProducer, usual: Deadline) -> Callable[[], None]:
        """A function that raises NotBegun after `usual`, if the transaction before has no end."""
        is_ending = cache(self._is_ending)  # an answer may take seconds, and a stop waits for it

        def require_begun() -> None:
            if not usual.remaining_s() and not internals.has_begun(producer) and is_ending():
                text = f"Kafka does not end the transaction of {self.transactional_id!r} before"
                raise NotBegun(text)

        return require_begun

    def _opened(self) -> KafkaProducer:
        assert self._producer is not None, "call `open` first"
        return self._producer


def open_producer(
    clients: KafkaClients,
    transactional_id: str,
    limits: TransactionLimits,
    deadline: Deadline,
) -> KafkaProducer:
    """A producer that owns the transactional id, until another one is opened with it; ends a
    predecessor's open transaction.
    """
    # A request that hangs must not outlive its transaction by much: the sender's thread of a
    # dropped producer ends with it.
    request_ms = int(limits.publish_deadline_s * 1000)
    producer = clients.open(
        KafkaProducer,
        deadline,
        transactional_id=transactional_id,
        transaction_timeout_ms=limits.transaction_timeout_ms,
        max_block_ms=deadline.remaining_ms(),
        request_timeout_ms=request_ms,
        delivery_timeout_ms=request_ms,
        **_OPTIONS,
    )
    try:
        internals.check_internals(producer)
        clients.call(deadline, "init_transactions", producer.init_transactions)
    except DuewheelError:
        internals.stop(producer, limits.stop_s)
        raise
    return producer


def commit_all(
    producer: KafkaProducer,
    batches: list[tuple[KafkaPartition, Batch]],
    now_ms: int,
    deadline: Deadline,
    quiet_s: float = math.inf,
    meanwhile: Callable[[], object] = lambda: None,
) -> list[internals.Outcome]:
    """One transaction: begin, queue, check every result, commit unless one has an error. In the
    caller's thread: none of its calls can wait without a limit.

    Args:
        batches: in order within each partition; the last one as in `await_outcomes`.
        now_ms: the records' timestamp.
        quiet_s: as in `await_outcomes`; a second is added for each MiB of the largest batch.
        meanwhile: as in `await_outcomes`.

    Raises:
        DeadlineExceeded, NotInKafka, NoAnswer: as `await_outcomes`; or the commit has no
            answer.

    Returns:
        The outcome of each batch. With an error among them the transaction is still open: drop the
        producer.
    """
    producer.begin_transaction()
    queued = internals.enqueue(producer, batches, now_ms)
    largest = max(len(batch.body) for _, batch in batches)
    patience_s = quiet_s + largest / _BYTES_PER_S
    outcomes = internals.await_outcomes(producer, queued, deadline, patience_s, meanwhile)
    # kafka-python itself would commit without the batches that have failed: messages would be lost.
    if all(outcome.error is None for outcome in outcomes):
        internals.commit(producer, deadline)
    return outcomes
