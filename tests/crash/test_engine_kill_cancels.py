"""SIGKILL at every store while cancels are given up, cut off or chase a copy, and twice in a row:
see test_engine_kill.py.
"""

from __future__ import annotations

import itertools
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from tests.crash.engine_cases import (
    COLLECT_MS,
    CONFIG,
    HOUR_LONG_MS,
    P0,
    PRECISION_MS,
    START_MS,
    WHEEL,
    Case,
    CaseShard,
    Server,
    Steps,
    a_row,
    append_step,
    judge_rows,
)
from tests.crash.engine_child import accept_cut
from tests.crash.kill_cases import batches, cases, finish
from tests.harness.timer_rows import ends_of

from duewheel.checkpoints.process_role import Role
from duewheel.errors import RecoveryRefused
from duewheel.wheel.storage import cancel_log
from duewheel.wheel.storage.byte_layouts import hour_name
from duewheel.wheel.storage.full_check import check


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
    for number, case in cases(old, tmp_path):
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
    for number, case in cases(first, tmp_path):
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
    assert number == ended["stores"] + 1 > 15


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
    assert number == ended["stores"] + 1 > 15


@pytest.mark.parametrize("count", [9, pytest.param(25, marks=pytest.mark.crash_matrix)])
def test_killed_again_on_the_way_back(
    server: Server, template: Case, tmp_path: Path, count: int
) -> None:
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
    for _, case in itertools.islice(cases(template, tmp_path), count):
        for _ in range(3):
            server.run(case, steps, random.randrange(1, 120))
            case.now_ms += 5 * PRECISION_MS
        finish(case, CaseShard(case), new)
