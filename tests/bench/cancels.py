"""What cancels cost: batches of ingest that have some, and dequeue's memory with millions of them.

lookup   an engine alone, with `--pending` timers over 24 hours: how long a batch of 1,000
         cancels takes, and one of 100,000, each for pending timers; a batch of timers between
         any two of them, and one beside them without cancels. The first batches with cancels
         build the index of ids
memory   dequeue in a process of its own, while this one takes pairs of a timer and its cancel
         as ingest does: anonymous memory at rest and at most, and of this process, too
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
# The last place to look for modules: a folder called `wheel` lies there.
sys.path.append(str(ROOT))

from tests.bench.figures import Recorder  # noqa: E402
from tests.bench.usage import anonymous_mb  # noqa: E402
from tests.harness.publishers import JournalPublisher, RecordingPublisher  # noqa: E402
from tests.harness.timer_shard import TimerShard  # noqa: E402

from duewheel.checkpoints.local_state import dequeue_has_decided  # noqa: E402
from duewheel.checkpoints.process_role import Role  # noqa: E402
from duewheel.clock import SystemClock  # noqa: E402
from duewheel.osutil.priority_and_heap import share_one_heap  # noqa: E402
from duewheel.osutil.signals import stop_signals  # noqa: E402
from duewheel.schemas.arrays import Bool, Int64  # noqa: E402
from duewheel.schemas.batches import (  # noqa: E402
    ACCEPTED,
    ANY_OFFSET,
    ANY_TIME,
    NO_LEVEL,
    NO_PARTITION,
    NO_SLOT,
    TimerBatch,
    TopicPartition,
)
from duewheel.schemas.columns import Column, binary, from_parts  # noqa: E402
from duewheel.schemas.hashing import id_hashes  # noqa: E402
from duewheel.schemas.wire.record_codec import key_values  # noqa: E402
from duewheel.testing import ManualClock  # noqa: E402
from duewheel.wheel.append.engine import Engine  # noqa: E402
from duewheel.wheel.dequeue.lifecycle import Dequeue  # noqa: E402
from duewheel.wheel.dequeue_config import DequeueConfig  # noqa: E402
from duewheel.wheel.recovery.rebuild import apply_recovery  # noqa: E402
from duewheel.wheel.recovery.startup import first_progress  # noqa: E402
from duewheel.wheel.slots import WheelConfig  # noqa: E402
from duewheel.wheel.storage.data_directory import DataDirectory  # noqa: E402

CLOCK = SystemClock()
WHEEL = WheelConfig()
PARTITION: TopicPartition = ("timers", 0)
BATCH = 50_000
TIMERS_BETWEEN = 10_000
TURNS = 5
SPAN_MS = 24 * 3_600_000
ID_BYTES = 20


class Backlog(JournalPublisher):
    """A timer partition of which all is taken."""

    def log_ends(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        return dict.fromkeys(partitions, 0)


def rows(first: int, number: Int64, due_ms: Int64, cancels: Bool) -> TimerBatch:
    """Rows from offset `first` on; `number` says the id of each."""
    count = len(number)
    zeros = np.zeros(count, np.int32)
    offset, ids = first + np.arange(count), ids_of(number)
    return TimerBatch(
        partitions=[PARTITION],
        partition=zeros,
        offset=offset,
        origin_offset=offset,
        due_ms=due_ms,
        not_before_ms=np.full(count, ANY_TIME, np.int64),
        codes=[],
        code=np.full(count, ACCEPTED, np.int32),
        timer=~cancels,
        cancels=cancels,
        named_offset=np.full(count, ANY_OFFSET),
        targets=["orders"],
        target=zeros,
        target_partition=np.full(count, NO_PARTITION, np.int32),
        key_hash=zeros,
        id_hash=id_hashes(ids),
        timer_id=ids,
        key_value=key_values(binary([b"key"] * count), binary([b"x" * 100] * count)),
        headers=binary([b""] * count),
        header_count=zeros,
        roll_times=zeros,
        retries=zeros,
        level=np.full(count, NO_LEVEL, np.int32),
        timestamp_ms=due_ms,
        chase_slot=np.full(count, NO_SLOT),
        chase_flags=zeros,
        recurring=np.zeros(count, np.bool_),
        seed=np.zeros(count, np.bool_),
        forged=np.zeros(count, np.bool_),
        keeps=np.zeros(count, np.bool_),
    )


def ids_of(number: Int64) -> Column:
    text = np.char.zfill(number.astype("S"), ID_BYTES)
    return from_parts(
        np.arange(len(number) + 1) * ID_BYTES, np.frombuffer(text.tobytes(), np.uint8)
    )


# ---- lookup --------------------------------------------------------------------------------------


class Lookups:
    """An engine alone, and what it has taken."""

    def __init__(self, path: Path) -> None:
        self._clock = ManualClock(CLOCK.now_ms())
        publisher, config = RecordingPublisher(self._clock), DequeueConfig(0, 1, {})
        shard = TimerShard(path, WHEEL, publisher, self._clock, config)
        shard.start_dequeue({PARTITION: 0}).tick()
        self._engine = shard.start_ingest()
        self._rng = np.random.default_rng(1)
        self._offset, self._pending = 0, 0

    def place(self, count: int) -> float:
        """Take so many timers; returns how long it took, in ms."""
        number = self._pending + np.arange(count)
        self._pending += count
        due_ms = self._clock.now_ms() + self._rng.integers(1_000, SPAN_MS, count)
        return self._append(number, due_ms, np.zeros(count, np.bool_))

    def cancel(self, count: int) -> float:
        """Cancel so many of them; returns how long it took, in ms."""
        number = self._rng.choice(self._pending, count, replace=False)
        return self._append(number, np.zeros(count, np.int64), np.ones(count, np.bool_))

    def _append(self, number: Int64, due_ms: Int64, cancels: Bool) -> float:
        batch = rows(self._offset, number, due_ms, cancels)
        self._offset += len(batch)
        begun_s = time.perf_counter()
        self._engine.append(batch, {PARTITION: self._offset})
        return (time.perf_counter() - begun_s) * 1000


def measure_lookups(recorder: Recorder, pending: int) -> None:
    config = {"pending": pending}

    def add(metric: str, took_ms: float) -> None:
        recorder.add("duewheel", "cancels", metric, "ms", took_ms, config)

    with tempfile.TemporaryDirectory(prefix="duewheel-bench-") as name:
        bench = Lookups(Path(name) / "data")
        for _ in range(0, pending, BATCH):
            bench.place(BATCH)
        add("first batch with 1,000 cancels: begins the index", bench.cancel(1_000))
        for _ in range(TURNS):
            add(f"batch of {TIMERS_BETWEEN:,} timers", bench.place(TIMERS_BETWEEN))
            add(f"batch of 1,000 cancels, {TIMERS_BETWEEN:,} timers behind", bench.cancel(1_000))
            add("batch of 1 cancel", bench.cancel(1))
        many = min(100_000, pending)
        add(f"batch of {many:,} cancels", bench.cancel(many))


# ---- memory --------------------------------------------------------------------------------------


def serve(path: Path, config: DequeueConfig) -> None:
    """The dequeue process, until it is told to stop."""
    share_one_heap()
    with stop_signals() as stopping:
        directory = DataDirectory.start(path / "data", WHEEL, Role.DEQUEUE)
        publisher = Backlog(path / "journal", CLOCK)
        dequeue = Dequeue(directory, publisher, CLOCK, config, stopping.is_set)
        dequeue.start(first_progress(directory, config, {PARTITION: 0}, CLOCK.now_ms()))
        dequeue.run()
        dequeue.close()
        directory.stop()


def started(path: Path) -> Engine:
    """Ingest, once dequeue has said how it starts."""
    while not (path / "data" / "recovery").exists():
        time.sleep(0.1)
    directory = DataDirectory.start(path / "data", WHEEL, Role.INGEST)
    while (record := dequeue_has_decided(directory.state, directory.path)) is None:
        time.sleep(0.1)
    apply_recovery(directory, record, lambda _: {})
    return Engine(directory, CLOCK)


def measure_memory(recorder: Recorder, cancels: int) -> None:
    with tempfile.TemporaryDirectory(prefix="duewheel-bench-") as name:
        command = [sys.executable, "-P", __file__, "--serve", name]
        child = subprocess.Popen(command, stdout=sys.stderr)
        try:
            engine, rng = started(Path(name)), np.random.default_rng(1)
            time.sleep(2)
            rest_mb = peak_mb = anonymous_mb(child.pid)
            begun_s = time.perf_counter()
            for first in range(0, 2 * cancels, BATCH):
                number = (first + np.arange(BATCH)) // 2
                is_cancel = np.arange(BATCH) % 2 == 1
                due_ms = CLOCK.now_ms() + rng.integers(60_000, 2 * 3_600_000, BATCH)
                engine.append(rows(first, number, due_ms, is_cancel), {PARTITION: first + BATCH})
                peak_mb = max(peak_mb, anonymous_mb(child.pid))
            took_s = time.perf_counter() - begun_s
        finally:
            with suppress(ProcessLookupError):
                child.send_signal(signal.SIGTERM)
            child.wait()
    for metric, unit, value in (
        ("anonymous memory of dequeue, before", "MB", rest_mb),
        ("anonymous memory of dequeue", "MB", peak_mb),
        ("pairs of a timer and its cancel", "1/s", cancels / took_s),
    ):
        recorder.add("duewheel", "cancels", metric, unit, value, {"cancels": cancels})


def main() -> None:
    parser = argparse.ArgumentParser(description="dequeue alone, for `measure_memory`")
    parser.add_argument("--serve", type=Path, required=True)
    serve(parser.parse_args().serve, DequeueConfig(0, 1, {}))


if __name__ == "__main__":
    main()
