"""Ingest of a shard on RocksDB, which appends batches until it is killed.

    python -P rocksdb_child.py FOLDER

FOLDER has the data directory `data`, in which dequeue has started. RocksDB's buffers are small:
it flushes, compacts and drops logs all the time. Prints a line after each batch.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import structlog

from duewheel.testing import (
    TIMER_TOPIC,
    LocalShard,
    ManualClock,
    RecordingPublisher,
    TimerRow,
    timer_batch,
)
from duewheel.wheel.dequeue_config import DequeueConfig
from duewheel.wheel.slots import WheelConfig
from duewheel.wheel.storage.timelines import rocksdb_files

NOW_MS = 1_800_000_000_000
SPAN_MS = 60_000
WHEEL = WheelConfig(10, 16_384, SPAN_MS, margin_ms=0, timeline="rocksdb")
CONFIG = DequeueConfig(0, 1, {})
P0 = (TIMER_TOPIC, 0)
BATCH = 500


def timer(offset: int) -> TimerRow:
    """Neighbours are in slots of their own."""
    return TimerRow(0, offset, NOW_MS + 1 + offset * 7_919 % SPAN_MS)


def main(folder: Path) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    rocksdb_files.CACHE_BYTES = rocksdb_files.BUFFER_BYTES = 64 << 10
    rocksdb_files.LOG_BYTES = 256 << 10
    clock = ManualClock(NOW_MS)
    shard = LocalShard(folder / "data", WHEEL, RecordingPublisher(clock), clock, CONFIG)
    engine = shard.start_ingest()
    while True:
        first = engine.marks.get(P0, 0)
        rows = [timer(offset) for offset in range(first, first + BATCH)]
        engine.append(timer_batch(rows), {P0: first + BATCH})
        print(first + BATCH, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
