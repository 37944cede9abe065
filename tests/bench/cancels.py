"""What cancels cost: batches of ingest that have some, and dequeue's memory with millions of them.

    lookup   an engine alone, with `--pending` timers over 24 hours: how long a batch of 1,000
             cancels takes, and one of 100,000, each for pending timers; a batch of timers between
             any two of them, and one beside them without cancels. The first batch with cancels
             builds the index of ids
    memory   dequeue in a process of its own, while this one takes pairs of a timer and its cancel
             as ingest does: anonymous memory at rest and at most, and of this process, too

Prints lines of JSON.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from duewheel.checkpoints.recovery_decision import dequeue_has_decided
from duewheel.checkpoints.role import Role
from duewheel.clock import SystemClock
from duewheel.osutil.host_share import share_one_heap
from duewheel.osutil.signals import stop_signals
from duewheel.schemas.arrays import Bool, Int64
from duewheel.schemas.batches import (
    ACCEPTED,
    ANY_OFFSET,
    ANY_TIME,
    NO_LEVEL,
    NO_PARTITION,
    NO_SLOT,
    TimerBatch,
    TopicPartition,
)
from duewheel.schemas.columns import Column, binary, from_parts
from duewheel.schemas.hashing import id_hashes
from duewheel.schemas.wire.record_codec import key_values
from duewheel.testing import JournalPublisher, LocalShard, ManualClock, RecordingPublisher
from duewheel.wheel.append.engine import Engine
from duewheel.wheel.dequeue.lifecycle import Dequeue
from duewheel.wheel.dequeue_config import DequeueConfig
from duewheel.wheel.recovery.rebuild import apply_recovery
from duewheel.wheel.recovery.startup import first_progress
from duewheel.wheel.slots import WheelConfig
from duewheel.wheel.storage.data_directory import DataDirectory

CLOCK = SystemClock()
WHEEL = WheelConfig()
PARTITION: TopicPartition = ("timers", 0)
BATCH = 50_000
TIMERS_BETWEEN = 10_000
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
    )


def ids_of(number: Int64) -> Column:
    text = np.char.zfill(number.astype("S"), ID_BYTES)
    return from_parts(
        np.arange(len(number) + 1) * ID_BYTES, np.frombuffer(text.tobytes(), np.uint8)
    )


def report(metric: str, unit: str, values: Sequence[float], config: Mapping[str, object]) -> None:
    line = {
        "workload": "cancels",
        "metric": metric,
        "unit": unit,
        "values": [round(value, 2) for value in values],
        "config": dict(config),
    }
    print(json.dumps(line), flush=True)


# ---- lookup --------------------------------------------------------------------------------------


class Lookups:
    """An engine alone, and what it has taken."""

    def __init__(self, path: Path) -> None:
        self._clock = ManualClock(CLOCK.now_ms())
        publisher, config = RecordingPublisher(self._clock), DequeueConfig(0, 1, {})
        shard = LocalShard(path, WHEEL, publisher, self._clock, config)
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


def measure_lookups(pending: int, turns: int) -> None:
    with tempfile.TemporaryDirectory(prefix="duewheel-bench-") as name:
        bench, config = Lookups(Path(name) / "data"), {"pending": pending}
        for _ in range(0, pending, BATCH):
            bench.place(BATCH)
        report(
            "first batch with 1,000 cancels: builds the index", "ms", [bench.cancel(1_000)], config
        )
        found: dict[str, list[float]] = {}
        for _ in range(turns):
            for what, took_ms in (
                (f"batch of {TIMERS_BETWEEN:,} timers", bench.place(TIMERS_BETWEEN)),
                (f"batch of 1,000 cancels, {TIMERS_BETWEEN:,} timers behind", bench.cancel(1_000)),
                ("batch of 1 cancel", bench.cancel(1)),
            ):
                found.setdefault(what, []).append(took_ms)
        for what, values in found.items():
            report(what, "ms", values, config)
        report("batch of 100,000 cancels", "ms", [bench.cancel(100_000)], config)


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


def anonymous_mb(pid: int | str) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1e3 for line in lines if line.startswith("RssAnon:"))


def started(path: Path) -> Engine:
    """Ingest, once dequeue has said how it starts."""
    while not (path / "data" / "recovery").exists():
        time.sleep(0.1)
    directory = DataDirectory.start(path / "data", WHEEL, Role.INGEST)
    while (record := dequeue_has_decided(directory.state, directory.path)) is None:
        time.sleep(0.1)
    apply_recovery(directory, record, lambda _: {})
    return Engine(directory, CLOCK)


def measure_memory(cancels: int, replies: bool) -> None:
    with tempfile.TemporaryDirectory(prefix="duewheel-bench-") as name:
        args = ["--serve", name, *(["--replies"] if replies else [])]
        child = subprocess.Popen([sys.executable, "-P", __file__, *args], stdout=sys.stderr)
        try:
            engine, rng = started(Path(name)), np.random.default_rng(1)
            time.sleep(2)
            rest_mb = peak_mb = anonymous_mb(child.pid)
            own_mb, begun_s = anonymous_mb("self"), time.perf_counter()
            for first in range(0, 2 * cancels, BATCH):
                number = (first + np.arange(BATCH)) // 2
                is_cancel = np.arange(BATCH) % 2 == 1
                due_ms = CLOCK.now_ms() + rng.integers(60_000, 2 * 3_600_000, BATCH)
                engine.append(rows(first, number, due_ms, is_cancel), {PARTITION: first + BATCH})
                peak_mb = max(peak_mb, anonymous_mb(child.pid))
            took_s = time.perf_counter() - begun_s
            end_mb = anonymous_mb("self")
        finally:
            with suppress(ProcessLookupError):
                child.send_signal(signal.SIGTERM)
            child.wait()
    config = {"cancels": cancels, "replies": replies}
    report("dequeue, anonymous memory at rest", "MB", [rest_mb], config)
    report("dequeue, anonymous memory at most", "MB", [peak_mb], config)
    report("ingest's process, before and after", "MB", [own_mb, end_mb], config)
    report("pairs of a timer and its cancel", "1/s", [cancels / took_s], config)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pending", type=int, default=1_000_000)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--cancels", type=int, default=400_000, help="for the memory of dequeue")
    parser.add_argument("--replies", action="store_true", help="with a reply topic")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve is not None:
        config = DequeueConfig(0, 1, {}, reply_topic="replies" if args.replies else None)
        serve(args.serve, config)
        return
    measure_lookups(args.pending, args.turns)
    measure_memory(args.cancels, args.replies)


if __name__ == "__main__":
    main()
