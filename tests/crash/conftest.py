"""The processes and the data directory that every test of killed engines begins with."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest
from tests.crash.engine_cases import (
    HISTORY_MS,
    PARTITIONS,
    PRECISION_MS,
    START_MS,
    Case,
    CaseShard,
    Server,
    some_timers,
)
from tests.harness.timer_rows import TIMER_TOPIC, TimerRow


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
