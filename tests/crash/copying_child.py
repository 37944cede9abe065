"""A shard on a file system that copies on write, and is full.

    die FOLDER      places timers, fills the file system, and delivers: a store to a mapped file
                    finds no room
    go-on FOLDER    with room again, as a supervisor's next start: delivers what is left

Prints a line of JSON at the end of `go-on`: what was delivered, what `check` finds.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import structlog

# The last place to look for modules: a folder called `wheel` is there.
sys.path.append(str(Path(__file__).resolve().parents[2]))

from tests.harness.publishers import JournalPublisher
from tests.harness.timer_rows import TIMER_TOPIC, TimerRow
from tests.harness.timer_rows import timer_batch as small_batch
from tests.harness.timer_shard import TimerShard

from duewheel.schemas.columns import binary
from duewheel.testing import ManualClock
from duewheel.wheel.dequeue_config import DequeueConfig
from duewheel.wheel.slots import HOUR_MS, WheelConfig
from duewheel.wheel.storage.full_check import check

WHEEL = WheelConfig(1_000, 8_192, window_ms=2 * HOUR_MS, margin_ms=0)
CONFIG = DequeueConfig(0, 1, {"precision_ms": 1_000, "roll_window_ms": 2 * HOUR_MS})
SOURCE = (TIMER_TOPIC, 0)
COUNT = 200


class Run:
    """One start of both halves."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock()
        self.small = folder / "small"
        self.publisher = JournalPublisher(folder / "journal", self.clock)
        self.shard = TimerShard(self.small / "data", WHEEL, self.publisher, self.clock, CONFIG)

    def place(self) -> None:
        timers = [TimerRow(0, n, self.clock.now_ms() + 1_000 * (n + 2)) for n in range(COUNT)]
        values = binary([os.urandom(5_000) for _ in timers])
        assert self.shard.ingest is not None
        batch = replace(small_batch(timers), key_value=values)
        self.shard.ingest.append(batch, {SOURCE: COUNT})

    def fill(self) -> None:
        with (self.small / "ballast").open("wb", buffering=0) as ballast:
            for piece in (1 << 20, 1 << 12, 1):
                with suppress(OSError):
                    while ballast.write(bytes(piece)):
                        pass
        os.sync()

    def deliver(self) -> None:
        assert self.shard.dequeue is not None
        for _ in range(COUNT + 10):
            self.clock.sleep(1.0)
            with suppress(OSError):
                self.shard.dequeue.tick()


def main(what: str, folder: Path) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    run = Run(folder)
    if what == "die":
        run.shard.start_dequeue({SOURCE: 0})
        run.shard.start_ingest()
        run.place()
        run.fill()
        run.deliver()
        return
    (run.small / "ballast").unlink()
    run.shard.start_dequeue()
    run.shard.start_ingest()
    run.deliver()
    delivered = sorted(int(row.source.split("@")[1]) for row in run.publisher.delivered())
    findings = [str(finding) for finding in check(run.shard.path, WHEEL).findings]
    print(json.dumps({"delivered": delivered, "findings": findings}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
