"""Publishers on a real broker, deliveries for them, and an independent read_committed reader."""

from __future__ import annotations

import sys
import threading
import time
import traceback
import uuid
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from kafka import KafkaAdminClient
from tests.harness.deliveries import plain_deliveries
from tests.harness.reader import read_topic
from tests.harness.shared_broker import AnyBroker

from duewheel.checkpoints.config_epochs import Epochs
from duewheel.checkpoints.progress import PartitionProgress, Progress
from duewheel.clock import SystemClock
from duewheel.errors import ConfigError, KafkaUnavailable
from duewheel.kafka.log.compression import Compression
from duewheel.kafka.publish.fenced_session import ShardNames
from duewheel.kafka.publish.publisher import KafkaPublisher
from duewheel.kafka.transaction_limits import TransactionLimits
from duewheel.schemas.batches import NO_KEY, NO_PARTITION, Deliveries
from duewheel.schemas.columns import binary
from duewheel.schemas.wire.varint import varint
from duewheel.wheel.encoded import Aside
from duewheel.wheel.publisher_protocol import Prepared

Headers = list[tuple[str, bytes | None]]


@dataclass
class Message:
    """A delivery, one row as people think of it."""

    topic: str
    value: bytes | None
    key: bytes | None = b"k"
    headers: Headers = field(default_factory=list)
    partition: int = NO_PARTITION
    source: bytes = b"orders.delayed-0@1"
    dead_letter: bool = False


@dataclass(frozen=True)
class Names:
    """Topics of one test: target with 4 partitions, dead letters, state."""

    target: str
    dead_letters: str
    state: str


def framed(value: bytes | None) -> bytes:
    return varint(-1) if value is None else varint(len(value)) + value


def deliveries(messages: list[Message]) -> Deliveries:
    topics = sorted({message.topic for message in messages})
    n = len(messages)
    key_hashes = [NO_KEY if m.key is None else sum(m.key) for m in messages]
    return replace(
        plain_deliveries(n),
        targets=topics,
        target=np.array([topics.index(m.topic) for m in messages], np.int32),
        target_partition=np.array([m.partition for m in messages], np.int32),
        key_hash=np.array(key_hashes, np.int32),
        due_ms=np.full(n, 1_800_000_000_000, np.int64),
        source_partitions=[("orders.delayed", 0)],
        origin_offset=np.ones(n, np.int64),
        source=binary([m.source for m in messages]),
        timer_id=binary([m.source for m in messages]),
        key_value=binary([framed(m.key) + framed(m.value) for m in messages]),
        headers=binary(
            [b"".join(framed(k.encode()) + framed(v) for k, v in m.headers) for m in messages]
        ),
        header_count=np.array([len(m.headers) for m in messages], np.int32),
        dead_letter=np.array([m.dead_letter for m in messages], np.bool_),
    )


def publish(publisher: KafkaPublisher, messages: list[Message], told: Progress) -> Aside:
    return publish_rows(publisher, deliveries(messages), told)


def publish_rows(publisher: KafkaPublisher, rows: Deliveries, told: Progress) -> Aside:
    return publish_prepared(publisher, publisher.prepare(rows), told)


def publish_prepared(publisher: KafkaPublisher, prepared: Prepared, told: Progress) -> Aside:
    """As the loop does; which rows did not go to their target."""
    attempt = publisher.compose(publisher.renew(prepared, told), told)
    publisher.publish(attempt)
    return attempt.aside


def progress(slot: int, shard: int = 0) -> Progress:
    epochs = Epochs.first({"precision_ms": 50, "roll_window_ms": 86_400_000})
    return Progress(
        shard, 2, "owner", 0, 1, epochs, {("orders.delayed", 0): PartitionProgress(slot, 0)}
    )


def slot_of(found: Progress | None) -> int | None:
    return None if found is None else found.partitions["orders.delayed", 0].delivered_slot


def read(broker: AnyBroker, topic: str) -> list[Any]:
    """Every committed record, partition by partition."""
    return read_topic(broker.bootstrap_servers, topic)


def values(records: list[Any]) -> list[bytes | None]:
    return [record.value for record in records]


def own_threads() -> set[threading.Thread]:
    """Threads of kafka-python and of abandoned calls."""
    marks = ("network-thread", "kafka-io", "deadline:")
    return {t for t in threading.enumerate() if any(mark in t.name for mark in marks)}


def where_they_are(threads: set[threading.Thread]) -> str:
    """The threads' stacks, as text."""
    frames = sys._current_frames()  # noqa: SLF001
    stacks = ((t.name, frames[t.ident]) for t in threads if t.ident in frames)
    return "\n".join(f"{name}:\n{''.join(traceback.format_stack(at))}" for name, at in stacks)


def create_topics(admin: KafkaAdminClient) -> Names:
    prefix = f"pub-{uuid.uuid4().hex[:8]}"
    names = Names(f"{prefix}.orders", f"{prefix}.dead-letter", f"{prefix}.state")
    state = {"cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime"}
    admin.create_topics(
        {
            names.target: {"num_partitions": 4},
            names.dead_letters: {"num_partitions": 1},
            names.state: {"num_partitions": 2, "configs": state},
        },
        wait_for_metadata=True,
    )
    return names


def new_publisher(
    broker: AnyBroker,
    names: Names,
    shard: int,
    compression: Compression | None = None,
    **limits: Any,
) -> KafkaPublisher:
    return KafkaPublisher(
        {"bootstrap_servers": broker.bootstrap_servers},
        ShardNames(f"{names.state}-{shard}", names.state, names.dead_letters, shard),
        SystemClock(),
        limits=TransactionLimits(**limits),
        compression=compression,
    )


def started(publisher: KafkaPublisher) -> Progress | None:
    """Start, as often as it takes while the broker comes back, or has no metadata of new topics."""
    for _ in range(10):
        try:
            return publisher.start()
        except (KafkaUnavailable, ConfigError):
            time.sleep(0.5)
    return publisher.start()
