"""What the engine does alone, without Kafka and Spark: records per second of each of its stages.

    append   a batch's columns → messages, log and wheel, committed
    walk     closed slots → their log records, found along the chains
    drain    the same, with messages read, verified and restored: chunks ready to be published
    encode   deliveries → Kafka's record bytes

The timers fill every slot of their range once per batch, in *runs* of 1, 10 or 1,000 neighbours, in
random order within a batch: the shorter the runs, the more scattered what one slot needs. Stages
follow each other on one data directory; run lengths alternate, so that a busy neighbour slows all
of them.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from tests.bench.figures import Recorder
from tests.harness.publishers import RecordingPublisher
from tests.harness.timer_shard import TimerShard

from duewheel.checkpoints.process_role import Role
from duewheel.schemas.batches import (
    ACCEPTED,
    ANY_OFFSET,
    ANY_TIME,
    NO_PARTITION,
    NO_SLOT,
    TimerBatch,
)
from duewheel.schemas.columns import Column, from_parts
from duewheel.schemas.hashing import id_hashes, source_names
from duewheel.schemas.wire.record_batch import split
from duewheel.schemas.wire.record_codec import framed_bytes
from duewheel.schemas.wire.varint import varint
from duewheel.testing import ManualClock
from duewheel.wheel.dequeue.decode import decode_chunk
from duewheel.wheel.dequeue.slot_scan import SlotScan
from duewheel.wheel.dequeue_config import DequeueConfig
from duewheel.wheel.slots import WheelConfig, hour_of, last_slot_of_hour
from duewheel.wheel.storage.byte_layouts import RECORD_BYTES
from duewheel.wheel.storage.data_directory import DataDirectory

PARTITIONS = [("timers", number) for number in range(4)]
KEY_BYTES, BODY_BYTES = 16, 100
HEADERS = b"".join(
    framed_bytes(name) + framed_bytes(value)
    for name, value in ((b"trace", b"0" * 16), (b"tenant", b"acme"), (b"kind", b"reminder"))
)
START_MS = 1_800_000_000_000
WHEEL = WheelConfig()
CONFIG = DequeueConfig(0, 1, {})
ENCODED_BYTES_MAX = 512 * 1024
RUNS = (1, 10, 1_000)
ROUNDS = 3
BATCH_RECORDS = 50_000


def timers(rng: np.random.Generator, slot: np.ndarray, first_offset: int) -> TimerBatch:
    """One row per element of `slot`; `first_offset` is that of each partition."""
    count = len(slot)
    rows = np.arange(count)
    partition = (rows % len(PARTITIONS)).astype(np.int32)
    offset = first_offset + rows // len(PARTITIONS)
    due_ms = slot * WHEEL.precision_ms - rng.integers(0, WHEEL.precision_ms, count)
    zeros = np.zeros(count, np.int32)
    return TimerBatch(
        partitions=PARTITIONS,
        partition=partition,
        offset=offset,
        origin_offset=offset,
        due_ms=due_ms,
        not_before_ms=np.full(count, ANY_TIME, np.int64),
        codes=[],
        code=np.full(count, ACCEPTED, np.int32),
        timer=np.ones(count, np.bool_),
        cancels=np.zeros(count, np.bool_),
        named_offset=np.full(count, ANY_OFFSET),
        chase_slot=np.full(count, NO_SLOT),
        chase_flags=np.zeros(count, np.int32),
        recurring=np.zeros(count, np.bool_),
        seed=np.zeros(count, np.bool_),
        forged=np.zeros(count, np.bool_),
        keeps=np.zeros(count, np.bool_),
        targets=["orders"],
        target=zeros,
        target_partition=np.full(count, NO_PARTITION, np.int32),
        key_hash=rng.integers(0, 2**31, count).astype(np.int32),
        id_hash=id_hashes(source_names(PARTITIONS, partition, offset)),
        timer_id=from_parts(np.zeros(count + 1, np.int64), np.zeros(0, np.uint8)),
        key_value=key_values(rng, count),
        headers=repeated(HEADERS, count),
        header_count=zeros + 3,
        roll_times=zeros,
        retries=zeros,
        level=zeros,
        timestamp_ms=due_ms,
    )


def key_values(rng: np.random.Generator, count: int) -> Column:
    """Random keys and values of one size, encoded."""
    before_key = np.frombuffer(varint(KEY_BYTES), np.uint8)
    before_value = np.frombuffer(varint(BODY_BYTES), np.uint8)
    parts = (before_key, KEY_BYTES, before_value, BODY_BYTES)
    cells = [
        rng.integers(0, 256, (count, part), np.uint8)
        if isinstance(part, int)
        else np.broadcast_to(part, (count, len(part)))
        for part in parts
    ]
    octets = np.concatenate(cells, axis=1)
    return from_parts(np.arange(count + 1) * octets.shape[1], octets.ravel())


def repeated(value: bytes, count: int) -> Column:
    octets = np.frombuffer(value * count, np.uint8)
    return from_parts(np.arange(count + 1) * len(value), octets)


class Bench:
    """One data directory and what is done to it, once."""

    def __init__(self, path: Path, run: int, count: int, batch: int) -> None:
        self.batch_records, self.batches, self.slots = batch, count // batch, batch // run
        self.clock = ManualClock(START_MS)
        self.shard = TimerShard(path, WHEEL, RecordingPublisher(self.clock), self.clock, CONFIG)
        self.shard.start_dequeue(dict.fromkeys(PARTITIONS, 0))
        self.shard.start_ingest()
        self.after = START_MS // WHEEL.precision_ms
        self.until = self.after + self.slots
        rng = np.random.default_rng(run)
        slot = self.after + 1 + np.repeat(np.arange(self.slots), run)
        per_partition = batch // len(PARTITIONS)
        self.load = [
            timers(rng, rng.permutation(slot), number * per_partition)
            for number in range(self.batches)
        ]

    def close(self) -> None:
        for role in Role:
            self.shard.kill(role)

    @property
    def directory(self) -> DataDirectory:
        return self.shard.directory(Role.DEQUEUE)

    def append(self) -> int:
        engine = self.shard.ingest
        assert engine is not None
        for batch in self.load:
            end = int(batch.offset[-1]) + 1
            engine.append(batch, dict.fromkeys(PARTITIONS, end))
        return sum(map(len, self.load))

    def walk(self) -> int:
        count, first = 0, self.after
        while first < self.until:
            hour = hour_of(first + 1, WHEEL.precision_ms)
            end = min(self.until, last_slot_of_hour(hour, WHEEL.precision_ms))
            found, _ = self.directory.timeline.runs(
                first, end, len(self.load) * self.load[0].offset.size
            )
            ends = np.cumsum(found.count)
            starts = found.first_pos // RECORD_BYTES - (ends - found.count)
            rows = np.arange(ends[-1]) + np.repeat(starts, found.count)
            view = self.directory.log.view(hour, int(rows.max() + 1) * RECORD_BYTES)
            count += len(view[rows])
            first = end
        return count

    def chunks(self) -> Iterator[int]:
        scan = SlotScan(self.directory, self.after, self.until)
        while (chunk := scan.next_chunk(CONFIG.chunk_records, CONFIG.chunk_bytes)) is not None:
            messages = self.directory.messages.read(chunk.hour, chunk.records)
            self.last = decode_chunk(chunk, messages, self.directory.topics).deliveries
            yield len(self.last)

    def drain(self) -> int:
        return sum(self.chunks())

    def encode(self) -> int:
        rounds = 10
        for _ in range(rounds):
            split(self.last, [len(self.last)], [ENCODED_BYTES_MAX])
        return rounds * len(self.last)


def timed(stage: Callable[[], int]) -> float:
    """Records per second."""
    begin_s = time.perf_counter()
    count = stage()
    return count / (time.perf_counter() - begin_s)


def measure(recorder: Recorder, records: int) -> None:
    batch_records = min(BATCH_RECORDS, records)
    config = {
        "records": records,
        "batch_records": batch_records,
        "chunk_records": CONFIG.chunk_records,
        "body_bytes": BODY_BYTES,
        "key_bytes": KEY_BYTES,
        "headers": 3,
    }
    for run in RUNS * ROUNDS:
        path = Path(tempfile.mkdtemp(prefix="duewheel-bench-"))
        bench = Bench(path, run, records, batch_records)
        try:
            for stage in ("append", "walk", "drain", "encode"):
                rate = timed(getattr(bench, stage))
                workload = f"engine: {stage}, runs of {run:,}"
                recorder.add("duewheel", workload, "rate", "records/s", rate, config)
        finally:
            bench.close()
            shutil.rmtree(path)
