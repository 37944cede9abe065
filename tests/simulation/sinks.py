"""The sink of a simulated ingest: the real one with simulated input."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from tests.simulation.kafka_model import Kafka
from tests.simulation.settings import mapped
from tests.simulation.timers import Records, batch_of

from duewheel.checkpoints.fs import Space
from duewheel.clock import Clock
from duewheel.schemas.batches import TimerBatch
from duewheel.streaming.disk_guard import DiskGuard
from duewheel.streaming.epoch_parser import parse_by_epoch
from duewheel.streaming.offset_gaps import GapWatch
from duewheel.streaming.sink import TimerSink
from duewheel.wheel.append.engine import Engine


def sink_of(engine: Engine, checkpoint: Path, kafka: Kafka, clock: Clock) -> TimerSink:
    """The sink as ingest makes it, but for what it reads."""

    epochs = engine.epochs
    parsers = [partial(batch_of, mapped=mapped(epoch.values)) for epoch in epochs.epochs]

    def parse(records: object) -> TimerBatch:
        assert isinstance(records, Records)
        return parse_by_epoch(records, parsers, epochs)

    def log_start(_: str, number: int) -> int:
        return kafka.partitions[number].start

    return TimerSink(
        engine,
        parse,
        checkpoint,
        GapWatch(log_start, clock),
        clock,
        paused=lambda: False,
        guard=DiskGuard(lambda: Space(1 << 60, 1 << 60), lambda _: 0, lambda: False),
    )
