"""What a simulated ingest does with records: its tasks parse them, its sink takes the timers.

Reading, settings epochs, the bytes between both and the sink are the real ones. Only the contract
is not: what a record asks for follows from its place, key, value and headers from its bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
from tests.simulation.kafka_model import Kafka
from tests.simulation.settings import mapped
from tests.simulation.timers import Copy, batch_of

from duewheel.checkpoints.config_epochs import Epochs
from duewheel.checkpoints.fs import Space
from duewheel.clock import Clock
from duewheel.schemas.batches import TimerBatch
from duewheel.schemas.columns import join_groups
from duewheel.schemas.wire.kafka_records import KafkaRecords
from duewheel.streaming.batch_taker import BatchTaker
from duewheel.streaming.disk_guard import DiskGuard
from duewheel.streaming.epoch_parser import parse_by_epoch
from duewheel.streaming.offset_gaps import GapWatch
from duewheel.wheel.append.engine import Engine


def parser_of(epochs: Epochs, kafka: Kafka) -> Callable[[KafkaRecords], TimerBatch]:
    """What the tasks of a query do with records."""
    parsers = [partial(_parsed, kafka, mapped(epoch.values)) for epoch in epochs.epochs]
    return partial(parse_by_epoch, parsers=parsers, epochs=epochs)


def _parsed(kafka: Kafka, mapped: int, records: KafkaRecords) -> TimerBatch:
    """`mapped`: as in `batch_of`."""
    numbers = [records.partitions[index][1] for index in records.partition.tolist()]
    places = zip(numbers, records.offset.tolist(), strict=True)
    copies = [_committed(kafka, number, offset) for number, offset in places]
    headers = records.headers
    return replace(
        batch_of(copies, mapped),
        partitions=records.partitions,
        partition=records.partition,
        offset=records.offset,
        key_value=records.key_value.column(),
        headers=join_groups(headers.both.column(), headers.firsts),
        header_count=np.diff(headers.firsts).astype(np.int32),
        timestamp_ms=records.timestamp_ms,
    )


def _committed(kafka: Kafka, number: int, offset: int) -> Copy:
    copy = kafka.partitions[number].records[offset]
    assert copy is not None, f"{number}@{offset} is read, but it is no committed record"
    return copy


def taker_of(engine: Engine, kafka: Kafka, clock: Clock) -> BatchTaker:
    """What takes batches, as ingest makes it."""

    def log_start(_: str, number: int) -> int:
        return kafka.partitions[number].start

    return BatchTaker(
        engine,
        GapWatch(log_start, clock),
        clock,
        paused=lambda: False,
        guard=DiskGuard(lambda: Space(1 << 60, 1 << 60), lambda _: 0, lambda: False),
    )
