"""How much memory dequeue takes with three times as many cancels as `dequeue.cancels_max` lets in.

A process of its own runs the loop on a data directory; this one takes timers and cancels there as
ingest does. They come from a backlog: their partition ends behind all of them. Of four cancels
three meet a timer, one meets nothing. Timers are due within two minutes, so that most cancels have
to wait, or, with --far, in an hour or more. Prints lines of JSON: anonymous memory of that process,
at rest and at most; how many cancels it had at most; and for how long ingest waited.
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
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np

from duewheel.checkpoints.recovery import dequeue_has_decided
from duewheel.clock import SystemClock
from duewheel.processes import share_one_heap, stop_signals
from duewheel.schemas.columns import binary, from_parts
from duewheel.schemas.ids import id_hashes
from duewheel.schemas.record_tail import key_values
from duewheel.schemas.timers import (
    ANY_OFFSET,
    ANY_TIME,
    NO_LEVEL,
    NO_PARTITION,
    TimerBatch,
    TopicPartition,
)
from duewheel.testing import JournalPublisher
from duewheel.wheel.data_directory import DataDirectory, Role
from duewheel.wheel.dequeue import Dequeue, first_progress
from duewheel.wheel.dequeue_config import CANCELS_MAX, DequeueConfig
from duewheel.wheel.engine import Engine
from duewheel.wheel.layout import WheelConfig
from duewheel.wheel.recovering import carry_out

CLOCK = SystemClock()
WHEEL = WheelConfig()
PARTITION: TopicPartition = ("timers", 0)
OFFERED = 3  # times as many as may be in memory
PAIRS = 10_000  # of one batch
DUE_MS = (30_000, 120_000)  # from the beginning
FAR_MS = (3_600_000, 4_800_000)


class Backlog(JournalPublisher):
    """All that will be offered is there."""

    end = 0

    def log_ends(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        return dict.fromkeys(partitions, self.end)


def serve(path: Path, config: DequeueConfig) -> None:
    """The dequeue process, until it is told to stop."""
    share_one_heap()
    with stop_signals() as stopping:
        directory = DataDirectory.start(path / "data", WHEEL, Role.DEQUEUE)
        publisher = Backlog(path / "journal", CLOCK)
        publisher.end = 2 * OFFERED * config.cancels_max
        dequeue = Dequeue(
            directory, publisher, CLOCK, config, stopping.is_set, lambda: ThreadPoolExecutor(1)
        )
        dequeue.start(first_progress(directory, config, {PARTITION: 0}, CLOCK.now_ms()))
        dequeue.run()
        dequeue.close()
        directory.stop()


def pairs(
    first: int, begun_ms: int, within_ms: tuple[int, int], rng: np.random.Generator
) -> TimerBatch:
    """Timers with ids of 20 bytes, and behind each of them a cancel: of it, or of nothing."""
    count = 2 * PAIRS
    offset = 2 * first + np.arange(count)
    cancels = offset % 2 == 1
    number = offset // 2 + np.where(cancels & (offset % 8 == 7), 1 << 40, 0)
    text = np.char.zfill(number.astype("S"), 20)
    ids = from_parts(np.arange(count + 1) * 20, np.frombuffer(text.tobytes(), np.uint8))
    zeros = np.zeros(count, np.int32)
    keys = binary([b"key"] * count)
    return TimerBatch(
        partitions=[PARTITION],
        partition=zeros,
        offset=offset,
        origin_offset=offset,
        due_ms=begun_ms + rng.integers(*within_ms, count),
        not_before_ms=np.full(count, ANY_TIME, np.int64),
        rejected=np.zeros(count, np.bool_),
        timer=~cancels,
        cancels=cancels,
        named_offset=np.full(count, ANY_OFFSET),
        targets=["orders"],
        target=zeros,
        target_partition=np.full(count, NO_PARTITION, np.int32),
        key_hash=zeros,
        id_hash=id_hashes(ids),
        timer_id=ids,
        key_value=key_values(keys, binary([b"x" * 100] * count)),
        headers=binary([b""] * count),
        header_count=zeros,
        roll_times=zeros,
        retries=zeros,
        level=np.full(count, NO_LEVEL, np.int32),
        timestamp_ms=np.full(count, begun_ms, np.int64),
    )


def anonymous_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1e3 for line in lines if line.startswith("RssAnon:"))


class Rig:
    """Both sides of one data directory, and what has been seen of them."""

    def __init__(self, path: Path, child: subprocess.Popen[bytes], cancels_max: int) -> None:
        self._child = child
        while not (path / "data" / "recovery").exists():
            time.sleep(0.1)
        self._directory = DataDirectory.start(path / "data", WHEEL, Role.INGEST)
        state = self._state = self._directory.state
        while (record := dequeue_has_decided(state, self._directory.path)) is None:
            time.sleep(0.1)
        carry_out(self._directory, record, lambda _: {})
        self._engine = Engine(self._directory, CLOCK, cancels_max=cancels_max)
        time.sleep(2)
        self.rest_mb = self.peak_mb = anonymous_mb(child.pid)
        self.cancels = 0
        self.waited_s = 0.0

    def look(self) -> int:
        """How many cancels are there."""
        self.peak_mb = max(self.peak_mb, anonymous_mb(self._child.pid))
        there = self._state.commit().cancels_taken - self._state.cancels_over
        self.cancels = max(self.cancels, there)
        return there

    def take(self, batch: TimerBatch) -> None:
        """As the sink does, that is: wait until all of it is taken."""
        marks = {PARTITION: int(batch.offset[-1]) + 1}
        while self._engine.append(batch, marks).cancels_full:
            mark = self._engine.marks.get(PARTITION, 0)
            batch = batch.take(np.flatnonzero(batch.offset >= mark))
            self.look()
            time.sleep(0.05)
            self.waited_s += 0.05
        self.look()

    def drain(self, rest: int) -> None:
        """Until no more cancels than that are there."""
        while self.look() > rest:
            time.sleep(0.05)


def report(metric: str, unit: str, value: float, workload: str, config: dict[str, bool]) -> None:
    line = {
        "workload": workload,
        "metric": metric,
        "unit": unit,
        "values": [round(value, 1)],
        "config": {"id_bytes": 20, **config},
    }
    print(json.dumps(line), flush=True)


def run(cancels_max: int, answers: bool, far: bool) -> None:
    """One workload in a directory of its own."""
    with tempfile.TemporaryDirectory(prefix="duewheel-bench-") as name:
        told = ["--child", name, "--cancels-max", str(cancels_max)]
        told += ["--answers"] if answers else []
        child = subprocess.Popen([sys.executable, "-P", __file__, *told], stdout=sys.stderr)
        try:
            rig = Rig(Path(name), child, cancels_max)
            begun_ms, rng = CLOCK.now_ms(), np.random.default_rng(1)
            for first in range(0, OFFERED * cancels_max, PAIRS):
                rig.take(pairs(first, begun_ms, FAR_MS if far else DUE_MS, rng))
            rig.drain(cancels_max if far else 0)
        finally:
            with suppress(ProcessLookupError):
                child.send_signal(signal.SIGTERM)
            child.wait()
    workload = f"{OFFERED * cancels_max} cancels, {cancels_max} at a time"
    config = {"answers": answers, "far": far}
    report("anonymous memory, before", "MB", rig.rest_mb, workload, config)
    report("anonymous memory, peak", "MB", rig.peak_mb, workload, config)
    report("cancels in memory, or on their way, peak", "1", rig.cancels, workload, config)
    report("ingest waited", "s", rig.waited_s, workload, config)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cancels-max", type=int, default=CANCELS_MAX)
    parser.add_argument("--answers", action="store_true", help="with a reply topic")
    parser.add_argument("--far", action="store_true", help="timers are due in an hour or more")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child is None:
        run(args.cancels_max, args.answers, args.far)
        return
    replies = "replies" if args.answers else None
    config = DequeueConfig(0, 1, {}, reply_topic=replies, cancels_max=args.cancels_max)
    serve(args.child, config)


if __name__ == "__main__":
    main()
