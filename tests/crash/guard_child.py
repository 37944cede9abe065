"""A shard on a real file system with room for the pending timers, but not for new ones.

Batches come until they would leave less than MIN_FREE bytes; while one waits, hours pass, and what
was due in them is delivered and unlinked. A batch may be larger than the disk: it comes in parts.

Prints a line of JSON: how often a batch had to wait, how much was free when least was, what was
delivered in the end, what `check` finds.

    python -P guard_child.py FOLDER COUNT

COUNT: timers in a batch.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import structlog

# The last place to look for modules: a folder called `wheel` is there.
sys.path.append(str(Path(__file__).resolve().parents[2]))

from tests.harness.publishers import JournalPublisher
from tests.harness.timer_rows import TIMER_TOPIC, TimerRow
from tests.harness.timer_rows import timer_batch as small_batch
from tests.harness.timer_shard import TimerShard

from duewheel.checkpoints.disk_room import Room
from duewheel.runtime.checkpointer import DurableCheckpoints
from duewheel.schemas.batches import TimerBatch
from duewheel.schemas.columns import binary
from duewheel.streaming.batch_taker import BatchTaker
from duewheel.streaming.disk_guard import DiskGuard
from duewheel.streaming.offset_gaps import GapWatch
from duewheel.testing import ManualClock
from duewheel.wheel.dequeue_config import DequeueConfig
from duewheel.wheel.slots import HOUR_MS, WheelConfig
from duewheel.wheel.storage.full_check import check

WHEEL = WheelConfig(1_000, 8_192, window_ms=2 * HOUR_MS, margin_ms=0)
TIMERS = 800
AN_HOUR = 200  # due in each hour
VALUE_BYTES = 10_000
MIN_FREE = 1_500_000


class WaitingClock(ManualClock):
    """Who waits sees an hour go by."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = 0
        self.meanwhile: Callable[[], None] = lambda: None

    def sleep(self, seconds: float) -> None:
        self.waits += 1
        assert self.waits < 100, "nothing makes room"
        super().sleep(seconds + HOUR_MS / 1000)
        self.meanwhile()


def batch(first: int, count: int, begin_ms: int) -> TimerBatch:
    timers = [
        TimerRow(0, offset, begin_ms + offset // AN_HOUR * HOUR_MS + 5_000)
        for offset in range(first, first + count)
    ]
    values = binary([os.urandom(VALUE_BYTES) for _ in timers])
    return replace(small_batch(timers), key_value=values)


def scenario(folder: Path, count: int) -> dict[str, object]:
    """See the module's head."""
    clock = WaitingClock()
    publisher = JournalPublisher(folder / "journal", clock)
    config = DequeueConfig(0, 1, {"precision_ms": 1_000, "roll_window_ms": 2 * HOUR_MS})
    shard = TimerShard(folder / "small" / "data", WHEEL, publisher, clock, config)
    shard.start_dequeue({(TIMER_TOPIC, 0): 0})
    engine = shard.start_ingest()
    durable = DurableCheckpoints(shard.path)

    def deliver() -> None:
        durable.write()
        assert shard.dequeue is not None
        for _ in range(5):  # the first one may only end the range before
            shard.dequeue.tick()

    clock.meanwhile = deliver
    room = partial(Room.of, shard.path, lambda _: MIN_FREE)
    taker = BatchTaker(
        engine,
        GapWatch(lambda _topics: {}, clock),
        clock,
        paused=lambda: False,
        guard=DiskGuard(room, lambda: False),
    )
    free, begin_ms = [], clock.now_ms()
    for first in range(0, TIMERS, count):
        taker.take(batch(first, count, begin_ms), {(TIMER_TOPIC, 0): first + count})
        free.append(room().free_bytes)
    waits = clock.waits
    for _ in range(TIMERS // AN_HOUR + 4):
        clock.sleep(0)
    return {
        "waits": waits,
        "least_free": min(free),
        "delivered": sorted(int(row.source.split("@")[1]) for row in publisher.delivered()),
        "findings": [str(finding) for finding in check(shard.path, WHEEL).findings],
    }


def main(folder: Path, count: int) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    print(json.dumps(scenario(folder, count)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
