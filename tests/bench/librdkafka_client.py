"""Load and consumer of confluent-kafka, a process each: the clients of `duewheel-librdkafka`.

    librdkafka_client.py consume SERVERS TOPIC RECEIPTS
    librdkafka_client.py send SERVERS TOPIC TARGET LOAD FIRST

LOAD is a file with int64 of (send_ms, due_ms) of each timer, FIRST the number of the first one; it
prints a SendResult as JSON.

It imports nothing of duewheel and none of the bench's own encoders: a second opinion on the first
driver's figures. A receipt is three int64, as in system.py.
"""

from __future__ import annotations

import json
import struct
import sys
import time
from array import array
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

AT_ONCE = 0
BODY_BYTES, KEY_BYTES = 100, 16
USER_HEADERS = [("trace", b"0" * 16), ("tenant", b"acme"), ("kind", b"reminder")]
RECEIPT = struct.Struct("<qqq")
AT_MOST = 10_000  # messages of a poll


def now_ms() -> int:
    return time.time_ns() // 1_000_000  # noqa: TID251 - see the module: nothing of duewheel


def consume(servers: str, topic: str, receipts: str) -> None:
    """Until it is killed; the partitions are assigned, so that no group has to form."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "bench",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "fetch.queue.backoff.ms": 5,
        }
    )
    partitions = consumer.list_topics(topic, 30).topics[topic].partitions
    consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
    with Path(receipts).open("ab", buffering=0) as file:
        while True:
            first = consumer.poll(1.0)
            if first is not None:
                got_ms = now_ms()
                messages = [first, *consumer.consume(AT_MOST, 0)]
                values = [message.value() for message in messages if message.error() is None]
                rows = [RECEIPT.pack(int(value[2:14]), 0, got_ms) for value in values if value]
                file.write(b"".join(rows))


class TimedSends:
    """One load: each timer is produced at its time, whether or not others are acknowledged."""

    def __init__(self, servers: str, topic: str, target: str) -> None:
        self._topic, self._target, self.failed = topic, target, 0
        self._producer = Producer(
            {
                "bootstrap.servers": servers,
                "acks": "all",
                "linger.ms": 5,
                "queue.buffering.max.messages": 200_000,
            }
        )

    def send(self, times: array[int], first: int) -> None:
        for index in range(len(times) // 2):
            send_ms, due_ms = times[2 * index], times[2 * index + 1]
            if send_ms != AT_ONCE and (wait_ms := send_ms - now_ms()) > 0:
                self._producer.poll(0)
                time.sleep(wait_ms / 1000)
            self._produce(first + index, due_ms)
        self._producer.flush()

    def _produce(self, number: int, due_ms: int) -> None:
        digits = b"%012d" % number
        while True:
            try:
                self._producer.produce(
                    self._topic,
                    (b"##" + digits).ljust(BODY_BYTES, b"."),
                    digits.ljust(KEY_BYTES, b"."),
                    headers=[
                        ("TIMER_DELIVER_MS", str(due_ms)),
                        ("REAL_TOPIC", self._target),
                        *USER_HEADERS,
                    ],
                    on_delivery=self._delivered,
                )
            except BufferError:
                self._producer.poll(0.01)
            else:
                return

    def _delivered(self, error: KafkaError | None, _message: Message) -> None:
        self.failed += error is not None


def send(servers: str, topic: str, target: str, path: str, first: str) -> None:
    times = array("q", Path(path).read_bytes())
    load, begun_ms = TimedSends(servers, topic, target), now_ms()
    load.send(times, int(first))
    sent = {"begun_ms": begun_ms, "acked_ms": now_ms(), "failed": load.failed}
    print(json.dumps(sent), flush=True)


def main() -> None:
    command, *arguments = sys.argv[1:]
    if command == "consume":
        consume(*arguments)
    else:
        send(*arguments)


if __name__ == "__main__":
    main()
