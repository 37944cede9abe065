"""Ingest and dequeue in any order, with kills, doubts and jumps of the clock, against a model.

Kafka is a list of timers and cancels per partition; the engine is handed what lies above its marks,
as Spark would. Every transaction is judged when it happens, everything else when the machine ends.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from tests.harness.killed import Killed, die
from tests.harness.local_world import BusyClock
from tests.harness.publishers import RecordingPublisher
from tests.harness.timer_rows import TIMER_TOPIC, TimerRow, answer_value, chases_in, timer_batch
from tests.harness.timer_shard import TimerShard

from duewheel.checkpoints.process_role import Role
from duewheel.checkpoints.progress import PartitionProgress, Progress
from duewheel.checkpoints.state_file import State
from duewheel.prove.cancel_judge import RequestOutcome, TimerRequest, cancel_faults
from duewheel.schemas.batches import Deliveries, TopicPartition
from duewheel.testing import Unsynced
from duewheel.wheel.append.cancel_lookup import CancelLimits
from duewheel.wheel.dequeue_config import DequeueConfig
from duewheel.wheel.publisher_protocol import PublishAttempt
from duewheel.wheel.slots import WheelConfig
from duewheel.wheel.storage.data_directory import DataDirectory
from duewheel.wheel.storage.full_check import check

HOUR_STARTS_MS = 1_800_000_000_000
PARTITIONS = 3
KINDS = ("next slots", "spread", "mixed", "past", "next slots", "spread", "far beyond", "beyond")
REQUESTS = ("", "", "", "", "cancel", "reschedule")
IDS = (b"a", b"b", b"c", b"d")
INGEST_ENDS = ("", "", "", "", "", "write_commit", "append", "mark_applied")
RARELY = (False, False, False, False, True)
FATES = ("commit", "commit", "lose", "doubt", "die before", "die after")


class JudgingPublisher(RecordingPublisher):
    """Judges every transaction at the moment it is committed, and kills dequeue around it.

    Attributes:
        fates: of the next transactions; behind them, and while there are none, "commit".
    """

    def __init__(self, machine: WheelMachine) -> None:
        super().__init__(machine.clock, lambda: self._fate)
        self._machine = machine
        self._fate = "commit"
        self.fates: list[str] = []

    def publish(self, attempt: PublishAttempt) -> int | None:
        prepared = attempt.prepared
        self._machine.require_mirror_behind(self)
        fate = self.fates.pop(0) if self.fates else "commit"
        if fate == "die before":
            raise Killed
        self._fate = "commit" if fate == "die after" else fate
        try:
            stamp_ms = super().publish(attempt)
        finally:
            if fate != "lose":
                deliveries = None if prepared is None else prepared.deliveries
                self._machine.judge(deliveries, attempt.progress)
        if fate == "die after":
            raise Killed
        return stamp_ms


class WheelMachine(RuleBasedStateMachine):
    """
    Attributes:
        kafka: all rows of each partition.
        timers, slots: those of them that are timers, and their nominal slots, by offset.
        delivered: offsets.
    """

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="duewheel-machine-"))
        self.kafka: dict[int, list[TimerRow]] = {p: [] for p in range(PARTITIONS)}
        self.timers: dict[int, dict[int, TimerRow]] = {p: {} for p in range(PARTITIONS)}
        self.slots: dict[int, dict[int, int]] = {p: {} for p in range(PARTITIONS)}
        self.ends = dict.fromkeys(range(PARTITIONS), 0)
        self.delivered: dict[int, set[int]] = {p: set() for p in range(PARTITIONS)}
        self.came: list[RequestOutcome] = []
        self.last_floor = -(2**62)
        self.last_offset: dict[tuple[int, int], int] = {}

    @initialize(
        precision_ms=st.sampled_from([1, 7, 50]),
        slots=st.sampled_from([16, 8, 64]),
        before_hour=st.integers(0, 40),
        chunk_records=st.integers(1, 9),
        chunk_bytes=st.sampled_from([1, 300, 8 << 20]),
        rows_max=st.sampled_from([1 << 16, 512]),  # above the timers of one id
        replies_max=st.sampled_from([1_000, 1, 3]),
    )
    def begin(
        self,
        precision_ms: int,
        slots: int,
        before_hour: int,
        chunk_records: int,
        chunk_bytes: int,
        rows_max: int,
        replies_max: int,
    ) -> None:
        self.wheel = WheelConfig(precision_ms, slots, window_ms=slots * precision_ms, margin_ms=0)
        # The files of two hours come into play.
        self.clock = BusyClock(HOUR_STARTS_MS - before_hour * precision_ms)
        self.publisher = JudgingPublisher(self)
        config = DequeueConfig(
            0,
            1,
            {"precision": precision_ms},
            chunk_records,
            chunk_bytes,
            progress_interval_ms=5 * precision_ms,
            reply_topic="replies",
            chunk_replies=replies_max,
        )
        self.shard = TimerShard(
            self.root / "data", self.wheel, self.publisher, self.clock, config, fs=Unsynced()
        )
        self.shard.cancel_limits = CancelLimits(
            rows_max=rows_max, settled_max=rows_max, settled_from=2, settled_ms=0
        )
        # The last partition is added later.
        self.shard.start_dequeue({(TIMER_TOPIC, p): 0 for p in range(PARTITIONS - 1)})
        self.shard.start_ingest()

    # ---- Kafka and ingest ------------------------------------------------------------------

    @rule(
        seed=st.integers(0, 2**32),
        count=st.integers(1, 30),
        kind=st.sampled_from(KINDS),
        quarters=st.sampled_from([4, 4, 3, 1]),
        meanwhile=st.sampled_from([0, 0, 1, 3]),
        slots=st.sampled_from([1, 0, 2, 3, 7, 300]),
        end=st.sampled_from(INGEST_ENDS),
        away=st.sampled_from(RARELY),
    )
    def batch(
        self,
        seed: int,
        count: int,
        kind: str,
        quarters: int,
        meanwhile: int,
        slots: int,
        end: str,
        away: bool,
    ) -> None:
        """Rows for Kafka, and a batch for the engine that need not reach to Kafka's end.

        Between the engine's writing and its lock the clock may move on by `slots` and dequeue tick
        `meanwhile` times; and ingest may be killed on the way.
        """
        self.produce(Random(seed), count, kind)
        if away:
            return
        if self.shard.ingest is None:
            self.shard.start_ingest()
        if meanwhile:
            self.clock.meanwhile = lambda: self.turn_after(slots, meanwhile)
        if end:
            self.ingest_killed_before(end, quarters)
        else:
            self.ingest(quarters)
        self.clock.meanwhile = None

    def produce(self, random: Random, count: int, kind: str) -> None:
        now_ms, half_ring_ms = self.clock.now_ms(), self.wheel.slots * self.wheel.precision_ms
        for _ in range(count):
            partition = random.randrange(PARTITIONS)
            offset = self.ends[partition] + random.choice([0, 0, 0, 2])
            due_ms = (
                now_ms
                + {
                    "mixed": random.randint(-half_ring_ms, half_ring_ms),
                    "next slots": random.randint(-1, 2) * self.wheel.precision_ms,
                    "past": -random.randint(1, half_ring_ms),
                    "spread": random.randint(0, half_ring_ms),
                    "beyond": random.randint(2 * half_ring_ms - 90, 2 * half_ring_ms + 90),
                    "far beyond": random.randint(2, 12) * half_ring_ms + random.randint(0, 90),
                }[kind]
            )
            request = random.choice(REQUESTS)
            timer_id = random.choice(IDS) if request or random.random() < 0.3 else None
            rejected = not request and random.random() < 0.1
            timer = TimerRow(
                partition, offset, due_ms, rejected, timer_id=timer_id, request=request
            )
            self.write(timer)
        # A transaction's marker: nobody's message.
        self.ends[random.randrange(PARTITIONS)] += 1
        self.publisher.ends = {(TIMER_TOPIC, p): end for p, end in self.ends.items()}

    def write(self, row: TimerRow) -> None:
        self.kafka[row.partition].append(row)
        if is_timer(row):
            self.timers[row.partition][row.offset] = row
            self.slots[row.partition][row.offset] = self.nominal_slot(row)
        self.ends[row.partition] = row.offset + 1

    def next_batch(self, quarters: int) -> tuple[list[TimerRow], dict[TopicPartition, int]]:
        """What Spark would bring: rows above the marks, a part of them; and where they end."""
        assert self.shard.ingest is not None
        known = self.shard.ingest.marks
        ends = {}
        for p, end in self.ends.items():
            mark = known.get((TIMER_TOPIC, p), 0)
            ends[TIMER_TOPIC, p] = mark + (end - mark) * quarters // 4
        rows = [
            timer
            for p, timers in self.kafka.items()
            for timer in timers
            if known.get((TIMER_TOPIC, p), 0) <= timer.offset < ends[TIMER_TOPIC, p]
        ]
        return rows, ends

    def ingest(self, quarters: int) -> None:
        assert self.shard.ingest is not None
        before, placed = dict(self.shard.ingest.marks), self.state_of_ingest().commit().placed
        rows, ends = self.next_batch(quarters)
        appended = self.shard.append(rows, ends)
        marks = self.shard.ingest.marks
        assert dict(marks) == before | ends
        timers = [timer for timer in rows if is_timer(timer)]
        taken = [t for t in timers if t.offset < marks.get((TIMER_TOPIC, t.partition), 0)]
        assert appended.rows == len(taken)
        assert self.state_of_ingest().commit().placed == placed + len(taken)

    def ingest_killed_before(self, step: str, quarters: int) -> None:
        """A batch at whose end there is no ingest any more."""
        directory = self.shard.directory(Role.INGEST)

        owner: object = directory.timeline if step == "append" else directory.state
        setattr(owner, step, die)
        with suppress(Killed):
            self.shard.append(*self.next_batch(quarters))
        self.shard.kill(Role.INGEST)

    # ---- dequeue and time ------------------------------------------------------------------

    @rule(
        slots=st.sampled_from([1, 1, 1, 0, 2, 3, 5, 12, 30, 600]),
        ms=st.sampled_from([0, 1, 0, 24, 60]),
        ticks=st.sampled_from([10_000, 1, 2, 3, 5]),
        fates=st.lists(st.sampled_from(FATES), max_size=3),
        away=st.sampled_from(RARELY),
    )
    def time_passes(self, slots: int, ms: int, ticks: int, fates: list[str], away: bool) -> None:
        self.clock.set(self.clock.now_ms() + ms)
        self.publisher.fates = fates
        if self.shard.dequeue is None and not away:
            try:
                self.shard.start_dequeue()
            except Killed:
                self.shard.kill(Role.DEQUEUE)
        self.turn_after(slots, ticks)

    def turn_after(self, slots: int, ticks: int) -> None:
        self.clock.set(self.clock.now_ms() + slots * self.wheel.precision_ms)
        if self.shard.dequeue is None:
            return
        try:
            for _ in range(ticks):
                if not self.shard.dequeue.tick():
                    break
        except Killed:
            self.shard.kill(Role.DEQUEUE)

    # ---- ends and beginnings ---------------------------------------------------------------

    @rule(role=st.sampled_from(Role), clean=st.booleans())
    def end(self, role: Role, clean: bool) -> None:
        if (self.shard.ingest if role is Role.INGEST else self.shard.dequeue) is not None:
            (self.shard.stop if clean else self.shard.kill)(role)

    # ---- judging ---------------------------------------------------------------------------

    def nominal_slot(self, timer: TimerRow) -> int:
        return -(2**62) if timer.rejected else math.ceil(timer.due_ms / self.wheel.precision_ms)

    def state_of_ingest(self) -> State:
        return self.shard.directory(Role.INGEST).state

    def require_mirror_behind(self, publisher: RecordingPublisher) -> None:
        """What the mirror calls delivered has been committed."""
        mirror = self.shard.directory(Role.DEQUEUE).state.mirror()
        if mirror is not None:
            assert mirror.delivered_slot <= publisher.committed[-1][1].delivered_slot

    def judge(self, deliveries: Deliveries | None, progress: Progress) -> None:
        """Never early, never twice, byte for byte; and the progress says exactly what is out."""
        if deliveries is not None and len(deliveries):
            self.note(deliveries)
            if deliveries.answer.any():
                self.judge_replies(deliveries, progress)
            else:
                self.judge_rows(deliveries)
        for p, timers in self.timers.items():
            part = progress.partitions.get((TIMER_TOPIC, p))
            done = offsets_done(part, self.slots[p]) if part else set()
            assert self.delivered[p] <= done, (part, [timers[n] for n in self.delivered[p] - done])
            if not_delivered := done - self.delivered[p]:
                cancels = self.newest_cancels(p, part.closed_mark if part else 0)
                for timer in map(timers.__getitem__, not_delivered):
                    assert not timer.rejected
                    assert cancels.get(timer.timer_id, -1) > timer.offset, (timer, part)

    def note(self, deliveries: Deliveries) -> None:
        """For the verdict at the end."""
        rows = zip(
            deliveries.source.to_pylist(),
            deliveries.answer.tolist(),
            deliveries.is_copy.tolist(),
            deliveries.key_value.to_pylist(),
            strict=True,
        )
        for source, is_answer, is_chase, key_value in rows:
            if is_chase:
                continue
            place = place_of(source)
            word = answer_value(key_value or b"")["answer"] if is_answer else ""
            self.came.append(RequestOutcome(place, len(self.publisher.committed), word))

    def newest_cancels(self, partition: int, below: int) -> dict[bytes | None, int]:
        """The greatest offset at which each id is cancelled, of those below an offset."""
        return {
            row.timer_id: row.offset
            for row in self.kafka[partition]
            if row.request and row.origin is None and row.offset < below
        }

    def judge_replies(self, replies: Deliveries, progress: Progress) -> None:
        """Nothing else leaves with them; each cancel is one that the progress is behind. Chases are
        in Kafka then.
        """
        assert replies.answer.all()
        told = int((~replies.is_copy).sum())
        for partition, offset in [each.source for each in self.came[len(self.came) - told :]]:
            assert offset < progress.partitions[TIMER_TOPIC, partition].closed_mark
        for chase in chases_in(replies):
            part = progress.partitions[TIMER_TOPIC, chase.partition]
            assert chase.origin is not None and chase.origin < part.replied_below
            assert chase.chase_slot == part.delivered_slot
            self.write(replace(chase, offset=self.ends[chase.partition]))

    def judge_rows(self, deliveries: Deliveries) -> None:
        places = map(place_of, deliveries.source.to_pylist())
        rows = [self.timers[partition][offset] for partition, offset in places]
        now_ms = self.clock.now_ms()
        for timer in rows:
            assert timer.offset not in self.delivered[timer.partition]
            assert timer.rejected or timer.due_ms <= now_ms
            self.delivered[timer.partition].add(timer.offset)
            slot = (timer.partition, self.slots[timer.partition][timer.offset])
            assert self.last_offset.get(slot, -1) < timer.offset
            self.last_offset[slot] = timer.offset
        batch = timer_batch(rows)
        names = [batch.targets[number] for number in batch.target]
        assert [deliveries.targets[number] for number in deliveries.target] == names
        assert deliveries.key_value.equals(batch.key_value)
        assert deliveries.headers.equals(batch.headers)
        ids = [
            given or timer.source.encode()
            for given, timer in zip(batch.timer_id.to_pylist(), rows, strict=True)
        ]
        assert deliveries.timer_id.to_pylist() == ids
        for name in ("target_partition", "key_hash", "due_ms", "header_count", "roll_times"):
            assert np.array_equal(getattr(deliveries, name), getattr(batch, name)), name
        assert np.array_equal(deliveries.dead_letter, batch.rejected)

    @invariant()
    def floor_never_falls(self) -> None:
        running = {Role.INGEST: self.shard.ingest, Role.DEQUEUE: self.shard.dequeue}
        for role in [role for role, process in running.items() if process is not None]:
            close = self.shard.directory(role).state.close()
            assert close is not None and close.floor >= self.last_floor
            self.last_floor = close.floor

    def teardown(self) -> None:
        try:
            if hasattr(self, "shard"):
                self.finish()
        finally:
            for role in Role:
                self.shard.kill(role)
            shutil.rmtree(self.root)

    def finish(self) -> None:
        """Everything is brought to its end: each timer is out exactly once."""
        self.publisher.fates = []
        if self.shard.dequeue is None:
            self.shard.start_dequeue()
        if self.shard.ingest is None:
            self.shard.start_ingest()
        everything = [t for timers in self.timers.values() for t in timers.values()]
        latest_ms = max((timer.due_ms for timer in everything), default=0)
        for _ in range(12):  # cancels may be chased, and replies take some turns
            self.ingest(4)
            self.clock.set(max(latest_ms, self.clock.now_ms()))
            self.turn_after(5, 10_000)
        asked = [row for rows in self.kafka.values() for row in rows if row.origin is None]
        assert cancel_faults([asked_of(row) for row in asked], self.came) == []
        state = self.state_of_ingest()
        mirror = state.mirror()
        assert mirror is not None and mirror.delivered_rows == state.commit().placed == len(
            everything
        )
        report = check(self.shard.path, self.wheel)
        assert report.findings == []
        assert report.records == len(everything)
        self.shard.stop(Role.INGEST)
        self.shard.stop(Role.DEQUEUE)
        closed = DataDirectory(self.shard.path, self.wheel)
        assert closed.state.stopped_cleanly
        closed.close()


def is_timer(row: TimerRow) -> bool:
    return row.request != "cancel"


def asked_of(row: TimerRow) -> TimerRequest:
    """A dead letter cannot be met."""
    timer_id = None if row.rejected else row.timer_id
    return TimerRequest((row.partition, row.offset), timer_id, is_timer(row), row.request != "")


def place_of(source: bytes | None) -> tuple[int, int]:
    """Partition and offset."""
    topic_partition, offset = (source or b"").decode().split("@")
    return int(topic_partition.rsplit("-", 1)[1]), int(offset)


def offsets_done(p: PartitionProgress, slots: dict[int, int]) -> set[int]:
    """The one rule of recovery, for timers by their offset: their nominal slots."""
    mark, last = p.delivered_mark, p.delivered_slot
    done = {offset for offset, slot in slots.items() if offset < mark and slot <= last}
    if p.half_mark is None or p.half_below is None:
        return done
    below = min(p.half_mark, p.half_below)
    return done | {
        offset
        for offset, slot in slots.items()
        if offset < below and (slot == last + 1 or (slot <= last and offset >= mark))
    }


MATRIX = [pytest.mark.crash_matrix, pytest.mark.timeout(900)]


@pytest.mark.parametrize(
    "examples", [pytest.param(20, marks=pytest.mark.slow), pytest.param(200, marks=MATRIX)]
)
def test_wheel_machine(examples: int) -> None:
    run_state_machine_as_test(
        WheelMachine,
        settings=settings(max_examples=examples, stateful_step_count=40, deadline=None),
    )
