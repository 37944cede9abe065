"""Commits a transaction only if Kafka has acknowledged every record of it.

    with transaction(producer):
        producer.send("bills", b"10 EUR")
        producer.send_offsets_to_transaction(offsets, member)

`member` is `consumer.group_metadata()`, read right after the poll that returned the messages. Read
later, it has no generation if the group has evicted the consumer meanwhile, and Kafka takes offsets
without a generation unchecked: the messages' successor handles them, too.

kafka-python alone does not: a record that is not acknowledged within `delivery_timeout_ms` fails
its own future and nothing else. `commit_transaction` then commits the rest, and with it the offset
of the message that the lost record was made from.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from kafka.errors import KafkaError


@contextlib.contextmanager
def transaction(producer: Any) -> Iterator[None]:
    """Makes a block one transaction: committed at its end, aborted after an exception of any kind.

    Every `producer.send` of the block counts, in whichever thread and whether or not its future was
    read. A failed one aborts the transaction even if the block has handled its error. Only a bound
    method that was taken before the block (`send = producer.send`) is not followed: kafka-python
    has no place where each future shows.

    Args:
        producer: a transactional KafkaProducer after `init_transactions`, with no transaction open.

    Raises:
        KafkaError: Kafka has not acknowledged a record, or not the commit: close producer and
            consumer, and begin again at the committed offsets. Whether a commit without an answer
            has happened shows in those.
    """
    producer.begin_transaction()
    try:
        with _unacknowledged(producer) as (sent, refused):
            yield
        if refused:
            raise refused[0]
        producer.flush()
        for future in list(sent):
            future.get()
    except BaseException:  # of a Ctrl-C, too: an open transaction holds up consumers for a minute
        # If the abort fails too, the next producer with this id ends the transaction.
        with contextlib.suppress(KafkaError):
            producer.abort_transaction()
        raise
    producer.commit_transaction()


@contextlib.contextmanager
def _unacknowledged(producer: Any) -> Iterator[tuple[set[Any], list[Exception]]]:
    """Follows the sends of a block: the set has the futures without an acknowledgement so far, the
    list the first error that `send` itself has raised, such as no metadata of the topic in time.

    Acknowledged ones are dropped, so the set is bounded by the records in flight. `send` is
    replaced on this one producer, because kafka-python offers no other way to see each future.
    """
    pending: set[Any] = set()
    refused: list[Exception] = []
    send = producer.send

    def followed(*args: Any, **kwargs: Any) -> Any:
        try:
            future = send(*args, **kwargs)
        except Exception as error:
            if not refused:
                refused.append(error)
            raise
        pending.add(future)
        future.add_callback(lambda _: pending.discard(future))
        return future

    producer.send = followed
    try:
        yield pending, refused
    finally:
        producer.send = send
