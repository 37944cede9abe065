"""What is done to one timeline, a process for each step; timelines.py calls them in order.

    timeline_steps.py STEP KIND PENDING FOLDER      prints a line of JSON for each metric

    spread      takes PENDING timers with delays up to 12 h: most are alone
    back-offs   the same with some fixed delays: a batch has few runs, which are long
    restart     the start of a full directory, until the first count of what is pending
    cancels     batches of 1,000 cancels beside it
    ids         a timer found by its id, and the first page of a list, by a reader
    delivery    the walk to closed slots: of 5,000 timers a second, and of a spike in one slot
    recovery    the start with a damaged timeline, which is built from the logs

Ingest's engine and dequeue's directory work as in a shard, without Kafka and Spark. The clock
stands still: what is measured is never overdue.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
# The last place to look for modules: a folder called `wheel` lies there.
sys.path.append(str(ROOT))

from tests.bench.cancels import BATCH, PARTITION, WHEEL, Backlog, ids_of, rows  # noqa: E402
from tests.bench.engine import CONFIG, START_MS  # noqa: E402
from tests.bench.usage import anonymous_mb  # noqa: E402
from tests.harness.timer_shard import TimerShard  # noqa: E402

from duewheel.checkpoints.process_role import Role  # noqa: E402
from duewheel.runtime.checkpointer import DurableCheckpoints  # noqa: E402
from duewheel.schemas.arrays import Int64  # noqa: E402
from duewheel.schemas.batches import TimerBatch  # noqa: E402
from duewheel.testing import ManualClock  # noqa: E402
from duewheel.wheel.dequeue.decode import decode_chunk  # noqa: E402
from duewheel.wheel.dequeue.slot_scan import ScannedChunk, SlotScan  # noqa: E402
from duewheel.wheel.inspect.listing import Filter, list_pending  # noqa: E402
from duewheel.wheel.inspect.pending_counts import PendingTimers  # noqa: E402
from duewheel.wheel.slots import (  # noqa: E402
    HOUR_MS,
    TimelineKind,
    closable_slot,
    slot_of,
)
from duewheel.wheel.storage.data_directory import DataDirectory  # noqa: E402
from duewheel.wheel.storage.timelines.kinds import FILES  # noqa: E402

SPAN_MS = 12 * HOUR_MS
BACK_OFFS_MS = (10_000, 60_000, 600_000, HOUR_MS, 6 * HOUR_MS)
BATCH_MS = 250  # in which a batch's timers are sent
SPIKE, SPIKE_BATCH = 100_000, 1_000
STREAM_PER_S, STREAM_DELAY_MS, STREAM_BATCH = 5_000, (2_000, 8_000), 1_000
WARM_SLOTS, STREAM_SLOTS = 200, 1_000
CANCELS, TURNS = 1_000, 5
PAGE = 100


@dataclass
class FilledShard:
    """A data directory, and the shard that works in it.

    Attributes:
        pending: timers that `spread` and `back-offs` take.
    """

    folder: Path
    kind: TimelineKind
    pending: int

    def __post_init__(self) -> None:
        self.path = self.folder / "data"
        self.clock = ManualClock(START_MS)
        self.wheel = replace(WHEEL, timeline=self.kind)
        self.rng = np.random.default_rng(1)
        publisher = Backlog(self.folder / "journal", self.clock)
        self.shard = TimerShard(self.path, self.wheel, publisher, self.clock, CONFIG)

    def start(self) -> None:
        """Both processes; the first start makes the directory."""
        is_new = not self.path.exists()
        self.shard.start_dequeue({PARTITION: 0} if is_new else None).tick()
        self.shard.start_ingest()

    def stop(self) -> None:
        """Clean: dequeue, then ingest, whose last durable checkpoint has everything."""
        checkpoints = DurableCheckpoints(self.path)
        checkpoints.write()
        checkpoints.close()
        for role in (Role.DEQUEUE, Role.INGEST):
            self.shard.stop(role)

    @property
    def directory(self) -> DataDirectory:
        """As dequeue has it open."""
        return self.shard.directory(Role.DEQUEUE)

    def timers(self, due_ms: Int64) -> TimerBatch:
        """The next ones, numbered by their offset."""
        assert self.shard.ingest is not None
        first = self.shard.ingest.marks.get(PARTITION, 0)
        return rows(first, first + np.arange(len(due_ms)), due_ms, np.zeros(len(due_ms), np.bool_))

    def append(self, batch: TimerBatch) -> None:
        """As ingest does."""
        assert self.shard.ingest is not None
        self.shard.ingest.append(batch, {PARTITION: int(batch.offset[-1]) + 1})

    def count(self) -> int:
        """All pending timers, by a directory of its own, as a reader."""
        directory = DataDirectory(self.path, self.wheel)
        try:
            return PendingTimers(directory).count().total
        finally:
            directory.close()


def add(metric: str, unit: str, value: float) -> None:
    print(json.dumps({"metric": metric, "unit": unit, "value": value}), flush=True)


# ---- taking --------------------------------------------------------------------------------------


def spread(bench: FilledShard) -> None:
    def due_ms(_number: int, count: int) -> Int64:
        return START_MS + bench.rng.integers(60_000, SPAN_MS, count)

    take(bench, due_ms)


def back_offs(bench: FilledShard) -> None:
    def drawn_ms(number: int, count: int) -> Int64:
        sent_ms = START_MS + number * BATCH_MS + bench.rng.integers(0, BATCH_MS, count)
        due_ms: Int64 = sent_ms + bench.rng.choice(BACK_OFFS_MS, count)
        return due_ms

    take(bench, drawn_ms)


def take(bench: FilledShard, due_ms: Callable[[int, int], Int64]) -> None:
    """Appends all batches, and stops. Making a batch counts neither as time nor as processor time;
    what threads of the timeline do meanwhile does.
    """
    bench.start()
    wall_s, making_s, written = 0.0, 0.0, written_bytes()
    cpu_s = time.process_time()
    for number, first in enumerate(range(0, bench.pending, BATCH)):
        begin_s = time.thread_time()
        batch = bench.timers(due_ms(number, min(BATCH, bench.pending - first)))
        making_s += time.thread_time() - begin_s
        begin_s = time.perf_counter()
        bench.append(batch)
        wall_s += time.perf_counter() - begin_s
    del batch
    cpu_s = time.process_time() - cpu_s - making_s
    gc.collect()
    add("anonymous memory of both processes", "MB", anonymous_mb(os.getpid()))
    appended = sum(
        hour.log_bytes + hour.message_bytes
        for hour in bench.directory.state.commit().hours.values()
    )
    bench.stop()
    add("enqueue rate", "timers/s", bench.pending / wall_s)
    add("enqueue processor time", "us/timer", cpu_s / bench.pending * 1e6)
    add("written per byte appended", "bytes", (written_bytes() - written) / appended)
    add("disk of the timeline", "bytes/timer", disk(bench.path / FILES[bench.kind]) / bench.pending)
    add("disk of everything", "bytes/timer", disk(bench.path) / bench.pending)


def written_bytes() -> int:
    """What this process had written, with pages of its maps, which count once they are dirty."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("write_bytes:"))


def disk(path: Path) -> int:
    """Blocks of a file, or of all files of a folder."""
    files = path.rglob("*") if path.is_dir() else (path,)
    return sum(each.stat().st_blocks * 512 for each in files if each.is_file())


# ---- with so many pending ------------------------------------------------------------------------


def restart(bench: FilledShard) -> None:
    begin_s, cpu_s = time.perf_counter(), time.process_time()
    bench.start()
    add("start", "ms", ms_since(begin_s))
    add("start, processor time", "ms", (time.process_time() - cpu_s) * 1000)
    found = bench.count()
    add("start to the first count", "ms", ms_since(begin_s))
    require(found == bench.pending, f"{found:,} are pending")
    first = closable_slot(START_MS, WHEEL.precision_ms)
    hour = HOUR_MS // WHEEL.precision_ms
    took_ms = []
    for number in range(TURNS):
        begin_s = time.perf_counter()
        bench.directory.timeline.count(first + number * hour, first + (number + 1) * hour)
        took_ms.append(ms_since(begin_s))
    add("count of an hour", "ms", float(np.median(took_ms)))
    bench.stop()


def cancels(bench: FilledShard) -> None:
    bench.start()
    assert bench.shard.ingest is not None
    numbers = bench.rng.choice(bench.pending, (TURNS + 1, CANCELS), replace=False)
    took_ms = []
    for number in numbers:
        first = bench.shard.ingest.marks[PARTITION]
        batch = rows(first, number, np.zeros(CANCELS, np.int64), np.ones(CANCELS, np.bool_))
        begin_s = time.perf_counter()
        bench.append(batch)
        took_ms.append(ms_since(begin_s))
    # The first one builds the index of ids.
    add("1,000 cancels", "ms", float(np.median(took_ms[1:])))
    bench.stop()


def ids(bench: FilledShard) -> None:
    bench.start()
    directory = DataDirectory(bench.path, bench.wheel)
    listing_ms, found_ms = [], []
    for number in bench.rng.choice(bench.pending, TURNS, replace=False):
        begin_s = time.perf_counter()
        count = sum(1 for _ in list_pending(directory, Filter(), PAGE))
        listing_ms.append(ms_since(begin_s))
        require(count == PAGE, f"{count} are listed")
        (timer_id,) = ids_of(np.array([number])).to_pylist()
        begin_s = time.perf_counter()
        found = list(list_pending(directory, Filter(timer_id=timer_id), PAGE))
        found_ms.append(ms_since(begin_s))
        require([each.id for each in found] == [timer_id], f"{timer_id!r} is not found")
    directory.close()
    add("found by id", "ms", float(np.median(found_ms)))
    add("first 100 of the list", "ms", float(np.median(listing_ms)))
    bench.stop()


def delivery(bench: FilledShard) -> None:
    bench.start()
    stream(bench)
    spike(bench)
    bench.stop()


def stream(bench: FilledShard) -> None:
    """Ingest appends while dequeue walks: slots as they would close, batches as they come."""
    begin_ms = START_MS + 2 * HOUR_MS
    first = closable_slot(begin_ms, WHEEL.precision_ms)
    every = STREAM_BATCH * 1000 // STREAM_PER_S // WHEEL.precision_ms
    refresh_ms, found_ms, found, cpu_s = [], [], 0, 0.0
    expected = np.zeros(WARM_SLOTS + STREAM_SLOTS + 1_000, np.int64)
    for number in range(WARM_SLOTS + STREAM_SLOTS):
        slot = first + number
        if number % every == 0:
            delay_ms = bench.rng.integers(*STREAM_DELAY_MS, STREAM_BATCH)
            due_ms = slot * WHEEL.precision_ms + delay_ms
            expected += np.bincount(
                slot_of(due_ms, WHEEL.precision_ms) - first, minlength=len(expected)
            )
            bench.append(bench.timers(due_ms))
        begin_s, cpu_begin_s = time.perf_counter(), time.process_time()
        bench.directory.timeline.refresh()
        refreshed_ms = ms_since(begin_s)
        rows_found = sum(len(each) for each in scanned(bench, slot - 1, slot))
        if number >= WARM_SLOTS:
            refresh_ms.append(refreshed_ms)
            found_ms.append(ms_since(begin_s))
            cpu_s += time.process_time() - cpu_begin_s
            found += rows_found
    wanted = int(expected[WARM_SLOTS : WARM_SLOTS + STREAM_SLOTS].sum())
    require(found >= wanted, f"{found:,} of {wanted:,} are found")
    add("slot at 5,000/s, p50", "ms", float(np.percentile(found_ms, 50)))
    add("slot at 5,000/s, p99", "ms", float(np.percentile(found_ms, 99)))
    add("slot at 5,000/s, processor time", "ms", cpu_s / STREAM_SLOTS * 1000)
    add("refresh, p50", "ms", float(np.percentile(refresh_ms, 50)))


def spike(bench: FilledShard) -> None:
    """100,000 timers of one slot, which come in batches of 1,000."""
    slot = closable_slot(START_MS + 3 * HOUR_MS, WHEEL.precision_ms)
    due_ms = np.full(SPIKE_BATCH, slot * WHEEL.precision_ms)
    for _ in range(SPIKE // SPIKE_BATCH):
        bench.append(bench.timers(due_ms))
    bench.directory.timeline.refresh()
    walk_ms, decoded_ms = [], []
    for _ in range(TURNS):
        begin_s = time.perf_counter()
        count = sum(len(each) for each in scanned(bench, slot - 1, slot))
        walk_ms.append(ms_since(begin_s))
        require(count >= SPIKE, f"{count:,} of a spike are found")
        begin_s = time.perf_counter()
        for chunk in scanned(bench, slot - 1, slot):
            messages = bench.directory.messages.read(chunk.hour, chunk.records)
            decode_chunk(chunk, messages, bench.directory.topics)
        decoded_ms.append(ms_since(begin_s))
    add("spike: walk", "ms", float(np.median(walk_ms)))
    add("spike: walk, read, decode", "ms", float(np.median(decoded_ms)))


def scanned(bench: FilledShard, after: int, until: int) -> Iterator[ScannedChunk]:
    scan = SlotScan(bench.directory, after, until)
    while (chunk := scan.next_chunk(CONFIG.chunk_records, CONFIG.chunk_bytes)) is not None:
        yield chunk


def recovery(bench: FilledShard) -> None:
    """The timeline's files are empty: the start builds a new one, and verifies it and the logs."""
    expected = bench.count()
    timeline = bench.path / FILES[bench.kind]
    for each in timeline.rglob("*") if timeline.is_dir() else (timeline,):
        if each.is_file():
            os.truncate(each, 0)
    begin_s, cpu_s = time.perf_counter(), time.process_time()
    bench.start()
    add("built from the logs", "s", ms_since(begin_s) / 1000)
    add("built from the logs, processor time", "s", time.process_time() - cpu_s)
    found = bench.count()
    require(found == expected, f"{found:,} of {expected:,} are left")
    bench.stop()


def ms_since(begin_s: float) -> float:
    return (time.perf_counter() - begin_s) * 1000


def require(holds: bool, detail: str) -> None:
    """A figure of a timeline that lost something means nothing."""
    if not holds:
        raise RuntimeError(detail)


STEPS: dict[str, Callable[[FilledShard], None]] = {
    "spread": spread,
    "back-offs": back_offs,
    "restart": restart,
    "cancels": cancels,
    "ids": ids,
    "delivery": delivery,
    "recovery": recovery,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("step", choices=STEPS)
    parser.add_argument("kind", choices=get_args(TimelineKind))
    parser.add_argument("pending", type=int)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    STEPS[args.step](FilledShard(args.folder, args.kind, args.pending))


if __name__ == "__main__":
    main()
