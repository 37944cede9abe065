"""A producer for transactions of ready batches, and one such transaction.

Used by whatever must be exactly once: deliveries with their progress, replays with their position.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable

from kafka import KafkaProducer
from kafka.structs import TopicPartition

from duewheel.errors import DuewheelError
from duewheel.kafka import producer_internals as internals
from duewheel.kafka.clients import ClientSettings
from duewheel.kafka.deadline import Deadline
from duewheel.schemas.wire.record_batch import Batch

_REQUEST_BYTES = 16 * 1024 * 1024  # of several partitions' batches; a larger batch goes alone
_BYTES_PER_S = 1 << 20  # a partition that takes less of a batch counts as taking none
_TOPIC_S = 0.05  # a generous hundred times what looking up and meeting one of many takes


def open_producer(
    settings: ClientSettings,
    transactional_id: str,
    *,
    timeout_ms: int,
    publish_s: float,
    stop_s: float,
    deadline: Deadline,
) -> KafkaProducer:
    """A producer that owns the transactional id: what a predecessor left open has been ended.

    Args:
        settings: of every client.
        transactional_id: whoever opens a producer with it last owns it.
        timeout_ms: after it the broker aborts a transaction that nobody ends.
        publish_s: the longest that one transaction may take, below `timeout_ms`.
        stop_s: how long to wait for the thread of a producer that could not be opened.
        deadline: for the whole call.

    Raises:
        KafkaUnavailable: no answer in time.
        ConfigError: kafka-python, the broker or the rights do not fit.
    """
    # A request that hangs must not outlive its transaction by much: the sender's thread of a
    # dropped producer ends with it.
    request_ms = int(publish_s * 1000)
    producer = settings.open(
        KafkaProducer,
        deadline,
        transactional_id=transactional_id,
        transaction_timeout_ms=timeout_ms,
        max_block_ms=deadline.remaining_ms(),
        request_timeout_ms=request_ms,
        delivery_timeout_ms=request_ms,
        linger_ms=0,
        retry_backoff_ms=2,  # 100 by default, which each transaction after another one waits
        allow_auto_create_topics=False,
        max_request_size=_REQUEST_BYTES,
        metrics_enabled=False,
    )
    try:
        internals.check_internals(producer)
        settings.call(deadline, "init_transactions", producer.init_transactions)
    except DuewheelError:
        internals.stop(producer, stop_s)
        raise
    return producer


def preparation_deadline(
    seconds: float, topics: int, stopping: threading.Event | None = None
) -> Deadline:
    """For what precedes a transaction, looking up and meeting: longer the more topics there are,
    so that no number of them can make it fail for ever.
    """
    return Deadline(seconds + _TOPIC_S * topics, stopping)


def meet(
    settings: ClientSettings, producer: KafkaProducer, topics: Iterable[str], deadline: Deadline
) -> None:
    """Have the producer know the topics' leaders: a batch for an unknown one never leaves.

    All are announced before the first is waited for: one answer then tells of all of them, while
    asking for one after the other takes a tenth of a second each.

    Raises:
        KafkaUnavailable: no answer in time.
        ConfigError: no right to know of a topic.
    """
    names = list(topics)

    def look_up() -> None:
        internals.announce(producer, names)
        for name in names:
            deadline.check(f"look up {name}")  # ends an abandoned thread
            producer.partitions_for(name)

    if names:
        shown = names[0] if len(names) == 1 else f"{len(names)} topics"
        settings.call(deadline, f"look up {shown}", look_up)


def transact(
    producer: KafkaProducer,
    batches: list[tuple[TopicPartition, Batch]],
    now_ms: int,
    deadline: Deadline,
    quiet_s: float = math.inf,
) -> list[internals.Outcome]:
    """One transaction: begin, queue, look at every result, commit; not if any has an error.

    Args:
        producer: that owns its transactional id.
        batches: in order within each partition; the last one as in `await_outcomes`.
        now_ms: the records' timestamp.
        deadline: for the whole call.
        quiet_s: as in `await_outcomes`; a second is added for each MiB of the largest batch.

    Raises:
        DeadlinePassed, NoAnswer: as `await_outcomes`; or the commit has no answer.

    Returns:
        What became of each batch. With an error among them the transaction is still open: drop the
        producer.
    """
    producer.begin_transaction()
    queued = internals.enqueue(producer, batches, now_ms)
    largest = max(len(batch.body) for _, batch in batches)
    outcomes = internals.await_outcomes(queued, deadline, quiet_s + largest / _BYTES_PER_S)
    if all(outcome.error is None for outcome in outcomes):
        internals.commit(producer, deadline)
    return outcomes
