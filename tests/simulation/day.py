"""A day of a shard in minutes: the engine's two halves under a clock that is moved by hand.

The wheel is small beside the day: a ring is a sixth of it, the roll window a sixteenth. Producers
write all the time; of their timers some are due soon, some within the window, some far beyond it
(they roll, several times), some in the past, some are rejected, and at times very many are due in
one instant. Now and then a process is killed or stopped, anywhere; an outcome of a transaction is
in doubt; a batch meets slots that are closed under it. Twice dequeue is away, once for longer than
a ring, and twice ingest.

The timer topic is simulated: columns by offset, with gaps where transactions end; copies of rolled
timers are written to it by the transaction that delivers them. A few copies go through the real
contract. Everything that is published is judged, by columns: exactly once, never early, in order,
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
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import structlog

from duewheel.checkpoints.progress import Progress
from duewheel.durability import DurableCheckpoints
from duewheel.errors import PublishDoubt
from duewheel.schemas import columns
from duewheel.schemas.columns import EMPTY, Column, binary, choose, constant, decimals, join, take
from duewheel.schemas.contract import Contract, parse
from duewheel.schemas.ids import id_hashes, key_hashes, source_names
from duewheel.schemas.record_tail import framed_bytes
from duewheel.schemas.rules import compile_suite, load_suite
from duewheel.schemas.timers import (
    ANY_OFFSET,
    ANY_TIME,
    NO_PARTITION,
    Bool,
    Deliveries,
    Int64,
    TimerBatch,
)
from duewheel.testing import TIMER_TOPIC, LocalShard, ManualClock, suite_parameters
from duewheel.wheel.check import check
from duewheel.wheel.data_directory import DataDirectory, Role
from duewheel.wheel.dequeue_config import DequeueConfig
from duewheel.wheel.encoding import Aside
from duewheel.wheel.layout import HOUR_MS, WheelConfig, hour_of
from duewheel.wheel.publisher import Prepared

START_MS = 1_800_000_000_000
PRECISION_MS = 1_000
PARTITIONS = [(TIMER_TOPIC, number) for number in range(4)]
TARGETS = ["orders", "bills", "dead"]
HEADER = framed_bytes(b"h") + framed_bytes(b"\xff\0")
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
Parts = tuple[tuple[float, float], ...]
HOT_SLOTS = 12
BATCH_ROWS = 50_000
FATES = {"lose": 0.02, "doubt": 0.02, "die before": 0.01, "die after": 0.01}


class Killed(BaseException):
    """The process that did this does nothing any more."""


class Partition:
    """One partition of the timer topic, all columns by offset; and what has come of its timers.

    Attributes:
        end: offset of the next record.
        record: whether an offset holds a record, and not a transaction's marker.
        origin: offset of the timer's first copy.
        delivered: by origin: how often the timer was delivered.
        newest: by origin: offset of the timer's newest copy.
    """

    def __init__(self, capacity: int) -> None:
        self.end = 0
        self.record = np.zeros(capacity, np.bool_)
        self.due_ms = np.zeros(capacity, np.int64)
        self.timestamp_ms = np.zeros(capacity, np.int64)
        self.rejected = np.zeros(capacity, np.bool_)
        self.origin = np.zeros(capacity, np.int64)
        self.rolls = np.zeros(capacity, np.int32)
        self.delivered = np.zeros(capacity, np.uint8)
        self.newest = np.zeros(capacity, np.int64)

    def write(self, due_ms: Int64, rejected: Bool, now_ms: int) -> None:
        """New timers, and the marker of the transaction that wrote them."""
        offset = self._append(due_ms, now_ms)
        self.rejected[offset] = rejected
        self.origin[offset] = offset
        self.newest[offset] = offset
        self.end += 1

    def copy(self, origin: Int64, now_ms: int) -> Int64:
        """Copies of timers that roll; returns their offsets."""
        before = self.newest[origin]
        offset = self._append(self.due_ms[origin], now_ms)
        self.origin[offset] = origin
        self.rolls[offset] = self.rolls[before] + 1
        self.newest[origin] = offset
        self.end += 1
        return offset

    def _append(self, due_ms: Int64, now_ms: int) -> Int64:
        offset = np.arange(self.end, self.end + len(due_ms))
        self.record[offset] = True
        self.due_ms[offset] = due_ms
        self.timestamp_ms[offset] = now_ms
        self.end += len(due_ms)
        return offset

    def timers(self) -> Bool:
        """By offset: whether a timer begins there."""
        first: Bool = self.origin == np.arange(len(self.origin))
        return self.record & first


class Content:
    """What the timers of some rows hold: it follows from partition and origin."""

    def __init__(self, partition: Int64, origin: Int64, due_ms: Int64) -> None:
        cells = np.zeros((len(origin), 26), np.uint8)
        cells[:, 0], cells[:, 9] = 2 * 8, 2 * 16
        cells[:, 1:9] = origin.astype(">i8").view(np.uint8).reshape(-1, 8)
        cells[:, 10:18] = partition.astype(">i8").view(np.uint8).reshape(-1, 8)
        cells[:, 18:26] = due_ms.astype(">i8").view(np.uint8).reshape(-1, 8)
        bounds = np.arange(len(origin) + 1)
        self.key_value = columns.from_parts(26 * bounds, cells.ravel())
        self.key = columns.from_parts(8 * bounds, cells[:, 1:9].ravel())
        self.value = columns.from_parts(16 * bounds, cells[:, 10:26].ravel())
        self.source = source_names(PARTITIONS, partition.astype(np.int32), origin)
        given = choose(origin % 4 == 0, join(constant(b"id "), decimals(origin)), EMPTY)
        self.given_id: Column = given
        self.timer_id: Column = choose(origin % 4 == 0, given, self.source)
        self.headers = take(binary(HEADER * n for n in range(3)), origin % 3)
        self.header_count = (origin % 3).astype(np.int32)
        self.target = (origin % 2).astype(np.int32)
        self.level = (origin % 7).astype(np.int32)
        self.target_partition = np.where(origin % 5, NO_PARTITION, origin % 4).astype(np.int32)


def read_key_values(column: Column) -> tuple[Int64, Int64, Int64]:
    """Partition, origin and due time from delivered keys and values."""
    assert (columns.lengths(column) == 26).all()
    bounds = columns.offsets(column)
    cells = columns.data(column)[bounds[0] : bounds[-1]].reshape(-1, 26)

    def number(first: int) -> Int64:
        octets = np.ascontiguousarray(cells[:, first : first + 8])
        return octets.view(">i8")[:, 0].astype(np.int64)

    return number(10), number(1), number(18)


class Kafka:
    """The timer topic, the real topics and the state topic: a publisher that judges.

    Attributes:
        fates: asked before each transaction.
        copies: some rolled timers as they were written: partition, offset, time, headers.
        counts: what was published.
        parked: none: all targets take writes.
    """

    def __init__(self, clock: ManualClock, capacity: int, fates: Callable[[], str]) -> None:
        self.partitions = [Partition(capacity) for _ in PARTITIONS]
        self.fates = fates
        self.copies: list[tuple[int, int, int, list[tuple[str, bytes]]]] = []
        self.counts: Counter[str] = Counter()
        self.aside, self.letters_wait = Aside(), False
        self._clock = clock
        self._progress: Progress | None = None
        # Highest offset delivered per partition and slot of the due time; the first is of
        # everything before the start, the last of rejected timers.
        self._highest = np.full((len(PARTITIONS), 3 * 86_400_000 // PRECISION_MS), -1)

    def peek(self) -> Progress | None:
        return self.start()

    def age_ms(self) -> int:
        return 0

    def start(self) -> Progress | None:
        return self._progress

    def close(self) -> None:
        pass

    def prepare(self, deliveries: Deliveries) -> Prepared:
        return Prepared(deliveries)

    def log_ends(self, partitions: Sequence[tuple[str, int]]) -> dict[tuple[str, int], int]:
        return dict.fromkeys(partitions, 0)  # nobody cancels anything here

    def publish(self, prepared: Prepared | None, progress: Progress) -> int:
        fate = self.fates()
        self.counts[f"fate: {fate}"] += 1
        if fate == "die before":
            raise Killed
        if fate != "lose":
            if prepared is not None and len(prepared.deliveries):
                self._judge(prepared.deliveries)
            self._progress = Progress.decode(progress.encode())
        if fate == "die after":
            raise Killed
        if fate != "commit":
            raise PublishDoubt(fate)
        return self._clock.true_ms

    def _judge(self, found: Deliveries) -> None:
        now_ms = self._clock.now_ms()
        partition, origin, due_ms = read_key_values(found.key_value)
        expected = Content(partition, origin, due_ms)
        rolled, dead = found.rolled, found.dead_letter
        assert np.array_equal(found.due_ms, due_ms)
        assert np.array_equal(found.level, np.where(found.dead_letter, 0, expected.level))
        assert found.source.equals(expected.source)
        assert found.timer_id.equals(expected.timer_id)
        assert (due_ms[~rolled & ~dead] <= now_ms).all(), "never early"
        stays = np.flatnonzero(~rolled)
        kept = take(found.headers, stays)
        assert kept.equals(take(expected.headers, stays))
        assert np.array_equal(found.header_count[stays], expected.header_count[stays])
        names = np.array(found.targets)[found.target]
        wanted = np.array(TARGETS)[np.where(dead, 2, expected.target)]
        assert np.array_equal(names, np.where(rolled, TIMER_TOPIC, wanted))
        asked = np.where(rolled, partition, expected.target_partition)
        assert np.array_equal(found.target_partition, asked)
        for number in np.unique(partition).tolist():
            rows = np.flatnonzero(partition == number)
            self._judge_partition(number, found, rows, origin[rows])
        self.counts["delivered"] += int((~rolled & ~dead).sum())
        self.counts["rejected"] += int(dead.sum())
        self.counts["rolled"] += int(rolled.sum())

    def _judge_partition(self, number: int, found: Deliveries, rows: Int64, origin: Int64) -> None:
        """Exactly once, and in order; then the copies of rolled timers are written."""
        topic, rolled = self.partitions[number], found.rolled[rows]
        assert np.array_equal(found.roll_times[rows], topic.rolls[topic.newest[origin]])
        assert np.array_equal(found.due_ms[rows], topic.due_ms[origin])
        assert np.array_equal(found.dead_letter[rows], topic.rejected[origin])
        assert len(np.unique(origin)) == len(origin), "not twice in one transaction"
        assert not topic.delivered[origin].any(), "nothing that is delivered comes again"
        out = origin[~rolled]
        topic.delivered[out] = 1
        self._judge_order(number, topic, out)
        if rolled.any():
            now_ms = self._clock.now_ms()
            offset = topic.copy(origin[rolled], now_ms)
            for row, at in list(zip(rows[rolled].tolist(), offset.tolist(), strict=True))[:2]:
                headers = decoded(found.headers[row].as_py(), int(found.header_count[row]))
                self.copies.append((number, at, now_ms, headers))

    def _judge_order(self, number: int, topic: Partition, origin: Int64) -> None:
        highest = self._highest[number]
        cell = -(-topic.due_ms[origin] // PRECISION_MS) - START_MS // PRECISION_MS
        cell = np.where(topic.rejected[origin], len(highest) - 1, np.maximum(cell, 0))
        order = np.argsort(cell, kind="stable")
        cell, offset = cell[order], topic.newest[origin[order]]
        before = np.where(np.append(True, cell[1:] != cell[:-1]), highest[cell], np.roll(offset, 1))
        assert (offset > before).all(), "in the order of the partition, within a slot"
        np.maximum.at(highest, cell, offset)

    # ---- what ingest reads -----------------------------------------------------------------

    def batch(self, marks: dict[tuple[str, int], int]) -> tuple[TimerBatch, dict[Any, int]]:
        """Records above the marks, a batch of them; and where it ends."""
        limit, rows, ends = BATCH_ROWS // len(PARTITIONS), [], {}
        for name, topic in zip(PARTITIONS, self.partitions, strict=True):
            ends[name] = min(marks[name] + limit, topic.end)
            rows.append(marks[name] + np.flatnonzero(topic.record[marks[name] : ends[name]]))
        return self.rows(rows), ends

    def rows(self, offsets: list[Int64]) -> TimerBatch:
        """What ingest makes of these records of each partition."""

        def all_of(field: str) -> npt.NDArray[Any]:
            parts = zip(self.partitions, offsets, strict=True)
            return np.concatenate([getattr(topic, field)[o] for topic, o in parts])

        partition = np.repeat(np.arange(len(offsets)), [len(o) for o in offsets])
        origin, due_ms, rejected = all_of("origin"), all_of("due_ms"), all_of("rejected")
        content = Content(partition, origin, due_ms)
        return TimerBatch(
            partitions=PARTITIONS,
            partition=partition.astype(np.int32),
            offset=np.concatenate(offsets),
            origin_offset=origin,
            due_ms=due_ms,
            not_before_ms=np.full(len(due_ms), ANY_TIME, np.int64),
            rejected=rejected,
            timer=np.ones(len(due_ms), np.bool_),
            cancels=np.zeros(len(due_ms), np.bool_),
            named_offset=np.full(len(due_ms), ANY_OFFSET),
            targets=TARGETS,
            target=np.where(rejected, 2, content.target).astype(np.int32),
            target_partition=content.target_partition,
            key_hash=key_hashes(content.key),
            id_hash=id_hashes(content.timer_id),
            timer_id=content.given_id,
            key_value=content.key_value,
            headers=content.headers,
            header_count=content.header_count,
            roll_times=all_of("rolls"),
            retries=np.zeros(len(due_ms), np.int32),
            level=np.where(rejected, 0, content.level),
            timestamp_ms=all_of("timestamp_ms"),
        )

    def judge_copies(self) -> int:
        """The copies that were kept, through the real contract: the same rows. How many."""
        kept = sorted(self.copies, key=lambda copy: copy[:2])
        by_partition = [[c for c in kept if c[0] == number] for number in range(len(PARTITIONS))]
        expected = self.rows([np.array([c[1] for c in p], np.int64) for p in by_partition])
        partition = expected.partition.astype(np.int64)
        content = Content(partition, expected.origin_offset, expected.due_ms)
        table = pa.table(
            {
                "topic": [TIMER_TOPIC] * len(kept),
                "partition": pa.array(expected.partition),
                "offset": expected.offset,
                "timestamp": pa.array([c[2] * 1000 for c in kept], pa.timestamp("us", "UTC")),
                "key": content.key.cast(pa.binary()),
                "value": content.value.cast(pa.binary()),
                "headers": pa.array([c[3] for c in kept], HEADERS),
            }
        )
        parameters = suite_parameters(forbidden_targets=[TIMER_TOPIC, "dead"])
        rules = compile_suite(load_suite(), parameters)
        found = parse(table, Contract((1_000,), {}, "dead", rules))
        assert not found.rejected.any()
        names = [found.targets[t] for t in found.target.tolist()]
        assert names == [TARGETS[t] for t in expected.target.tolist()]
        for name in ("timer_id", "key_value", "headers"):
            assert getattr(found, name).equals(getattr(expected, name)), name
        for name in (
            *("offset", "origin_offset", "due_ms", "target_partition", "key_hash", "id_hash"),
            *("header_count", "roll_times", "level", "timestamp_ms"),
        ):
            assert np.array_equal(getattr(found, name), getattr(expected, name)), name
        return len(kept)


def decoded(data: bytes, count: int) -> list[tuple[str, bytes]]:
    """Headers of short names and values: every varint is one byte, twice the length."""
    out, at = [], 0
    for _ in range(2 * count):
        size = data[at] // 2
        out.append(data[at + 1 : at + 1 + size])
        at += 1 + size
    assert at == len(data)
    return [(name.decode(), value) for name, value in zip(out[::2], out[1::2], strict=True)]


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
        self.shard = LocalShard(path, self.wheel, self.kafka, self.clock, config)
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
        waiting = False
        while not waiting:
            batch, ends = self.kafka.batch(dict(engine.marks))
            if ends == engine.marks:
                break
            if self.chance(0.1):
                self.clock.meanwhile = self.slots_close
            if self.chance(0.02):
                self.killed_within(batch, ends)
                return
            waiting = engine.append(batch, ends).waiting
            self.counts["batches"] += 1
            self.counts["batches cut by a full ring"] += waiting

    def slots_close(self) -> None:
        """In the middle of a batch."""
        if self.shard.dequeue is not None:
            slots = int(self.rng.integers(1, 20))
            self.clock.set(self.clock.now_ms() + slots * PRECISION_MS)
            self.dequeue(2)

    def killed_within(self, batch: TimerBatch, ends: dict[Any, int]) -> None:
        directory = self.shard.directory(Role.INGEST)
        step = self.rng.choice(["write_commit", "apply", "mark_applied"])

        def die(*_: object) -> None:
            raise Killed

        owner: object = directory.wheel if step == "apply" else directory.state
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
        assert mirror[1] == commit.placed == records
        self.durable.write()
        kept = self.shard.directory(Role.DEQUEUE).collect(Progress.decode(mirror[2]))
        assert kept == hour_of(mirror[0] + 1, PRECISION_MS)
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
