"""What receipts and lateness headers cost a publisher: transactions on a real broker.

    receipts.py --port 9092      prints a line for each size of a transaction and each kind

The broker runs beside it (`duewheel dev-broker run`). All kinds take turns; the best of several
turns counts. Processor time is that of the publisher's process, to prepare and to publish.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
# The last place to look for modules: a folder called `wheel` lies there.
sys.path.append(str(ROOT))

from kafka import KafkaAdminClient  # noqa: E402
from tests.harness.deliveries import rows  # noqa: E402
from tests.harness.publishing import create_topics, progress, publish_rows  # noqa: E402

from duewheel.clock import SystemClock  # noqa: E402
from duewheel.kafka.publish.fenced_session import ShardNames  # noqa: E402
from duewheel.kafka.publish.publisher import KafkaPublisher  # noqa: E402
from duewheel.schemas.batches import Deliveries  # noqa: E402
from duewheel.schemas.columns import binary  # noqa: E402
from duewheel.schemas.hashing import key_hashes  # noqa: E402
from duewheel.schemas.wire.record_codec import key_values  # noqa: E402
from duewheel.wheel.dequeue.receipt_rows import Receipts  # noqa: E402

CLOCK = SystemClock()
TURNS = 5


def deliveries(topic: str, count: int) -> Deliveries:
    """Bodies of 100 bytes, keys of 16, no ids."""
    keys = binary(b"key-%012d" % n for n in range(count))
    sent = rows([topic] * count, [-1] * count)
    values = binary([b"v" * 100] * count)
    due_ms = np.full(count, CLOCK.now_ms())
    return replace(
        sent, key_hash=key_hashes(keys), key_value=key_values(keys, values), due_ms=due_ms
    )


def measured(publisher: KafkaPublisher, sent: Deliveries, rounds: int) -> tuple[float, float]:
    """Processor time of a row in µs, and duration of a transaction in ms."""
    begun, cpu = time.perf_counter(), os.times()
    for _ in range(rounds):
        publish_rows(publisher, sent, progress(1))
    used, took = os.times(), time.perf_counter() - begun
    spent_s = used.user + used.system - cpu.user - cpu.system
    return 1e6 * spent_s / rounds / len(sent), 1e3 * took / rounds


def results(servers: str) -> Iterator[str]:
    """A line for each size and kind."""
    with_topics = KafkaAdminClient(bootstrap_servers=servers)
    names = create_topics(with_topics)
    receipts = f"receipts-{uuid.uuid4().hex[:8]}"
    settings = {"message.timestamp.type": "LogAppendTime"}
    with_topics.create_topics({receipts: {"num_partitions": 4, "configs": settings}})
    with_topics.close()
    kinds = {
        "off": Receipts(),
        "receipts": Receipts(receipts),
        "lateness header": Receipts(lateness_headers=frozenset(["timers"])),
    }
    publishers = {}
    for kind, chosen in kinds.items():
        publishers[kind] = KafkaPublisher(
            {"bootstrap_servers": servers},
            ShardNames(f"{receipts}-{kind}", names.state, names.dead_letters, 0),
            CLOCK,
            receipts=chosen,
        )
    for count, rounds in ((20_000, 20), (1_000, 60), (50, 100)):
        sent = deliveries(names.target, count)
        turns: dict[str, list[tuple[float, float]]] = {kind: [] for kind in kinds}
        for _ in range(TURNS):
            for kind, publisher in publishers.items():
                publisher.start()
                measured(publisher, sent, 3)
                turns[kind].append(measured(publisher, sent, rounds))
        for kind, each in turns.items():
            row_us, took_ms = (min(values) for values in zip(*each, strict=True))
            yield f"{count:6} rows  {kind:16} {row_us:8.2f} µs a row  {took_ms:7.1f} ms"
    for publisher in publishers.values():
        publisher.close()


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=9092)
    for line in results(f"127.0.0.1:{parser.parse_args().port}"):
        print(line, flush=True)


if __name__ == "__main__":
    main()
