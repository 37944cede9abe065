"""Kafka of a simulated day (day.py): the timer topic as columns; judges the deliveries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from tests.harness.source_table import read_records
from tests.harness.timer_rows import TIMER_TOPIC, suite_parameters
from tests.simulation.contract_check import decoded

from duewheel.checkpoints.progress import Progress
from duewheel.errors import PublishDoubt
from duewheel.schemas import columns
from duewheel.schemas.arrays import Bool, Int64
from duewheel.schemas.batches import (
    ACCEPTED,
    ANY_OFFSET,
    ANY_TIME,
    NO_PARTITION,
    NO_SLOT,
    Deliveries,
    TimerBatch,
)
from duewheel.schemas.columns import EMPTY, Column, binary, choose, constant, decimals, join, take
from duewheel.schemas.hashing import id_hashes, key_hashes, source_names
from duewheel.schemas.request.acceptance_rules import compile_suite, load_suite
from duewheel.schemas.request.parser import Contract, parse
from duewheel.schemas.wire.record_codec import framed_bytes
from duewheel.testing import ManualClock
from duewheel.wheel.publisher_protocol import Prepared, PublishAttempt

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
    """

    def __init__(self, clock: ManualClock, capacity: int, fates: Callable[[], str]) -> None:
        self.partitions = [Partition(capacity) for _ in PARTITIONS]
        self.fates = fates
        self.copies: list[tuple[int, int, int, list[tuple[str, bytes]]]] = []
        self.counts: Counter[str] = Counter()
        self.letters_wait = False
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

    def renew(self, prepared: Prepared, progress: Progress) -> Prepared:
        return prepared

    def log_ends(self, partitions: Sequence[tuple[str, int]]) -> dict[tuple[str, int], int]:
        return dict.fromkeys(partitions, 0)  # nobody cancels anything here

    def compose(self, prepared: Prepared | None, progress: Progress) -> PublishAttempt:
        return PublishAttempt(progress, prepared)

    def publish(self, attempt: PublishAttempt) -> int:
        prepared, fate = attempt.prepared, self.fates()
        self.counts[f"fate: {fate}"] += 1
        if fate == "die before":
            raise Killed
        if fate != "lose":
            if prepared is not None and len(prepared.deliveries):
                self._judge(prepared.deliveries)
            self._progress = Progress.decode(attempt.progress.encode())
        if fate == "die after":
            raise Killed
        if fate != "commit":
            raise PublishDoubt(fate)
        return self._clock.true_ms

    def _judge(self, found: Deliveries) -> None:
        now_ms = self._clock.now_ms()
        partition, origin, due_ms = read_key_values(found.key_value)
        expected = Content(partition, origin, due_ms)
        rolled, dead = found.is_copy, found.dead_letter
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
            self.judge_partition(number, found, rows, origin[rows])
        self.counts["delivered"] += int((~rolled & ~dead).sum())
        self.counts["rejected"] += int(dead.sum())
        self.counts["rolled"] += int(rolled.sum())

    def judge_partition(self, number: int, found: Deliveries, rows: Int64, origin: Int64) -> None:
        """Exactly once, and in order; then the copies of rolled timers are written."""
        topic, rolled = self.partitions[number], found.is_copy[rows]
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
            codes=["bad_header"],
            code=np.where(rejected, 0, ACCEPTED).astype(np.int32),
            timer=np.ones(len(due_ms), np.bool_),
            cancels=np.zeros(len(due_ms), np.bool_),
            named_offset=np.full(len(due_ms), ANY_OFFSET),
            chase_slot=np.full(len(due_ms), NO_SLOT),
            chase_flags=np.zeros(len(due_ms), np.int32),
            recurring=np.zeros(len(due_ms), np.bool_),
            seed=np.zeros(len(due_ms), np.bool_),
            forged=np.zeros(len(due_ms), np.bool_),
            keeps=np.zeros(len(due_ms), np.bool_),
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
        found = parse(read_records(table), Contract((1_000,), {}, "dead", rules))
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
