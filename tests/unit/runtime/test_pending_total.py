"""The number of pending timers, as metrics and `duewheel status` have it, over a start that has
lost its newest files.
"""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from tests.harness.recovery_world import RecoveryWorld

from duewheel.checkpoints.process_role import Role
from duewheel.runtime.shard_facts import ShardFacts
from duewheel.wheel.inspect.pending_counts import PendingTimers

LEFT, WAITING, LATER = 100, 5, 7


def facts(world: RecoveryWorld) -> tuple[int | None, int]:
    """How many timers are pending, and delivered."""
    directory = world.shard.directory(Role.DEQUEUE)
    found = ShardFacts(
        directory.state, world.clock.now_ms(), lambda: PendingTimers(directory).count().total
    )
    return found.pending, found.delivered


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RecoveryWorld:
    """It has delivered some of its timers; others are due later."""
    world = RecoveryWorld(tmp_path, monkeypatch)
    world.write(0, *[1] * LEFT, *[900] * WAITING)
    world.ingest()
    world.at_slot(10)
    assert facts(world) == (WAITING, LEFT)
    return world


def test_the_count_holds_from_the_start_on_after_a_kill(world: RecoveryWorld) -> None:
    world.kill()
    world.shard.start_dequeue()
    assert facts(world) == (WAITING, LEFT)
    world.shard.start_ingest()
    world.at_slot(11)
    assert facts(world) == (WAITING, LEFT)


def test_no_timer_that_has_left_counts_as_pending_after_a_loss_of_power(
    world: RecoveryWorld,
) -> None:
    disk = world.checkpoint()
    world.write(0, *[900] * LATER)
    world.ingest()
    world.become(disk)
    world.boot = str(uuid.uuid4())
    world.shard.start_dequeue()
    assert facts(world)[0] is None, "the files may be damaged"
    world.shard.start_ingest()
    assert facts(world)[0] == WAITING, "those that the files have"
    world.at_slot(12)
    assert facts(world)[0] == WAITING, "later ones are not read again yet"
    world.ingest()
    world.at_slot(13)
    assert facts(world) == (WAITING + LATER, LEFT)
    world.finish()
