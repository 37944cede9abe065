"""How long it takes to find out whom cancels meet, with many timers pending.

A log of `--records` timers is written as ingest would leave it, but for their messages: a lookup
reads those of the timers that it finds, and the one there is has its. Asked for are that one and 0,
999 or 99,999 ids that nobody has. Prints a line of JSON for each.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np

from duewheel.clock import SystemClock
from duewheel.schemas.ids import id_hashes
from duewheel.testing import LocalShard, ManualClock, RecordingPublisher, Timer, timer_batch
from duewheel.wheel.data_directory import Role
from duewheel.wheel.dequeue_config import DequeueConfig
from duewheel.wheel.layout import MAGIC_TIMER, RECORD, RECORD_BYTES, WheelConfig, pack_reserved
from duewheel.wheel.lookups import Lookups

ASKED = (1, 1_000, 100_000)
RECORDS = 10_000_000
_AT_ONCE = 1_000_000


def fill(shard: LocalShard, records: int, rng: np.random.Generator) -> tuple[int, int]:
    """An hour's log with so many records behind one that is whole; returns hour and length."""
    directory = shard.directory(Role.INGEST)
    ((hour, lengths),) = directory.state.commit().hours.items()
    end = lengths.log_bytes
    rows = np.zeros(_AT_ONCE, RECORD)
    rows["size"], rows["magic"] = RECORD_BYTES, MAGIC_TIMER
    for _ in range(records // _AT_ONCE):
        hashes = rng.integers(0, 1 << 39, _AT_ONCE) * 2  # even: none of those that are asked for
        rows["reserved"] = pack_reserved(np.zeros(_AT_ONCE, np.int64), hashes)
        directory.log.files.write(hour, rows.tobytes(), end)
        end += rows.nbytes
    return hour, end


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    rng, wheel = np.random.default_rng(1), WheelConfig()
    with tempfile.TemporaryDirectory(prefix="duewheel-bench-") as name:
        clock = ManualClock()
        config = DequeueConfig(0, 1, {})
        shard = LocalShard(Path(name), wheel, RecordingPublisher(clock), clock, config)
        shard.start_dequeue({("timers", 0): 0})
        engine = shard.start_ingest()
        known = Timer(0, 0, clock.now_ms() + 60_000, timer_id=b"there")
        engine.append(timer_batch([known]), {("timers", 0): 1})
        hour, length = fill(shard, args.records, rng)
        lookups = Lookups(Path(name), wheel.precision_ms, SystemClock())
        there = id_hashes(timer_batch([known]).timer_id)
        for asked in ASKED:
            hashes, took_s = np.append(rng.integers(0, 1 << 39, asked - 1) * 2 + 1, there), []
            for _ in range(args.runs):
                begun_s = time.perf_counter()
                found = lookups.begin(hashes, {hour: length}, r=-1).result()
                took_s.append(time.perf_counter() - begun_s)
            assert b"there" in found.timer_id.to_pylist()
            rates = [round(length / RECORD_BYTES / s) for s in took_s]
            line = {
                "workload": f"{args.records} records, {asked} ids",
                "metric": "look_up",
                "unit": "records/s",
                "values": rates,
                "config": {"seconds": [round(s, 3) for s in took_s]},
            }
            print(json.dumps(line))
        lookups.close()


if __name__ == "__main__":
    main()
