"""RocksDB's options, each beside those that duewheel sets: the steps of timeline_steps.py.

    rocksdb_options.py [--pending N] [--rounds N] [--only NAME ...]
    rocksdb_options.py --as NAME STEP PENDING FOLDER      one step, in this process

Variants take turns, each step in a process of its own. Prints a Markdown table: for each metric the
median of the options as they are, and the ratio of each variant to it. Ratios of processor time,
bytes and memory can be compared on a busy machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
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

from tests.bench.measured import number  # noqa: E402
from tests.bench.tables import markdown  # noqa: E402
from tests.bench.timeline_steps import STEPS, FilledShard  # noqa: E402

from duewheel.wheel.storage.runs import Runs  # noqa: E402
from duewheel.wheel.storage.timelines import rocksdb_files, rocksdb_timeline  # noqa: E402

AS_IT_IS = "as it is"
METRICS = {
    "spread": (
        "enqueue processor time",
        "written per byte appended",
        "disk of the timeline",
        "anonymous memory of both processes",
    ),
    "delivery": ("slot at 5,000/s, processor time", "spike: walk"),
    "recovery": ("built from the logs, processor time",),
}
Measured = dict[str, float]


def changed_options(change: Callable[[Options], object]) -> Callable[[], None]:
    """Changes what rocksdb_files.py sets."""

    def apply() -> None:
        made = rocksdb_files.options

        def changed() -> Options:
            found = made()
            change(found)
            return found

        rocksdb_files.options = changed

    return apply


def constant(name: str, value: int) -> Callable[[], None]:
    return lambda: setattr(rocksdb_files, name, value)


def blocks(size_kib: int) -> Callable[[Options], None]:
    def change(found: Options) -> None:
        table = BlockBasedOptions()
        table.set_block_cache(rocksdb_files.block_cache())
        table.set_block_size(size_kib << 10)
        table.set_cache_index_and_filter_blocks(True)
        found.set_block_based_table_factory(table)

    return change


def without_log() -> None:
    """No write-ahead log: a kill loses what was not flushed."""
    unlogged = WriteOptions()
    cast("Any", unlogged).disable_wal = True  # a property, whatever the stubs say

    def write(db: Rdict, batch: WriteBatch, path: Path) -> None:
        db.write(batch, unlogged)

    rocksdb_timeline._checked_write = write  # noqa: SLF001


def with_ids() -> None:
    """A second key for each timer: a hash of its id, which leads to its slot and position."""
    append, rng = rocksdb_timeline.RocksdbTimeline.append, np.random.default_rng(2)

    def append_with_ids(timeline: rocksdb_timeline.RocksdbTimeline, runs: Runs, batch: int) -> None:
        count = int(runs.count.sum())
        hashes, places = rng.bytes(8 * count), rng.bytes(16 * count)
        written = WriteBatch(raw_mode=True)
        for at in range(count):
            key = b"\xfe" + hashes[at * 8 : at * 8 + 8]
            written.put(key, places[at * 16 : at * 16 + 16])
        timeline._write(written)  # noqa: SLF001
        append(timeline, runs, batch)

    setattr(rocksdb_timeline.RocksdbTimeline, append.__name__, append_with_ids)


VARIANTS: dict[str, Callable[[], None]] = {
    AS_IT_IS: lambda: None,
    "no write-ahead log": without_log,
    "no compression": changed_options(lambda o: o.set_compression_type(DBCompressionType.none())),
    "zstd": changed_options(lambda o: o.set_compression_type(DBCompressionType.zstd())),
    "universal compaction": changed_options(
        lambda o: o.set_compaction_style(DBCompactionStyle.universal())
    ),
    "static levels": changed_options(lambda o: o.set_level_compaction_dynamic_level_bytes(False)),
    "blocks of 4 KiB": changed_options(blocks(4)),
    "cache of 8 MiB": constant("CACHE_BYTES", 8 << 20),
    "cache of 128 MiB": constant("CACHE_BYTES", 128 << 20),
    "buffers of 4 MiB": constant("BUFFER_BYTES", 4 << 20),
    "buffers of 64 MiB": constant("BUFFER_BYTES", 64 << 20),
    "a key for each id, too": with_ids,
}


def measured(variant: str, pending: int) -> Measured:
    """All steps on one directory; without those that fail."""
    found: Measured = {}
    with tempfile.TemporaryDirectory(prefix="duewheel-bench-") as folder:
        for step, metrics in METRICS.items():
            words = ["--as", variant, step, str(pending), folder]
            line = [sys.executable, "-P", __file__, *words]
            run = subprocess.run(line, capture_output=True, text=True, check=False)
            if run.returncode:
                print(f"{variant}, {step}: {run.stderr.splitlines()[-1]}", file=sys.stderr)
                break
            for each in run.stdout.splitlines():
                if each.startswith('{"metric"'):
                    row = json.loads(each)
                    if row["metric"] in metrics:
                        found[f"{row['metric']}, {row['unit']}"] = row["value"]
    return found


def table(values: dict[str, list[Measured]]) -> str:
    """A row for each variant, a column for each metric."""

    def median(variant: str, metric: str) -> float | None:
        found = [each[metric] for each in values[variant] if metric in each]
        return statistics.median(found) if found else None

    metrics = list(dict.fromkeys(name for each in values[AS_IT_IS] for name in each))
    rows = []
    for variant in values:
        cells = []
        for metric in metrics:
            value, base = median(variant, metric), median(AS_IT_IS, metric)
            if variant == AS_IT_IS:
                cells.append(number(float(f"{value:.3g}")) if value is not None else "–")
            else:
                cells.append(f"{value / base:.2f}×" if value is not None and base else "–")
        rows.append([variant, *cells])
    return markdown(["", *metrics], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pending", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--as", dest="one", nargs=4)
    args = parser.parse_args()
    if args.one:
        variant, step, pending, folder = args.one
        VARIANTS[variant]()
        STEPS[step](FilledShard(Path(folder), "rocksdb", int(pending)))
        return
    values: dict[str, list[Measured]] = defaultdict(list)
    for _ in range(args.rounds):
        for variant in dict.fromkeys([AS_IT_IS, *args.only]):
            values[variant].append(measured(variant, args.pending))
            print(variant, json.dumps(values[variant][-1]), file=sys.stderr, flush=True)
    print(table(values))
    print(f"\n{args.rounds} rounds, {args.pending:,} pending, load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
