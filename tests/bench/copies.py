"""What copies in a batch cost ingest, with cancels on disk.

`--cancels` of them are written by ingest. Then batches of 10,000 timers are appended, of which
none, 1,000 or all are copies; a tenth of these brings its cancel again. Prints a line of JSON for
each.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from duewheel.schemas.columns import binary, decimals
from duewheel.schemas.ids import id_hashes
from duewheel.schemas.timers import Int64, TimerBatch
from duewheel.testing import LocalShard, ManualClock, RecordingPublisher, Timer, timer_batch
from duewheel.wheel.dequeue_config import DequeueConfig
from duewheel.wheel.engine import Engine
from duewheel.wheel.layout import WheelConfig

CANCELS = (0, 1_000_000, 10_000_000)
ROWS = 10_000
COPIES = (0, 1_000, ROWS)
_AT_ONCE = 100_000
_HOME = ("timers", 0)


def named(batch: TimerBatch, first: int, numbers: Int64) -> TimerBatch:
    """The batch at offsets from `first` on, its ids these numbers."""
    offset, ids = first + np.arange(len(batch)), decimals(numbers)
    return replace(batch, offset=offset, origin_offset=offset, timer_id=ids, id_hash=id_hashes(ids))


def fill(engine: Engine, cancels: int) -> None:
    """So many cancels, of the ids from 0 on."""
    requests = timer_batch(
        [Timer(0, o, 0, timer_id=b"", request="cancel") for o in range(min(cancels, _AT_ONCE))]
    )
    requests = replace(requests, headers=binary([b""] * len(requests)))
    requests = replace(requests, header_count=np.zeros(len(requests), np.int32))
    for first in range(0, cancels, _AT_ONCE):
        batch = named(requests, first + 1, np.arange(first, first + len(requests)))
        engine.append(batch, {_HOME: first + 1 + len(requests)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cancels", type=int, nargs="*", default=CANCELS)
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    for cancels in args.cancels:
        with tempfile.TemporaryDirectory(prefix="duewheel-bench-") as name:
            clock = ManualClock()
            publisher, config = RecordingPublisher(clock), DequeueConfig(0, 1, {})
            shard = LocalShard(Path(name), WheelConfig(), publisher, clock, config)
            shard.start_dequeue({_HOME: 0})
            engine = shard.start_ingest()
            fill(engine, cancels)
            measure(engine, clock.now_ms() + 60_000, cancels, args.runs)


def measure(engine: Engine, due_ms: int, cancels: int, runs: int) -> None:
    timers = timer_batch([Timer(0, o, due_ms) for o in range(ROWS)])
    for copies in COPIES:
        took_s = []
        for run in range(runs):
            # A tenth of the ids are those of cancels, spread over all of them.
            numbers = np.where(
                np.arange(ROWS) % 10 == 0,
                (np.arange(ROWS) * 7919 + run) % max(cancels, 1),
                cancels + np.arange(ROWS),
            )
            first = max(engine.marks.get(_HOME, 0), 1)
            batch = named(timers, first, numbers)
            is_copy = np.arange(ROWS) < copies
            batch = replace(batch, origin_offset=np.where(is_copy, 0, batch.offset))
            begun_s = time.perf_counter()
            engine.append(batch, {_HOME: first + ROWS})
            took_s.append(time.perf_counter() - begun_s)
        line = {
            "workload": f"{cancels} cancels on disk, {copies} copies in a batch of {ROWS}",
            "metric": "append",
            "unit": "s",
            "values": [round(s, 4) for s in took_s],
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
