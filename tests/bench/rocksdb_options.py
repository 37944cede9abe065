"""RocksDB's options, each beside those that rocksdb_files.py sets, under the timeline alone.

    rocksdb_options.py [--runs N] [--rounds N] [--only NAME ...]

Variants take turns in this process: a shard's timeline takes batches of runs in slots of 12 hours,
its reader catches up with each, and scans slots in order. Prints a Markdown table: for each metric
the median of the options as they are, and the ratio of each variant to it. Processor time includes
flushes and compactions.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import numpy as np
import structlog
from rocksdict import (
    BlockBasedOptions,
    DBCompactionStyle,
    DBCompressionType,
    Options,
    Rdict,
    WriteBatch,
    WriteOptions,
)

ROOT = Path(__file__).resolve().parents[2]
# The last place to look for modules: a folder called `wheel` lies there.
sys.path.append(str(ROOT))

from tests.bench.engine import CONFIG, START_MS  # noqa: E402
from tests.bench.measured import number  # noqa: E402
from tests.bench.tables import markdown  # noqa: E402
from tests.harness.publishers import RecordingPublisher  # noqa: E402
from tests.harness.timer_shard import TimerShard  # noqa: E402

from duewheel.checkpoints.process_role import Role  # noqa: E402
from duewheel.schemas.arrays import Int64  # noqa: E402
from duewheel.testing import ManualClock  # noqa: E402
from duewheel.wheel.slots import HOUR_MS, WheelConfig  # noqa: E402
from duewheel.wheel.storage.runs import Runs  # noqa: E402
from duewheel.wheel.storage.timelines import rocksdb_files, rocksdb_timeline  # noqa: E402
from duewheel.wheel.storage.timelines.rocksdb_timeline import RocksdbTimeline  # noqa: E402

AS_IT_IS = "as it is"
WHEEL = WheelConfig(timeline="rocksdb")
BATCH = 50_000
FIRST = START_MS // WHEEL.precision_ms
SLOTS = 12 * HOUR_MS // WHEEL.precision_ms
SCANS, SCANNED_SLOTS = 200, 20
Patch = AbstractContextManager[Any]
Figures = dict[str, float]


def changed(change: Callable[[Options], object]) -> Callable[[], Patch]:
    """What rocksdb_files.py sets, with a change."""
    made = rocksdb_files.options

    def options() -> Options:
        found = made()
        change(found)
        return found

    return lambda: patch.object(rocksdb_files, "options", options)


def sized(name: str, mib: int) -> Callable[[], Patch]:
    return lambda: patch.object(rocksdb_files, name, mib << 20)


def blocks_of_4_kib(options: Options) -> None:
    table = BlockBasedOptions()
    table.set_block_cache(rocksdb_files.block_cache())
    table.set_block_size(4 << 10)
    table.set_cache_index_and_filter_blocks(True)
    options.set_block_based_table_factory(table)


def unlogged() -> Patch:
    options = WriteOptions()
    cast("Any", options).disable_wal = True  # a property, whatever the stubs say

    def write(db: Rdict, batch: WriteBatch, _path: Path) -> None:
        db.write(batch, options)

    return patch.object(rocksdb_timeline, "_checked_write", write)


def with_ids() -> Patch:
    """A second key for each run: a hash, as of an id, which leads to slot and position."""
    append, rng = RocksdbTimeline.append, np.random.default_rng(2)

    def both(timeline: RocksdbTimeline, runs: Runs, batch: int) -> None:
        hashes, places = rng.bytes(8 * len(runs)), rng.bytes(16 * len(runs))
        written = WriteBatch(raw_mode=True)
        for at in range(len(runs)):
            key = b"\xfd" + hashes[at * 8 : at * 8 + 8]
            written.put(key, places[at * 16 : at * 16 + 16])
        timeline._write(written)  # noqa: SLF001
        append(timeline, runs, batch)

    return patch.object(RocksdbTimeline, "append", both)


VARIANTS: dict[str, Callable[[], Patch]] = {
    AS_IT_IS: changed(lambda _: None),
    "no write-ahead log": unlogged,
    "no compression": changed(lambda o: o.set_compression_type(DBCompressionType.none())),
    "zstd": changed(lambda o: o.set_compression_type(DBCompressionType.zstd())),
    "universal compaction": changed(
        lambda o: o.set_compaction_style(DBCompactionStyle.universal())
    ),
    "levels of fixed sizes": changed(lambda o: o.set_level_compaction_dynamic_level_bytes(False)),
    "blocks of 4 KiB, not 16": changed(blocks_of_4_kib),
    "cache of 8 MiB, not 32": sized("CACHE_BYTES", 8),
    "cache of 128 MiB": sized("CACHE_BYTES", 128),
    "buffers of 4 MiB, not 16": sized("BUFFER_BYTES", 4),
    "buffers of 64 MiB": sized("BUFFER_BYTES", 64),
    "a key for each id, too": with_ids,
}


def measured(count: int) -> Figures:
    """One variant, in a new directory."""
    rocksdb_files.block_cache.cache_clear()
    clock, rng = ManualClock(START_MS), np.random.default_rng(1)
    with tempfile.TemporaryDirectory(prefix="duewheel-bench-") as folder:
        path = Path(folder) / "data"
        shard = TimerShard(path, WHEEL, RecordingPublisher(clock), clock, CONFIG)
        shard.start_dequeue({("timers", 0): 0})
        shard.start_ingest()
        writer, reader = (shard.directory(role).timeline for role in (Role.INGEST, Role.DEQUEUE))
        assert isinstance(writer, RocksdbTimeline) and isinstance(reader, RocksdbTimeline)
        reader.refresh()
        writing_s = following_s = 0.0
        buffers = 0
        for batch in range(2, 2 + count // BATCH):
            runs = a_batch(rng, batch)
            begin_s = time.process_time()
            writer.append(runs, batch)
            writing_s += time.process_time() - begin_s
            begin_s = time.process_time()
            reader._catch_up()  # noqa: SLF001 - there is no commit page
            following_s += time.process_time() - begin_s
            buffers = max(buffers, held(writer, "cur-size-all-mem-tables"))
        begin_s = time.process_time()
        writer._db.flush()  # noqa: SLF001
        while any(held(writer, name) for name in ("num-running-compactions", "compaction-pending")):
            time.sleep(0.05)
        writing_s += time.process_time() - begin_s
        begin_s, found = time.process_time(), 0
        for number_of in range(SCANS):
            after = FIRST + number_of * (SLOTS // SCANS)
            found += len(reader.runs(after, after + SCANNED_SLOTS, count)[0])
        scanning_s = time.process_time() - begin_s
        blocks = held(reader, "block-cache-usage")
        figures = {
            "write, us/run": writing_s / count * 1e6,
            "catch up, ms/batch": following_s / (count // BATCH) * 1e3,
            "scan of 20 slots, us": scanning_s / SCANS * 1e6,
            "found": found,
            "disk, bytes/run": held(writer, "total-sst-files-size") / count,
            "memory of the writer, MB": (buffers + blocks) / 1e6,
        }
        for role in Role:
            shard.kill(role)
    return figures


def a_batch(rng: np.random.Generator, batch: int) -> Runs:
    slots: Int64 = FIRST + np.sort(rng.choice(SLOTS, BATCH, replace=False))
    first = (batch << 32) + np.arange(BATCH) * 52
    ones = np.ones(BATCH, np.int64)
    return Runs(slots, first, first, ones, ones)


def held(timeline: RocksdbTimeline, name: str) -> int:
    """A property of the database, as RocksDB says."""
    database = timeline._db  # noqa: SLF001
    return database.property_int_value(f"rocksdb.{name}") or 0


def table(values: dict[str, list[Figures]]) -> str:
    """A row for each variant, a column for each metric."""

    def median(variant: str, metric: str) -> float:
        return statistics.median(each[metric] for each in values[variant])

    rows = []
    for variant in values:
        cells = []
        for metric in values[AS_IT_IS][0]:
            value, base = median(variant, metric), median(AS_IT_IS, metric)
            shown = number(float(f"{value:.3g}"))
            cells.append(shown if variant == AS_IT_IS or not base else f"{value / base:.2f}×")
        rows.append([variant, *cells])
    return markdown(["", *values[AS_IT_IS][0]], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", choices=VARIANTS, default=list(VARIANTS))
    args = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    values: dict[str, list[Figures]] = defaultdict(list)
    for _ in range(args.rounds):
        for variant in dict.fromkeys([AS_IT_IS, *args.only]):
            with VARIANTS[variant]():
                values[variant].append(measured(args.runs))
            print(variant, values[variant][-1], file=sys.stderr, flush=True)
    print(table(values))
    print(f"\n{args.rounds} rounds, {args.runs:,} runs, load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
