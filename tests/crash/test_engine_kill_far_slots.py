"""SIGKILL at every store while rows beyond the ring are taken and linked: test_engine_kill.py."""

from __future__ import annotations

from pathlib import Path

from tests.crash.engine_cases import (
    P0,
    PRECISION_MS,
    SLOTS,
    WHEEL,
    Case,
    CaseShard,
    Server,
    Steps,
    append_step,
)
from tests.crash.kill_cases import cases, each_store
from tests.harness.timelines import wheel_only
from tests.harness.timer_rows import TimerRow

from duewheel.wheel.storage.full_check import check

pytestmark = wheel_only


def far_timers(template: Case) -> tuple[list[TimerRow], list[TimerRow]]:
    """Two batches into the same slots, two laps and more ahead."""
    end = 1 + max(t.offset for t in template.timers if t.partition == 0)
    slots = [2 * SLOTS * lap + n for lap in (1, 2, 3) for n in (1, 1, 2, 5)]
    timers = [
        TimerRow(0, end + n, template.now_ms + slot * PRECISION_MS)
        for n, slot in enumerate(slots + slots)
    ]
    return timers[: len(slots)], timers[len(slots) :]


@each_store
def test_dequeue_killed_at_every_store_while_far_slots_are_linked(
    server: Server, template: Case, tmp_path: Path, step: int
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
    for number, case in cases(template, tmp_path, step):
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
    assert number > ended["stores"] >= 40


@each_store
def test_ingest_killed_at_every_store_while_it_takes_far_rows(
    server: Server, template: Case, tmp_path: Path, step: int
) -> None:
    """Dequeue lives, and closes slots under it."""
    first, second = far_timers(template)
    steps: Steps = [["start_ingest"], append_step(first), append_step(second)]
    for number, case in cases(template, tmp_path, step):
        world = CaseShard(case)
        world.shard.start_dequeue()
        ended = server.run(case, steps, number)
        world.clock.sleep(SLOTS * PRECISION_MS / 1000)
        world.drain()
        finish_far(case, world, [*first, *second])
        if ended["code"] == 0:
            break
    assert number > ended["stores"] >= 20


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
