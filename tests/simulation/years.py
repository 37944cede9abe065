"""Ten years of a shard in minutes: timers that are due years ahead, rolled day after day.

day.py's shard with the default roll window, a wheel of 25 hours, kills, doubtful transactions and
outages of up to a day. All timers are written in the first hours, due from a day to the whole time
later; some share one due time. Beside the checks of day.py (each delivered exactly once, never
early, in order, byte for byte): without a fault each timer leaves at its time, and rolls before its
record is older than the window. Prints a line of JSON.

`--traffic n` measures, without a shard, the distribution of the rolls of n timers that were written
in one second. RocketMQ rolls timers of one second in one second again.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import structlog

if __name__ == "__main__":
    # The last place to look for modules: a folder called `wheel` lies there.
    sys.path.append(str(Path(__file__).resolve().parents[2]))

from tests.simulation.day import Day
from tests.simulation.day_kafka import PARTITIONS, PRECISION_MS, START_MS, Kafka, Partition

from duewheel.schemas.arrays import Int64
from duewheel.schemas.batches import Deliveries
from duewheel.wheel.roll_rule import roll_instants
from duewheel.wheel.slots import HOUR_MS, WheelConfig

DAY_MS = 24 * HOUR_MS
WINDOW_MS = DAY_MS
MARGIN_MS = HOUR_MS
COPIES_KEPT = 5_000  # go through the contract in the end
MINUTE_MS = 60_000


class KafkaOfYears(Kafka):
    """Also knows when timers left.

    Attributes:
        step_ms: how far time goes in one go.
        disturbed_ms: when last something was amiss.
        late_ms: greatest lateness of a timer that nothing has disturbed.
        age_max_ms: greatest age of a record that was rolled undisturbed.
    """

    def __init__(self, day: Decade, capacity: int) -> None:
        super().__init__(day.clock, capacity, day.fate)
        self.step_ms = day.step_ms
        self.disturbed_ms = START_MS
        self.late_ms = 0
        self.age_max_ms = 0
        self._newest: dict[tuple[int, int], int] = {}

    def judge_partition(self, number: int, found: Deliveries, rows: Int64, origin: Int64) -> None:
        topic, rolled = self.partitions[number], found.is_copy[rows]
        now_ms, calm_ms = self._clock.now_ms(), self.disturbed_ms + 2 * self.step_ms
        out, back = origin[~rolled], topic.newest[origin[rolled]]
        due_ms = topic.due_ms[out]
        self.late_ms = max(self.late_ms, int((now_ms - due_ms)[due_ms > calm_ms].max(initial=0)))
        written_ms = topic.timestamp_ms[back]
        calm = written_ms + WINDOW_MS // 4 > calm_ms
        self.age_max_ms = max(self.age_max_ms, int((now_ms - written_ms)[calm].max(initial=0)))
        super().judge_partition(number, found, rows, origin)
        del self.copies[COPIES_KEPT:]

    def _judge_order(self, number: int, topic: Partition, origin: Int64) -> None:
        slots = (-(-topic.due_ms[origin] // PRECISION_MS)).tolist()
        for slot, offset in zip(slots, topic.newest[origin].tolist(), strict=True):
            place = (number, slot)
            assert offset > self._newest.get(place, -1), "in the order of the partition"
            self._newest[place] = offset


class Decade(Day):
    """The shard; see the module's head."""

    kafka: KafkaOfYears
    dequeue_away = ((0.2, 0.2002), (0.6, 0.60027))
    ingest_away = ((0.4, 0.4001), (0.6001, 0.6003))
    durable_chance = 0.5

    @staticmethod
    def wheel_for(_day_s: int) -> WheelConfig:
        slots = (WINDOW_MS + MARGIN_MS) // PRECISION_MS
        return WheelConfig(PRECISION_MS, slots, WINDOW_MS, MARGIN_MS)

    def kafka_for(self, timers: int) -> Kafka:
        # A record for every roll, and a marker for every transaction.
        rolls = timers * self.day_ms // (WINDOW_MS - WINDOW_MS // 8) // len(PARTITIONS)
        return KafkaOfYears(self, rolls + 2 * timers + 4 * self.steps)

    def produce(self, step: int) -> None:
        if step > 3:
            return
        count, now_ms = self.timers // 4, self.clock.now_ms()
        longest_ms = START_MS + self.day_ms - now_ms
        due_ms = now_ms + self.rng.integers(DAY_MS, longest_ms, count)
        due_ms[: count // 8] = START_MS + self.day_ms
        due_ms[count // 8 : count // 4] = START_MS + self.day_ms // 2
        number = self.rng.integers(0, len(PARTITIONS), count)
        for partition, topic in enumerate(self.kafka.partitions):
            mine = due_ms[number == partition]
            topic.write(mine, np.zeros(len(mine), np.bool_), now_ms)

    def dequeue(self, ticks: int) -> None:
        super().dequeue(ticks)
        if ticks < sys.maxsize:  # it may not have come to the end
            self.kafka.disturbed_ms = self.clock.now_ms()

    def turn(self, part: float) -> None:
        before = self._ends()
        super().turn(part)
        if self._ends() > before or None in {self.shard.ingest, self.shard.dequeue}:
            self.kafka.disturbed_ms = self.clock.now_ms()

    def _ends(self) -> int:
        return sum(n for name, n in self.counts.items() if name.endswith((" killed", " stopped")))

    def hours_allowed(self) -> int:
        return super().hours_allowed() + 12 * self.step_ms // HOUR_MS

    def finish(self) -> dict[str, Any]:
        found = super().finish()
        kafka = self.kafka
        slack_ms = 2 * self.step_ms + PRECISION_MS
        late = f"{kafka.late_ms} ms late, rolled {kafka.age_max_ms} ms after it came"
        assert kafka.late_ms <= slack_ms and kafka.age_max_ms <= WINDOW_MS + slack_ms, late
        return {
            **found,
            "years": round(found["simulated_hours"] / 24 / 365, 2),
            "late undisturbed, at most, in steps": round(kafka.late_ms / self.step_ms, 2),
            "age undisturbed, at most, in windows": round(kafka.age_max_ms / WINDOW_MS, 2),
        }


def traffic(
    timers: int, delay_ms: int, window_ms: int = WINDOW_MS, seed: int = 0
) -> dict[str, Any]:
    """How rolls lie in time: of timers written in one second and due in another, `delay_ms` later.

    Returns:
        rolls; for the first day, the tenth and the last: rolls in the busiest minute, and its ratio
        to the mean of that day's minutes.
    """
    rng = np.random.default_rng(seed)
    id_hash = rng.integers(0, 1 << 40, timers)
    stamp_ms = rng.integers(0, 1_000, timers)
    due_ms = np.full(timers, delay_ms)
    per_minute = np.zeros(delay_ms // MINUTE_MS + 1, np.int64)
    rolls_max = 0
    while (due_ms - stamp_ms > window_ms).any():
        waiting = due_ms - stamp_ms > window_ms
        due_ms, id_hash, stamp_ms = due_ms[waiting], id_hash[waiting], stamp_ms[waiting]
        stamp_ms = roll_instants(due_ms, stamp_ms, id_hash, window_ms)
        per_minute += np.bincount(stamp_ms // MINUTE_MS, minlength=len(per_minute))
        rolls_max += 1
    minutes = DAY_MS // MINUTE_MS
    days = [per_minute[at : at + minutes] for at in range(0, len(per_minute) - minutes, minutes)]
    return {
        "timers": timers,
        "days": delay_ms // DAY_MS,
        "rolls": int(per_minute.sum()),
        "rolls of one timer, most": rolls_max,
        **{
            f"day {n + 1}": {
                "busiest minute": int(days[n].max()),
                "to the mean": round(float(days[n].max() / max(days[n].mean(), 1e-9)), 2),
            }
            for n in sorted({0, 1, 2, 4, 9, len(days) - 2})
            if n < len(days)
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--timers", type=int, default=2_000)
    parser.add_argument("--days", type=int, default=3_652)
    parser.add_argument("--step-s", type=int, default=10_800, help="simulated seconds at a time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--traffic", type=int, help="timers of one second; no shard")
    args = parser.parse_args()
    if args.traffic:
        print(json.dumps(traffic(args.traffic, args.days * DAY_MS)))
        return
    quiet = structlog.make_filtering_bound_logger(logging.ERROR)
    structlog.configure(wrapper_class=quiet)
    begin_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="duewheel-years-") as path:
        decade = Decade(Path(path), args.timers, 24 * args.days, args.step_s, args.seed)
        decade.run()
        result = decade.finish()
    result["seed"] = args.seed
    result["wall_s"] = round(time.monotonic() - begin_s, 1)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
