"""The cases of test_engine_kill.py: a data directory with its Kafka, and the killed process."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from dataclasses import asdict, astuple, dataclass, field, replace
from pathlib import Path
from random import Random

from tests.harness.publishers import Delivered, JournalPublisher
from tests.harness.timelines import KIND
from tests.harness.timer_rows import TIMER_TOPIC, TimerRow, ends_of
from tests.harness.timer_shard import TimerShard

from duewheel.checkpoints.process_role import Role
from duewheel.prove.cancel_judge import RequestOutcome, TimerRequest, cancel_faults
from duewheel.schemas.batches import TopicPartition
from duewheel.testing import ManualClock, Unsynced
from duewheel.wheel.append.engine import Appended
from duewheel.wheel.dequeue_config import DequeueConfig
from duewheel.wheel.slots import WheelConfig

PRECISION_MS = 50
SLOTS = 16
WHEEL = WheelConfig(PRECISION_MS, SLOTS, SLOTS * PRECISION_MS, margin_ms=0, timeline=KIND)
HOUR_MS = 1_800_000_000_000
HISTORY_MS = 6 * SLOTS * PRECISION_MS  # three laps before the full hour
START_MS = HOUR_MS - 3 * PRECISION_MS
PARTITIONS = 2
P0: TopicPartition = (TIMER_TOPIC, 0)
CHUNK_RECORDS = 3
REPLIES = "replies"
HOUR_LONG_MS = 3_600_000
COLLECT_MS = 60_000  # between two looks for what may go
CONFIG = DequeueConfig(
    0,
    1,
    {"precision": PRECISION_MS},
    CHUNK_RECORDS,
    progress_interval_ms=PRECISION_MS,
    reply_topic=REPLIES,
)
IDS = (b"a", b"b", b"c")


Steps = list[list[object]]


class Server:
    """engine_child.py, ready to fork."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__).with_name("engine_child.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, case: Case, steps: Steps, kill_at: int) -> dict[str, int]:
        task = {
            "path": str(case.path),
            "journal": str(case.journal),
            "now_ms": case.now_ms,
            "wheel": astuple(case.wheel),
            "dequeue": {
                "shard": 0,
                "shards": 1,
                "slot_config": dict(CONFIG.slot_config),
                "chunk_records": CHUNK_RECORDS,
                "progress_interval_ms": PRECISION_MS,
                "reply_topic": REPLIES,
            },
            "steps": steps,
            "kill_at": kill_at,
        }
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(task) + "\n")
        self._process.stdin.flush()
        answer: dict[str, int] = json.loads(self._process.stdout.readline())
        assert answer["code"] in {0, -signal.SIGKILL}
        return answer

    def close(self) -> None:
        self._process.communicate()


@dataclass
class Case:
    """A copy of a directory with a history, and what Kafka holds.

    Attributes:
        chases: how many of those in the journal ingest has been given.
        ends: of the partitions.
        wheel: of its processes, from the next start on.
    """

    path: Path
    journal: Path
    now_ms: int
    timers: list[TimerRow]
    chases: int = 0
    ends: list[int] = field(default_factory=lambda: [0] * PARTITIONS)
    wheel: WheelConfig = WHEEL

    def copy(self, to: Path) -> Case:
        to.mkdir()
        shutil.copytree(self.path, to / "data")
        shutil.copyfile(self.journal, to / "journal")
        return replace(self, path=to / "data", journal=to / "journal", ends=[*self.ends])


class CaseShard:
    """The parent's half of a case."""

    def __init__(self, case: Case) -> None:
        self.clock = ManualClock(case.now_ms)
        self.journal = JournalPublisher(case.journal, self.clock)
        self.shard = TimerShard(
            case.path, case.wheel, self.journal, self.clock, CONFIG, fs=Unsynced()
        )
        self.chases = case.chases

    def chase(self, ends: list[int]) -> bool:
        """Give ingest the chases that have left since, behind `ends`, which move on; returns
        whether there were any.
        """
        rows = []
        for each in self.journal.chases()[self.chases :]:
            rows.append(replace(each, offset=ends[each.partition]))
            ends[each.partition] += 1
        if rows:
            self.chases += len(rows)
            self.append(rows)
        return bool(rows)

    def append(self, batch: list[TimerRow]) -> Appended:
        self.journal.ends = ends_of(batch)
        return self.shard.append(batch, self.journal.ends)

    def drain(self) -> None:
        assert self.shard.dequeue is not None
        while self.shard.dequeue.tick():
            pass

    def kill(self) -> None:
        for role in Role:
            self.shard.kill(role)
        self.journal.close()


def some_timers(random: Random, offsets: list[int], now_ms: int, count: int) -> list[TimerRow]:
    """Rows behind `offsets`, which move on: hot slots, spread ones, past due, rejected; cancels."""
    timers = []
    for _ in range(count):
        partition = random.randrange(PARTITIONS)
        slots = random.choice([1, 1, 1, 2, 2, 3, 4, 9, SLOTS, -5])
        due_ms = now_ms + slots * PRECISION_MS - random.randrange(PRECISION_MS)
        request = random.choice(["", "", "", "cancel", "reschedule"])
        timer_id = random.choice(IDS) if request or random.random() < 0.5 else None
        rejected = not request and random.random() < 0.1
        place = (partition, offsets[partition])
        timers.append(TimerRow(*place, due_ms, rejected, timer_id=timer_id, request=request))
        offsets[partition] += random.choice([1, 1, 2])
    return timers


def append_step(batch: list[TimerRow], ms: int = 0, ticks: int = 0) -> list[object]:
    """A step of the child; between writing and lock `ms` pass and dequeue ticks."""
    ends = ends_of(batch)
    rows = [asdict(t) | {"timer_id": t.timer_id and t.timer_id.decode()} for t in batch]
    return ["append", rows, [ends.get((TIMER_TOPIC, p), 0) for p in range(PARTITIONS)], ms, ticks]


def a_row(offset: int, timer_id: bytes, slots: int = 0) -> TimerRow:
    """Of the first partition: a timer that is due so many slots later, or a cancel."""
    due_ms = START_MS + slots * PRECISION_MS
    return TimerRow(0, offset, due_ms, timer_id=timer_id, request="" if slots else "cancel")


def judge_rows(expected: dict[str, TimerRow], left: list[Delivered]) -> list[RequestOutcome]:
    """Each timer once unless it was cancelled, each cancel one reply, and a true one; returns the
    replies.
    """
    asked = [
        TimerRequest(
            (t.partition, t.offset),
            None if t.rejected else t.timer_id,  # a dead letter cannot be met
            is_timer=t.request != "cancel",
            cancels=t.request != "",
        )
        for t in expected.values()
    ]
    places = [(expected[row.source].partition, expected[row.source].offset) for row in left]
    came = [
        RequestOutcome(place, row.transaction, row.answer)
        for place, row in zip(places, left, strict=True)
    ]
    assert cancel_faults(asked, came) == []
    return [each for each in came if each.reply]
