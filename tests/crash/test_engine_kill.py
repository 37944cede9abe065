"""SIGKILL before, and in the middle of, every store that ingest and dequeue make: nothing is lost,
nothing doubled, everything on disk is whole. Real processes, real files; Kafka is a journal file.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random

import pytest
from tests.crash.cancel_verdict import Asked, Came, judge
from tests.crash.engine_child import accept_cut

from duewheel.checkpoints.state import State
from duewheel.errors import RecoveryRefused
from duewheel.schemas.header_names import Answer
from duewheel.schemas.timers import TopicPartition
from duewheel.testing import (
    TIMER_TOPIC,
    Delivered,
    JournalPublisher,
    LocalShard,
    ManualClock,
    Timer,
)
from duewheel.wheel import cancel_log
from duewheel.wheel.check import check
from duewheel.wheel.data_directory import Role
from duewheel.wheel.dequeue_config import DequeueConfig
from duewheel.wheel.engine import Appended
from duewheel.wheel.layout import WheelConfig, hour_name

PRECISION_MS = 50
SLOTS = 16
WHEEL = WheelConfig(PRECISION_MS, SLOTS, window_ms=SLOTS * PRECISION_MS, margin_ms=0)
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
            "wheel": [PRECISION_MS, SLOTS, SLOTS * PRECISION_MS, 0],
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
    """A copy of a directory with a history, and what Kafka holds."""

    path: Path
    journal: Path
    now_ms: int
    timers: list[Timer]

    def copy(self, to: Path) -> Case:
        to.mkdir()
        shutil.copytree(self.path, to / "data")
        shutil.copyfile(self.journal, to / "journal")
        return Case(to / "data", to / "journal", self.now_ms, self.timers)


class World:
    """The parent's half of a case."""

    def __init__(self, case: Case) -> None:
        self.clock = ManualClock(case.now_ms)
        self.journal = JournalPublisher(case.journal, self.clock)
        self.shard = LocalShard(case.path, WHEEL, self.journal, self.clock, CONFIG)

    def append(self, batch: list[Timer]) -> Appended:
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


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


def ends_of(timers: list[Timer]) -> dict[TopicPartition, int]:
    ends: dict[TopicPartition, int] = {}
    for timer in timers:
        ends[TIMER_TOPIC, timer.partition] = timer.offset + 1
    return ends


def some_timers(random: Random, offsets: list[int], now_ms: int, count: int) -> list[Timer]:
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
        timers.append(Timer(*place, due_ms, rejected, timer_id=timer_id, request=request))
        offsets[partition] += random.choice([1, 1, 2])
    return timers


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """Three laps of the ring behind it, timers pending, a slot half delivered."""
    root = tmp_path_factory.mktemp("template")
    case = Case(root / "data", root / "journal", START_MS - HISTORY_MS, [])
    world, random, offsets = World(case), Random(1), [0] * PARTITIONS
    world.shard.start_dequeue({(TIMER_TOPIC, p): 0 for p in range(PARTITIONS)})
    world.shard.start_ingest()
    while world.clock.now_ms() < START_MS:
        batch = some_timers(random, offsets, world.clock.now_ms(), 12)
        world.append(batch)
        case.timers += batch
        world.clock.sleep(4 * PRECISION_MS / 1000)
        world.drain()
    hot = [Timer(0, offsets[0] + i, world.clock.now_ms() + 1) for i in range(5)]
    world.append(hot)
    case.timers += hot
    world.clock.sleep(PRECISION_MS / 1000)
    assert world.shard.dequeue is not None and world.shard.dequeue.tick()
    case.now_ms = world.clock.now_ms()
    world.kill()
    return case


def batches(template: Case, count: int) -> list[list[Timer]]:
    random, offsets = Random(4), [0] * PARTITIONS
    for partition in range(PARTITIONS):
        offsets[partition] = 1 + max(t.offset for t in template.timers if t.partition == partition)
    made = [
        some_timers(random, offsets, template.now_ms + 2 * i * PRECISION_MS, 10)
        for i in range(count)
    ]
    assert all(any(row.request for row in batch) for batch in made)
    return made


def append_step(batch: list[Timer], ms: int = 0, ticks: int = 0) -> list[object]:
    """A step of the child; between writing and lock `ms` pass and dequeue ticks."""
    ends = ends_of(batch)
    rows = [asdict(t) | {"timer_id": t.timer_id and t.timer_id.decode()} for t in batch]
    return ["append", rows, [ends.get((TIMER_TOPIC, p), 0) for p in range(PARTITIONS)], ms, ticks]


def finish(case: Case, world: World, new: list[list[Timer]]) -> None:
    """Kafka is read again, everything becomes due; what came out is judged."""
    if world.shard.dequeue is None:
        world.shard.start_dequeue()
    if world.shard.ingest is None:
        world.shard.start_ingest()
    for batch in new:
        world.append(batch)
    for _ in range(8):
        world.clock.sleep(SLOTS / 4 * PRECISION_MS / 1000)
        world.drain()
    expected = {t.source: t for t in case.timers + [t for batch in new for t in batch]}
    left = world.journal.delivered()
    answers = judge_rows(expected, left)
    assert {each.word for each in answers} == set(Answer), "too little was asked"
    last: dict[tuple[int, int], int] = {}
    for message in left:
        timer = expected[message.source]
        if message.answer:
            continue
        assert message.dead_letter == timer.rejected
        assert timer.rejected or message.published_ms >= timer.due_ms
        slot = -1 if timer.rejected else -(-timer.due_ms // PRECISION_MS)
        assert last.get((timer.partition, slot), -1) < timer.offset
        last[timer.partition, slot] = timer.offset
    state = world.shard.directory(Role.INGEST).state
    mirror = state.mirror()
    placed = sum(timer.request != "cancel" for timer in expected.values())
    assert mirror is not None and mirror[1] == state.commit().placed == placed
    assert check(case.path, WHEEL).findings == []
    world.kill()


def a_row(offset: int, timer_id: bytes, slots: int = 0) -> Timer:
    """Of the first partition: a timer that is due so many slots later, or a cancel."""
    due_ms = START_MS + slots * PRECISION_MS
    return Timer(0, offset, due_ms, timer_id=timer_id, request="" if slots else "cancel")


def judge_rows(expected: dict[str, Timer], left: list[Delivered]) -> list[Came]:
    """Each timer once unless it was cancelled, each cancel one answer, and a true one, in order;
    returns the answers.
    """
    asked = [
        Asked(
            (t.partition, t.offset),
            None if t.rejected else t.timer_id,  # a dead letter cannot be met
            is_timer=t.request != "cancel",
            cancels=t.request != "",
        )
        for t in expected.values()
    ]
    places = [(expected[row.source].partition, expected[row.source].offset) for row in left]
    came = [
        Came(place, row.transaction, row.answer) for place, row in zip(places, left, strict=True)
    ]
    assert judge(asked, came) == []
    answers = [each for each in came if each.word]
    for partition in range(PARTITIONS):
        offsets = [each.place[1] for each in answers if each.place[0] == partition]
        assert offsets == sorted(offsets)
    return answers


@pytest.fixture(autouse=True)
def unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    # What a kill leaves is in the page cache, synced or not.
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr(State, "sync", lambda _: None)


def cases(template: Case, root: Path) -> Iterator[Case]:
    """Fresh copies, one at a time."""
    for number in itertools.count():
        yield template.copy(root / str(number))
        shutil.rmtree(root / str(number))


def test_both_killed_together_at_every_store(
    server: Server, template: Case, tmp_path: Path
) -> None:
    new = batches(template, 3)
    steps: Steps = [
        ["start_dequeue"],
        ["start_ingest"],
        append_step(new[0]),
        ["pass_time", 2 * PRECISION_MS, 2],
        append_step(new[1], ms=2 * PRECISION_MS, ticks=4),  # slots are closed under it
        ["pass_time", 5 * PRECISION_MS, 3],
        append_step(new[2]),
        ["pass_time", PRECISION_MS, 1],
        ["stop", "INGEST"],
        ["stop", "DEQUEUE"],
    ]
    for number, case in enumerate(cases(template, tmp_path), 1):
        ended = server.run(case, steps, number)
        case.now_ms += 10 * PRECISION_MS
        finish(case, World(case), new)
        if ended["code"] == 0:
            break
    assert number == ended["stores"] + 1 > 100


def test_ingest_killed_at_every_store_while_dequeue_lives(
    server: Server, template: Case, tmp_path: Path
) -> None:
    new = batches(template, 3)
    steps: Steps = [["start_ingest"], append_step(new[0]), append_step(new[1])]
    for number, case in enumerate(cases(template, tmp_path), 1):
        world = World(case)
        world.shard.start_dequeue()
        ended = server.run(case, steps, number)
        world.clock.sleep(PRECISION_MS / 1000)
        world.drain()
        finish(case, world, new)
        if ended["code"] == 0:
            break
    assert number == ended["stores"] + 1 > 30


def test_dequeue_killed_at_every_store_while_ingest_lives(
    server: Server, template: Case, tmp_path: Path
) -> None:
    new = batches(template, 3)
    steps: Steps = [
        ["start_dequeue"],
        ["pass_time", PRECISION_MS, 10],
        ["pass_time", 2 * PRECISION_MS, 10],
    ]
    for number, case in enumerate(cases(template, tmp_path), 1):
        world = World(case)
        world.shard.start_ingest()
        world.append(new[0])
        ended = server.run(case, steps, number)
        world.append(new[1])
        world.clock.sleep(4 * PRECISION_MS / 1000)
        finish(case, world, new)
        if ended["code"] == 0:
            break
    assert number == ended["stores"] + 1 > 30


def far_timers(template: Case) -> tuple[list[Timer], list[Timer]]:
    """Two batches into the same slots, two laps and more ahead."""
    end = 1 + max(t.offset for t in template.timers if t.partition == 0)
    slots = [2 * SLOTS * lap + n for lap in (1, 2, 3) for n in (1, 1, 2, 5)]
    timers = [
        Timer(0, end + n, template.now_ms + slot * PRECISION_MS)
        for n, slot in enumerate(slots + slots)
    ]
    return timers[: len(slots)], timers[len(slots) :]


def test_dequeue_killed_at_every_store_while_far_slots_are_linked(
    server: Server, template: Case, tmp_path: Path
) -> None:
    """Ingest lives, and adds to slots that are linked by then, or half, or not."""
    first, second = far_timers(template)
    lap_ms = 2 * SLOTS * PRECISION_MS
    steps: Steps = [
        ["start_dequeue"],
        ["pass_time", PRECISION_MS, 10],
        ["pass_time", lap_ms // 4, 10],
        ["pass_time", lap_ms // 4, 10],
        ["pass_time", 3 * lap_ms // 4, 10],  # one range, beyond the ring
    ]
    for number, case in enumerate(cases(template, tmp_path), 1):
        world = World(case)
        world.shard.start_ingest()
        world.append(first)
        ended = server.run(case, steps, number)
        world.append(second)
        world.clock.sleep(2 * lap_ms / 1000)
        world.shard.start_dequeue()
        assert check(case.path, WHEEL).findings == []
        finish_far(case, world, [*first, *second])
        if ended["code"] == 0:
            break
    assert number == ended["stores"] + 1 > 40


def test_ingest_killed_at_every_store_while_it_takes_far_rows(
    server: Server, template: Case, tmp_path: Path
) -> None:
    """Dequeue lives, and closes slots under it."""
    first, second = far_timers(template)
    steps: Steps = [["start_ingest"], append_step(first), append_step(second)]
    for number, case in enumerate(cases(template, tmp_path), 1):
        world = World(case)
        world.shard.start_dequeue()
        ended = server.run(case, steps, number)
        world.clock.sleep(SLOTS * PRECISION_MS / 1000)
        world.drain()
        finish_far(case, world, [*first, *second])
        if ended["code"] == 0:
            break
    assert number == ended["stores"] + 1 > 20


def finish_far(case: Case, world: World, far: list[Timer]) -> None:
    """Kafka is read again; each timer leaves once, at its time, in its order."""
    if world.shard.ingest is None:
        world.shard.start_ingest()
    assert world.shard.ingest is not None
    mark = world.shard.ingest.marks[P0]
    world.append([timer for timer in far if timer.offset >= mark] or far[-1:])
    for _ in range(16):
        world.clock.sleep(SLOTS / 2 * PRECISION_MS / 1000)
        world.drain()
        world.drain()
    due = {timer.source: timer for timer in far}
    left = [message for message in world.journal.delivered() if message.source in due]
    assert all(each.published_ms >= due[each.source].due_ms for each in left)
    assert sorted(each.source for each in left) == sorted(due)
    slots: dict[int, list[int]] = {}
    for each in left:
        slots.setdefault(due[each.source].due_ms, []).append(due[each.source].offset)
    assert all(offsets == sorted(offsets) for offsets in slots.values())
    assert check(case.path, WHEEL).findings == []
    world.kill()


@pytest.mark.crash_matrix
def test_killed_at_every_store_while_cancels_are_given_up(
    server: Server, template: Case, tmp_path: Path
) -> None:
    """The first segment of the cancel log is over, an hour later it may go, and it does."""
    new = batches(template, 3)
    before: Steps = [
        ["start_dequeue"],
        ["start_ingest"],
        append_step(new[0]),
        ["pass_time", HOUR_LONG_MS, 20],
        ["pass_time", 1_000, 20],  # there is no room in the ring before a progress says so
        append_step(new[1]),
        ["write_durable"],  # without it nothing is looked at
        ["pass_time", PRECISION_MS, 20],
        ["pass_time", COLLECT_MS, 20],
        ["pass_time", HOUR_LONG_MS, 20],
        ["write_durable"],
        ["pass_time", COLLECT_MS, 20],
        ["pass_time", 1_000, 20],
    ]
    steps: Steps = [
        *before,
        ["pass_time", COLLECT_MS, 20],
        ["pass_time", 1_000, 20],
        append_step(new[2]),
        ["pass_time", PRECISION_MS, 5],
        ["pass_time", COLLECT_MS, 20],
    ]
    left = set()
    made = 0
    for number, case in enumerate(cases(template, tmp_path)):
        ended = server.run(case, steps if number else before, made + number)
        made = made or ended["stores"]
        case.now_ms += 3 * HOUR_LONG_MS
        segments = [[path.name for path in (case.path / f).iterdir()] for f in cancel_log.FOLDERS]
        first = hour_name((START_MS - 1) // HOUR_LONG_MS)
        left.add(tuple(first in names for names in segments))
        world = World(case)
        world.shard.start_dequeue()
        assert not world.shard.directory(Role.DEQUEUE).state.needs_recovery
        world.drain()
        world.clock.sleep(1)
        world.drain()
        finish(case, world, new)
        if number and ended["code"] == 0:
            break
    assert made + number == ended["stores"] + 1 > made + 30
    assert left == {(True, True), (False, True), (False, False)}


@pytest.mark.crash_matrix
def test_accepting_a_cut_killed_at_every_store(server: Server, tmp_path: Path) -> None:
    """Cancels from behind it are cut off: they meet nothing that comes in their place."""
    first = Case(tmp_path / "data", tmp_path / "journal", START_MS, [])
    world = World(first)
    world.shard.start_dequeue({P0: 0})
    world.shard.start_ingest()
    cut = 4
    old = [
        a_row(0, b"a", 25),
        a_row(1, b"b", 1),
        *(a_row(2 + i, b"acab"[i : i + 1]) for i in range(4)),
    ]
    for batch in (old[:2], old[2:]):
        world.append(batch)
        world.clock.sleep(3 * PRECISION_MS / 1000)
        world.drain()
    before = world.journal.delivered()
    first.now_ms = world.clock.now_ms()
    world.kill()
    new = [a_row(4, b"b", 27), a_row(5, b"c", 28), a_row(6, b"c"), a_row(7, b"a", 29)]
    for number, case in enumerate(cases(first, tmp_path), 1):
        ended = server.run(case, [["accept_loss", {0: cut}]], number)
        world = World(case)
        # Once its commit page is there nothing is lost any more.
        with suppress(RecoveryRefused):
            accept_cut(case.path, WHEEL, CONFIG, world.journal, world.clock, {P0: cut})
        world.shard.start_dequeue()
        world.shard.start_ingest()
        world.append(new)
        for _ in range(4):
            world.clock.sleep(10 * PRECISION_MS / 1000)
            world.drain()
        left = world.journal.delivered()
        assert left[: len(before)] == before
        of_these = [row for row in before if row.source in {r.source for r in old[:cut]}]
        expected = {row.source: row for row in (*old[:cut], *new)}
        judge_rows(expected, [*of_these, *left[len(before) :]])
        world.kill()
        if ended["code"] == 0:
            break
    assert number == ended["stores"] + 1 > 20


@pytest.mark.crash_matrix
def test_ingest_killed_at_every_store_while_a_copy_brings_its_cancel_again(
    server: Server, tmp_path: Path
) -> None:
    """It was rolled before its cancel came, and comes when dequeue has that in memory no more."""
    rolled = replace(a_row(0, b"a", 40), timestamp_ms=START_MS)
    old = [rolled, a_row(1, b"a", 20), a_row(2, b"a")]
    copy = replace(rolled, offset=3, origin=0, timestamp_ms=START_MS + 20 * PRECISION_MS)
    new = [copy, a_row(4, b"b", 41), a_row(5, b"b"), a_row(6, b"a", 42)]
    expected = {row.source: row for row in (*old, *new) if row is not copy}
    for number in itertools.count(1):
        root = tmp_path / str(number)
        root.mkdir()
        case = Case(root / "data", root / "journal", START_MS, [])
        world = World(case)
        world.shard.start_dequeue({P0: 0})
        world.shard.start_ingest()
        for batch, slots in ((old[:2], 17), (old[2:], 2), ([], 2), ([], 2)):
            world.shard.append(batch, ends_of(batch))
            world.journal.ends = {P0: 4}  # with the copy
            world.clock.sleep(slots * PRECISION_MS / 1000)
            world.drain()
        assert world.shard.dequeue is not None
        assert world.shard.dequeue.statistics.cancels.live == 0
        told = [(row.source, row.answer) for row in world.journal.delivered()]
        assert told == [(rolled.source, ""), (old[2].source, Answer.CANCELLED)]
        case.now_ms = world.clock.now_ms()
        world.shard.kill(Role.INGEST)
        ended = server.run(case, [["start_ingest"], append_step(new)], number)
        world.shard.start_ingest()
        world.append(new)
        for _ in range(6):
            world.clock.sleep(10 * PRECISION_MS / 1000)
            world.drain()
        judge_rows(expected, world.journal.delivered()[1:])
        assert check(case.path, WHEEL).findings == []
        world.kill()
        if ended["code"] == 0:
            break
    assert number == ended["stores"] + 1 > 20


def test_killed_again_on_the_way_back(server: Server, template: Case, tmp_path: Path) -> None:
    new = batches(template, 3)
    steps: Steps = [
        ["start_dequeue"],
        ["start_ingest"],
        append_step(new[0]),
        ["pass_time", PRECISION_MS, 1],
        append_step(new[1], ms=2 * PRECISION_MS, ticks=2),
        ["pass_time", 2 * PRECISION_MS, 2],
    ]
    random = Random(3)
    for case in itertools.islice(cases(template, tmp_path), 25):
        for _ in range(3):
            server.run(case, steps, random.randrange(1, 120))
            case.now_ms += 5 * PRECISION_MS
        finish(case, World(case), new)
