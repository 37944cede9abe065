"""SIGKILL before, and in the middle of, every store that ingest and dequeue make: nothing is lost,
nothing doubled, everything on disk is whole. Real processes, real files; Kafka is a journal file.
"""

from __future__ import annotations

from pathlib import Path

from tests.crash.engine_cases import (
    PRECISION_MS,
    Case,
    CaseShard,
    Server,
    Steps,
    append_step,
)
from tests.crash.kill_cases import batches, cases, each_store, finish


@each_store
def test_both_killed_together_at_every_store(
    server: Server, template: Case, tmp_path: Path, step: int
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
    for number, case in cases(template, tmp_path, step):
        ended = server.run(case, steps, number)
        case.now_ms += 10 * PRECISION_MS
        finish(case, CaseShard(case), new)
        if ended["code"] == 0:
            break
    assert number > ended["stores"] >= 100


@each_store
def test_ingest_killed_at_every_store_while_dequeue_lives(
    server: Server, template: Case, tmp_path: Path, step: int
) -> None:
    new = batches(template, 3)
    steps: Steps = [["start_ingest"], append_step(new[0]), append_step(new[1])]
    for number, case in cases(template, tmp_path, step):
        world = CaseShard(case)
        world.shard.start_dequeue()
        ended = server.run(case, steps, number)
        world.clock.sleep(PRECISION_MS / 1000)
        world.drain()
        finish(case, world, new)
        if ended["code"] == 0:
            break
    assert number > ended["stores"] >= 30


@each_store
def test_dequeue_killed_at_every_store_while_ingest_lives(
    server: Server, template: Case, tmp_path: Path, step: int
) -> None:
    new = batches(template, 3)
    steps: Steps = [
        ["start_dequeue"],
        ["pass_time", PRECISION_MS, 10],
        ["pass_time", 2 * PRECISION_MS, 10],
    ]
    for number, case in cases(template, tmp_path, step):
        world = CaseShard(case)
        world.shard.start_ingest()
        world.append(new[0])
        ended = server.run(case, steps, number)
        world.append(new[1])
        world.clock.sleep(4 * PRECISION_MS / 1000)
        finish(case, world, new)
        if ended["code"] == 0:
            break
    assert number > ended["stores"] >= 30
