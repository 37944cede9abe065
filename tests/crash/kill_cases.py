"""The batches of a killed engine, its fresh copies, and how each case ends and is judged."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from tests.crash.engine_cases import (
    PRECISION_MS,
    SLOTS,
    Case,
    CaseShard,
    judge_rows,
    some_timers,
)
from tests.harness.timer_rows import TimerRow

from duewheel.checkpoints.process_role import Role
from duewheel.schemas.header_names import Answer
from duewheel.wheel.storage.full_check import check

# A minute of processor time for one test of every store; the usual run takes every seventh.
each_store = pytest.mark.parametrize(
    "step", [7, pytest.param(1, marks=pytest.mark.crash_matrix)], ids=["seventh", "every"]
)


OF_CANCELS = {Answer.CANCELLED, Answer.ALREADY_DELIVERED, Answer.UNKNOWN}


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
    assert {each.reply for each in answers} >= OF_CANCELS, "too little was asked"
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
    assert check(case.path, case.wheel).findings == []
    world.kill()


def cases(template: Case, root: Path, step: int = 1) -> Iterator[tuple[int, Case]]:
    """The number of every `step`th store from the first on, each with a fresh copy."""
    for number in itertools.count(1, step):
        yield number, template.copy(root / str(number))
        shutil.rmtree(root / str(number))
