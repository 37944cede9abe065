"""A consumer with retries in transactions; kills itself at a chosen step.

    python -P retrying_consumer.py SERVERS ORDERS TIMERS OUTPUTS STEP

Each message is written to OUTPUTS; that of an odd number fails after it, so its retry goes to
TIMERS. It ends at the end of ORDERS.

    STEP      the process is killed, at its third message that fails
    retry     after the retry was written, before the offset
    offset    after both, before the commit
    commit    after the commit
    none      never
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from duewheel.client import RetryLater

FAILURES = 3  # the process is killed at this one


class DyingProducer(KafkaProducer):  # type: ignore[misc]  # kafka-python brings no types
    """Ends the process at a step."""

    step = "none"
    failures = 0

    def send_offsets_to_transaction(self, offsets: Any, group: Any) -> None:
        self.die_at("retry")
        super().send_offsets_to_transaction(offsets, group)

    def commit_transaction(self) -> None:
        self.die_at("offset")
        super().commit_transaction()
        self.die_at("commit")

    def die_at(self, step: str) -> None:
        if step == self.step and self.failures == FAILURES:
            self.flush()
            os.kill(os.getpid(), signal.SIGKILL)


def main(servers: str, orders: str, timers: str, outputs: str, step: str) -> None:
    consumer = KafkaConsumer(
        orders,
        bootstrap_servers=servers,
        group_id=orders,
        group_instance_id="one",  # a static member: its next process need not wait for this one
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    )
    producer = DyingProducer(bootstrap_servers=servers, transactional_id=orders)
    producer.step = step
    producer.init_transactions()
    retry_later = RetryLater(producer, timers, dead_letter_topic=f"{timers}.dead")

    @retry_later.in_transactions(consumer)
    def handle(record: Any) -> None:
        producer.send(outputs, record.value)
        if int(record.value) % 2:
            producer.failures += 1
            raise ValueError("odd")

    partition = TopicPartition(orders, 0)
    (end,) = consumer.end_offsets([partition]).values()
    while not consumer.assignment() or consumer.position(partition) < end:
        for record in consumer.poll(timeout_ms=100).get(partition, []):
            handle(record)
    consumer.close()
    producer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
