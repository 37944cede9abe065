"""A day of a shard in minutes: ingest and dequeue under a clock that the simulation moves.

The wheel is small beside the day: a ring is a sixth of it, the roll window a sixteenth. Producers
write continuously. Some timers are due soon, some within the window, some far beyond it (they roll
several times), some in the past, some are rejected, and at times very many are due in one instant.
Occasionally a process is killed or stopped at any point, the outcome of a transaction is in doubt,
or slots close under a batch. Dequeue is stopped twice, once for longer than a ring, and so is
ingest.

The timer topic is simulated: columns by offset, with gaps where transactions end; copies of rolled
timers are written to it by the transaction that delivers them. A few copies go through the real
contract. All published rows are judged, by columns: exactly once, never early, in order,
byte for byte. Prints a line of JSON; fails with an AssertionError.
"""

from __future__ import annotations

import argparse
import json
import logging
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import structlog

from duewheel.checkpoints.process_role import Role
from duewheel.runtime.checkpointer import DurableCheckpoints
from duewheel.schemas.batches import TimerBatch
from duewheel.testing import ManualClock
from duewheel.wheel.dequeue_config import DequeueConfig
from duewheel.wheel.slots import HOUR_MS, WheelConfig, hour_of
from duewheel.wheel.storage import garbage_collection
from duewheel.wheel.storage.data_directory import DataDirectory
from duewheel.wheel.storage.full_check import check

# The last place to look for modules: a folder called `wheel` lies there.
sys.path.append(str(Path(__file__).resolve().parents[2]))
from tests.harness.timer_shard import TimerShard
from tests.simulation.day_kafka import (
    FATES,
    HOT_SLOTS,
    PARTITIONS,
    PRECISION_MS,
    START_MS,
    Kafka,
    Killed,
    Parts,
)


class MeanwhileClock(ManualClock):
    """Lets something happen when the engine next asks for the time: in the middle of a batch."""

    meanwhile: Callable[[], None] | None = None

    def now_ms(self) -> int:
        if self.meanwhile is not None:
            happens, self.meanwhile = self.meanwhile, None
            happens()
        return super().now_ms()


class Day:
    """The shard, its producers, and its misfortunes."""

    # Parts of the day in which a process does not run.
    dequeue_away: Parts = ((0.15, 0.32), (0.62, 0.66))
    ingest_away: Parts = ((0.45, 0.53), (0.60, 0.64))
    durable_chance = 0.1

    def __init__(self, path: Path, timers: int, hours: float, step_s: int, seed: int) -> None:
        day_s = int(hours * 3600)
        self.wheel = self.wheel_for(day_s)
        self.day_ms, self.step_ms, self.steps = day_s * 1000, step_s * 1000, day_s // step_s
        self.rng = np.random.default_rng(seed)
        self.clock = MeanwhileClock(START_MS)
        self.kafka = self.kafka_for(timers)
        config = DequeueConfig(0, 1, {}, chunk_records=max(500, timers // 250))
        self.shard = TimerShard(path, self.wheel, self.kafka, self.clock, config)
        self.timers, self.path = timers, path
        self.counts: Counter[str] = Counter()
        self.hours_max = 0
        self.calm = False
        self.shard.start_dequeue(dict.fromkeys(PARTITIONS, 0))
        self.shard.start_ingest()
        self.durable = DurableCheckpoints(path)

    @staticmethod
    def wheel_for(day_s: int) -> WheelConfig:
        slots = day_s // 12
        return WheelConfig(PRECISION_MS, slots, slots * 750, slots * 80)

    def kafka_for(self, timers: int) -> Kafka:
        return Kafka(self.clock, 2 * timers // len(PARTITIONS) + 4 * self.steps, self.fate)

    def chance(self, probability: float) -> bool:
        return not self.calm and bool(self.rng.random() < probability)

    def fate(self) -> str:
        number = 1.0 if self.calm else float(self.rng.random())
        for fate, probability in FATES.items():
            number -= probability
            if number < 0:
                return fate
        return "commit"

    def run(self) -> None:
        for step in range(self.steps):
            self.clock.set(self.clock.now_ms() + self.step_ms)
            self.produce(step)
            self.turn(step / self.steps)
            if step % (self.steps // 24) == 0:
                self.check()
        self.calm = True
        while not all(p.delivered[p.timers()].all() for p in self.kafka.partitions):
            self.clock.set(self.clock.now_ms() + self.step_ms)
            assert self.clock.now_ms() < START_MS + 2 * self.day_ms, "something is never delivered"
            self.turn(1.0)

    def produce(self, step: int) -> None:
        now_ms, window_ms = self.clock.now_ms(), self.wheel.window_ms
        hot = self.timers // 100
        steady = (self.timers - HOT_SLOTS * hot) / self.steps
        count = int(steady * (step + 1)) - int(steady * step)
        kinds = self.rng.choice(6, count, p=[0.50, 0.28, 0.10, 0.06, 0.04, 0.02])
        low = np.array([0, 0, window_ms, -window_ms, -PRECISION_MS, 0])[kinds]
        high = np.array([window_ms // 4, window_ms, 4 * window_ms, 0, 3 * PRECISION_MS, 1])[kinds]
        due_ms = now_ms + self.rng.integers(low, high)
        if step % (self.steps // HOT_SLOTS) == 1:
            instant = now_ms + int(self.rng.integers(0, window_ms))
            due_ms = np.append(due_ms, np.full(hot, instant))
            kinds = np.append(kinds, np.zeros(hot, np.int64))
        number = self.rng.integers(0, len(PARTITIONS), len(due_ms))
        for partition, topic in enumerate(self.kafka.partitions):
            rows = number == partition
            topic.write(due_ms[rows], kinds[rows] == 5, now_ms)

    # ---- the two processes -----------------------------------------------------------------

    def turn(self, part: float) -> None:
        """Each process that is not away does what there is to do."""
        roles = ((Role.INGEST, self.ingest_away), (Role.DEQUEUE, self.dequeue_away))
        for role, away in roles if self.chance(0.5) else roles[::-1]:
            if any(begin <= part < end for begin, end in away):
                self.end(role)
            elif role is Role.INGEST:
                self.ingest()
            else:
                self.dequeue(3 if self.chance(0.1) else sys.maxsize)
            if self.chance(0.01):
                self.end(role)
        if self.shard.ingest is not None and self.rng.random() < self.durable_chance:
            self.durable.write()
        hours = len(list((self.path / "timerlog").iterdir()))
        self.hours_max = max(self.hours_max, hours)

    def end(self, role: Role) -> None:
        running = self.shard.ingest if role is Role.INGEST else self.shard.dequeue
        if running is not None:
            how = "killed" if self.rng.random() < 0.5 else "stopped"
            self.counts[f"{role.name.lower()} {how}"] += 1
            (self.shard.kill if how == "killed" else self.shard.stop)(role)

    def ingest(self) -> None:
        engine = self.shard.ingest or self.shard.start_ingest()
        while True:
            batch, ends = self.kafka.batch(dict(engine.marks))
            if ends == engine.marks:
                break
            if self.chance(0.1):
                self.clock.meanwhile = self.slots_close
            if self.chance(0.02):
                self.killed_within(batch, ends)
                return
            engine.append(batch, ends)
            self.counts["batches"] += 1

    def slots_close(self) -> None:
        """In the middle of a batch."""
        if self.shard.dequeue is not None:
            slots = int(self.rng.integers(1, 20))
            self.clock.set(self.clock.now_ms() + slots * PRECISION_MS)
            self.dequeue(2)

    def killed_within(self, batch: TimerBatch, ends: dict[Any, int]) -> None:
        directory = self.shard.directory(Role.INGEST)
        step = self.rng.choice(["write_commit", "append", "mark_applied"])

        def die(*_: object) -> None:
            raise Killed

        owner: object = directory.timeline if step == "append" else directory.state
        setattr(owner, str(step), die)
        assert self.shard.ingest is not None
        with suppress(Killed):
            self.shard.ingest.append(batch, ends)
        self.clock.meanwhile = None
        self.shard.kill(Role.INGEST)
        self.counts["ingest killed"] += 1

    def dequeue(self, ticks: int) -> None:
        try:
            dequeue = self.shard.dequeue or self.shard.start_dequeue()
            for _ in range(ticks):
                if not dequeue.tick():
                    break
        except Killed:
            self.shard.kill(Role.DEQUEUE)
            self.counts["dequeue killed"] += 1

    # ---- judging ---------------------------------------------------------------------------

    def check(self) -> int:
        report = check(self.path, self.wheel)
        assert report.findings == []
        self.counts["checks"] += 1
        return report.records

    def hours_allowed(self) -> int:
        """Hours that may have files: what lies in the ring, what is delivered and not yet known to
        be durable while ingest is away, and the two that have just begun.
        """
        away = max(end - begin for begin, end in self.ingest_away)
        kept_ms = self.wheel.ring * PRECISION_MS + away * self.day_ms
        return int(kept_ms / HOUR_MS) + 3

    def finish(self) -> dict[str, Any]:
        """Everything is out: judge what is left, stop, and say what happened."""
        records = sum(int(p.record.sum()) for p in self.kafka.partitions)
        state = self.shard.directory(Role.INGEST).state
        mirror, commit = state.mirror(), state.commit()
        assert mirror is not None
        assert mirror.delivered_rows == commit.placed == records
        self.durable.write()
        dequeue = self.shard.directory(Role.DEQUEUE)
        kept = garbage_collection.collect(dequeue, mirror.progress, lambda _: 0)
        assert kept == hour_of(mirror.delivered_slot + 1, PRECISION_MS)
        left = self.check()
        assert self.hours_max <= self.hours_allowed(), "files are bounded"
        copies = self.kafka.judge_copies()
        self.durable.close()
        self.shard.stop(Role.INGEST)
        self.shard.stop(Role.DEQUEUE)
        closed = DataDirectory(self.path, self.wheel)
        assert closed.state.stopped_cleanly
        closed.close()
        counts = self.kafka.counts
        assert counts["delivered"] + counts["rejected"] == self.timers_written()
        assert records == self.timers_written() + counts["rolled"]
        return {
            "timers": self.timers_written(),
            "simulated_hours": (self.clock.now_ms() - START_MS) / HOUR_MS,
            "laps": (self.clock.now_ms() - START_MS) / PRECISION_MS / self.wheel.ring,
            **counts,
            **self.counts,
            "rolls of one timer, most": max(int(p.rolls.max()) for p in self.kafka.partitions),
            "copies through the contract": copies,
            "hour files, most": self.hours_max,
            "hour files, allowed": self.hours_allowed(),
            "records left in the log": left,
        }

    def timers_written(self) -> int:
        return sum(int(p.timers().sum()) for p in self.kafka.partitions)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--timers", type=int, default=5_000_000)
    parser.add_argument("--hours", type=float, default=24)
    parser.add_argument("--step-s", type=int, default=30, help="simulated seconds at a time")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    quiet = structlog.make_filtering_bound_logger(logging.ERROR)
    structlog.configure(wrapper_class=quiet)
    begin_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="duewheel-day-") as path:
        day = Day(Path(path), args.timers, args.hours, args.step_s, args.seed)
        day.run()
        result = day.finish()
    result["seed"] = args.seed
    result["wall_s"] = round(time.monotonic() - begin_s, 1)
    result["peak_rss_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1000
    print(json.dumps(result))


if __name__ == "__main__":
    main()
