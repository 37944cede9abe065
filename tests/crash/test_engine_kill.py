"""SIGKILL before, and in the middle of, every store that ingest and dequeue make: nothing is lost,
nothing doubled, everything on disk is whole. Real processes, real files; Kafka is a journal file.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from tests.crash.engine_cases import (
    COLLECT_MS,
    CONFIG,
    HISTORY_MS,
    HOUR_LONG_MS,
    P0,
    PARTITIONS,
    PRECISION_MS,
    SLOTS,
    START_MS,
    WHEEL,
    Case,
    CaseShard,
    Server,
    Steps,
    a_row,
    append_step,
    judge_rows,
    some_timers,
)
from tests.crash.engine_child import accept_cut
from tests.harness.timer_rows import ends_of

from duewheel.checkpoints.role import Role
from duewheel.errors import RecoveryRefused
from duewheel.schemas.header_names import Answer
from duewheel.testing import (
    TIMER_TOPIC,
    TimerRow,
)
from duewheel.wheel.storage import cancel_log
from duewheel.wheel.storage.full_check import check
from duewheel.wheel.storage.layout import hour_name


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """Three laps of the ring behind it, timers pending, a slot half delivered."""
    root = tmp_path_factory.mktemp("template")
    case = Case(root / "data", root / "journal", START_MS - HISTORY_MS, [])
    world, random, offsets = CaseShard(case), Random(1), [0] * PARTITIONS
    world.shard.start_dequeue({(TIMER_TOPIC, p): 0 for p in range(PARTITIONS)})
    world.shard.start_ingest()
    while world.clock.now_ms() < START_MS:
        batch = some_timers(random, offsets, world.clock.now_ms(), 12)
        world.append(batch)
        case.timers += batch
        world.clock.sleep(4 * PRECISION_MS / 1000)
        world.drain()
        world.chase(offsets)
    hot = [TimerRow(0, offsets[0] + i, world.clock.now_ms() + 1) for i in range(5)]
    world.append(hot)
    case.timers += hot
    world.clock.sleep(PRECISION_MS / 1000)
    assert world.shard.dequeue is not None and world.shard.dequeue.tick()
    case.now_ms, case.chases = world.clock.now_ms(), world.chases
    case.ends = [offsets[0] + len(hot), *offsets[1:]]
    world.kill()
    return case


def batches(template: Case, count: int) -> list[list[TimerRow]]:
    random, offsets = Random(4), [*template.ends]
    made = [
        some_timers(random, offsets, template.now_ms + 2 * i * PRECISION_MS, 10)
        for i in range(count)
    ]
    assert all(any(row.request for row in batch) for batch in made)
    return made


def finish(case: Case, world: CaseShard, new: list[list[TimerRow]]) -> None:
    """Kafka is read again, everything becomes due; what came out is judged."""
    if world.shard.dequeue is None:
        world.shard.start_dequeue()
    if world.shard.ingest is None:
        world.shard.start_ingest()
    for batch in new:
        world.append(batch)
    ends = [*case.ends]
    for timer in (timer for batch in new for timer in batch):
        ends[timer.partition] = timer.offset + 1
    for turn in itertools.count():
        world.clock.sleep(SLOTS / 4 * PRECISION_MS / 1000)
        world.drain()
        if not world.chase(ends) and turn > 8:
            break
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
    assert mirror is not None and mirror.delivered_rows == state.commit().placed == placed
    assert check(case.path, WHEEL).findings == []
    world.kill()


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
        finish(case, CaseShard(case), new)
        if ended["code"] == 0:
            break
    assert number == ended["stores"] + 1 > 100


def test_ingest_killed_at_every_store_while_dequeue_lives(
    server: Server, template: Case, tmp_path: Path
) -> None:
    new = batches(template, 3)
    steps: Steps = [["start_ingest"], append_step(new[0]), append_step(new[1])]
    for number, case in enumerate(cases(template, tmp_path), 1):
        world = CaseShard(case)
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
        world = CaseShard(case)
        world.shard.start_ingest()
        world.append(new[0])
        ended = server.run(case, steps, number)
        world.append(new[1])
        world.clock.sleep(4 * PRECISION_MS / 1000)
        finish(case, world, new)
        if ended["code"] == 0:
            break
    assert number == ended["stores"] + 1 > 30


def far_timers(template: Case) -> tuple[list[TimerRow], list[TimerRow]]:
    """Two batches into the same slots, two laps and more ahead."""
    end = 1 + max(t.offset for t in template.timers if t.partition == 0)
    slots = [2 * SLOTS * lap + n for lap in (1, 2, 3) for n in (1, 1, 2, 5)]
    timers = [
        TimerRow(0, end + n, template.now_ms + slot * PRECISION_MS)
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
        world = CaseShard(case)
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
        world = CaseShard(case)
        world.shard.start_dequeue()
        ended = server.run(case, steps, number)
        world.clock.sleep(SLOTS * PRECISION_MS / 1000)
        world.drain()
        finish_far(case, world, [*first, *second])
        if ended["code"] == 0:
            break
    assert number == ended["stores"] + 1 > 20


def finish_far(case: Case, world: CaseShard, far: list[TimerRow]) -> None:
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
@pytest.mark.timeout(900)
def test_killed_at_every_store_while_cancels_are_given_up(
    server: Server, template: Case, tmp_path: Path
) -> None:
    """The first segment of the cancel log is over, an hour later it may go, and it does."""
    new, old = batches(template, 3), template.copy(tmp_path / "old")
    world = CaseShard(old)
    world.shard.start_dequeue()
    world.shard.start_ingest()
    for batch in new[:2]:
        world.append(batch)
        world.clock.sleep(1)
        world.drain()
    world.clock.sleep(2 * HOUR_LONG_MS / 1000)
    world.drain()  # hours in a ring of less than a second: too slow to be repeated for each store
    old.now_ms, old.chases = world.clock.now_ms(), world.chases
    world.kill()
    steps: Steps = [
        ["start_dequeue"],
        ["start_ingest"],
        ["write_durable"],  # without it nothing is looked at
        ["pass_time", COLLECT_MS, 20],
        ["pass_time", 1_000, 20],
        append_step(new[2]),
        ["pass_time", PRECISION_MS, 5],
        ["pass_time", COLLECT_MS, 20],
        ["pass_time", 1_000, 20],
    ]
    left = set()
    for number, case in enumerate(cases(old, tmp_path), 1):
        ended = server.run(case, steps, number)
        case.now_ms += 3 * COLLECT_MS
        segments = [[path.name for path in (case.path / f).iterdir()] for f in cancel_log.FOLDERS]
        first = hour_name((START_MS - 1) // HOUR_LONG_MS)
        left.add(tuple(first in names for names in segments))
        world = CaseShard(case)
        world.shard.start_dequeue()
        assert not world.shard.directory(Role.DEQUEUE).state.needs_recovery
        world.drain()
        world.clock.sleep(1)
        world.drain()
        finish(case, world, new)
        if ended["code"] == 0:
            break
    assert number == ended["stores"] + 1 > 30
    assert left == {(True, True), (False, True), (False, False)}


@pytest.mark.crash_matrix
def test_accepting_a_cut_killed_at_every_store(server: Server, tmp_path: Path) -> None:
    """Cancels from behind it are cut off: they meet nothing that comes in their place."""
    first = Case(tmp_path / "data", tmp_path / "journal", START_MS, [])
    world = CaseShard(first)
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
        world = CaseShard(case)
        # Once its commit page is there nothing is lost any more.
        with suppress(RecoveryRefused):
            accept_cut(case.path, WHEEL, CONFIG, world.journal, world.clock, {P0: cut})
        world.shard.start_dequeue()
        world.shard.start_ingest()
        world.append(new)
        world.chases, ends = len(world.journal.chases()), [8]
        for _ in range(8):
            world.clock.sleep(5 * PRECISION_MS / 1000)
            world.drain()
            world.chase(ends)
        left = world.journal.delivered()
        assert left[: len(before)] == before
        of_these = [row for row in before if row.source in {r.source for r in old[:cut]}]
        expected = {row.source: row for row in (*old[:cut], *new)}
        judge_rows(expected, [*of_these, *left[len(before) :]])
        world.kill()
        if ended["code"] == 0:
            break
    assert number == ended["stores"] + 1 > 20


def test_ingest_killed_at_every_store_while_a_chase_cancels_a_copy(
    server: Server, tmp_path: Path
) -> None:
    """The timer was rolled before its cancel came, and its copy lies behind that."""
    rolled = replace(a_row(0, b"a", 40), timestamp_ms=START_MS)
    old = [rolled, a_row(1, b"a", 20), a_row(2, b"a")]
    copy = replace(rolled, offset=3, origin=0, timestamp_ms=START_MS + 20 * PRECISION_MS)
    for number in itertools.count(1):
        root = tmp_path / str(number)
        root.mkdir()
        case = Case(root / "data", root / "journal", START_MS, [])
        world = CaseShard(case)
        world.shard.start_dequeue({P0: 0}).tick()
        world.shard.start_ingest()
        for batch, slots in ((old[:2], 17), (old[2:], 2), ([], 2), ([], 2)):
            world.shard.append(batch, ends_of(batch))
            world.clock.sleep(slots * PRECISION_MS / 1000)
            world.drain()
        (chase,) = world.journal.chases()
        world.chases = 1
        left = [(row.source, row.answer) for row in world.journal.delivered()]
        assert left == [(rolled.source, "")]
        case.now_ms = world.clock.now_ms()
        world.shard.kill(Role.INGEST)
        new = [a_row(4, b"b", 41), a_row(5, b"b"), replace(chase, offset=6), a_row(7, b"a", 42)]
        steps: Steps = [["start_ingest"], append_step([copy, *new])]
        ended = server.run(case, steps, number)
        world.shard.start_ingest()
        world.append([copy, *new])
        for _ in range(6):
            world.clock.sleep(10 * PRECISION_MS / 1000)
            world.drain()
        expected = {row.source: row for row in (*old, *new) if row.origin is None}
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
        finish(case, CaseShard(case), new)
