"""A broker that is killed in the middle of a publisher's transaction."""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient
from kafka.admin import TransactionState
from tests.harness.launcher import wait_until
from tests.harness.publishing import (
    Message,
    create_topics,
    new_publisher,
    own_threads,
    progress,
    publish,
    read,
    slot_of,
    started,
    values,
    where_they_are,
)

from duewheel.dev.broker import DevBroker
from duewheel.errors import PublishDoubt
from duewheel.java.find import Java
from duewheel.kafka.connect.clients import close
from duewheel.kafka.ledger import producer_internals
from duewheel.kafka.publish.publisher import KafkaPublisher

pytestmark = pytest.mark.kafka


@pytest.mark.slow
# kafka-python leaves the sockets of refused connections to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_broker_killed_while_publishing_costs_and_doubles_nothing(
    java: Java, kafka_jars: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    # A captured record would hold its exception, and that the socket, beyond this test.
    caplog.set_level(logging.CRITICAL, logger="kafka")
    before = own_threads()
    with DevBroker(java=java) as broker:
        admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
        names = create_topics(admin)
        admin.close()
        publisher = new_publisher(
            # Long after the restart: an abort by time-out can lose its markers too, see below.
            broker,
            names,
            0,
            publish_deadline_s=6.0,
            transaction_timeout_ms=120_000,
            batch_bytes=64 * 1024,
        )
        publisher.start()
        total, doubts = _publish_over_a_kill(broker, publisher, names.target, f"{names.state}-0")

        assert doubts > 0, "the broker was never missed"
        # Soon after the failure partitions are not tried again: their rows become dead letters
        # where, as here, there is no timer topic to take them.
        written = [*read(broker, names.target), *read(broker, names.dead_letters)]
        numbers = [int(v) for v in values(written) if v is not None]
        missing = set(range(total)).difference(numbers)
        assert (len(numbers), len(missing)) == (total, 0)
        publisher.close()
        wait_until(lambda: own_threads() <= before, lambda: where_they_are(own_threads() - before))
    gc.collect()


def _publish_over_a_kill(
    broker: DevBroker, publisher: KafkaPublisher, topic: str, transactional_id: str
) -> tuple[int, int]:
    """Publish numbers, kill the broker inside a transaction; how many numbers, and doubts."""
    chunk, slots, slot, doubts = 20_000, 4, 0, 0
    while slot < slots:
        rows = [
            Message(topic, b"%d" % i, key=b"%d" % i)
            for i in range(slot * chunk, (slot + 1) * chunk)
        ]
        is_killed = slot == slots // 2 and not doubts
        try:
            with _killed_in_transaction(broker, transactional_id) if is_killed else nullcontext():
                publish(publisher, rows, progress(slot))
            slot += 1
        except PublishDoubt:
            doubts += 1
            broker.restart()
            found = slot_of(started(publisher))
            assert found in {slot - 1, slot}
            slot = found + 1
    return slots * chunk, doubts


@contextmanager
def _killed_in_transaction(broker: DevBroker, transactional_id: str) -> Iterator[None]:
    """Kill the broker while batches are under way; a commit is sent only after that, if at all.

    A broker alone in its cluster that dies between the commit and its markers forgets the markers
    (Kafka 4.3 and 4.4: partitions without a leader count as deleted); no client mends that.
    """
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    commit = producer_internals.commit

    def is_open() -> bool:
        found = admin.describe_transactions([transactional_id])[transactional_id]
        return bool(found.state == TransactionState.ONGOING)

    def kill() -> None:
        wait_until(is_open, "no transaction")
        broker.kill()
        close(admin)

    def commit_late(*given: Any) -> None:
        killer.join()
        commit(*given)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(producer_internals, "commit", commit_late)
        try:
            yield
        finally:
            killer.join()
