"""The queue of a target with a rate, in the progress of a loop on real files."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from tests.harness.local_world import PRECISION_MS, LocalWorld, ring

from duewheel.checkpoints.role import Role
from duewheel.schemas.batches import ANY_TIME, Deliveries
from duewheel.wheel.policies.policy import returning
from duewheel.wheel.policies.rate import Rate

GAP_MS = 600
TARGET = "orders"


def rated(path: Path) -> LocalWorld:
    """Four timers of one slot, each in a chunk of its own, beside one of another target; the first
    leaves at once.
    """
    rate = Rate({TARGET: 1_000 / GAP_MS})
    world = LocalWorld(path, ring(1_024), chunk_records=2, policies=(rate,))
    world.put(*[PRECISION_MS] * 8)
    return world


def turns(world: LocalWorld) -> list[int]:
    """The turns that were given in committed transactions."""
    some = [found for found, _ in world.publisher.committed if isinstance(found, Deliveries)]
    given = [turn for found in some for turn in found.turn_ms[returning(found)].tolist()]
    assert ANY_TIME not in given
    return given


def test_the_queue_in_a_progress_is_that_of_its_own_chunk(tmp_path: Path) -> None:
    world = rated(tmp_path / "data")
    world.at_slot(1)
    tails = [
        progress.queues[TARGET].tail_ms
        for found, progress in world.publisher.committed
        if found is not None and len(found) and returning(found).any()
    ]
    assert tails == turns(world), "no queue is ahead of the copies beside it"


@pytest.mark.parametrize("ticks", [1, 2, 3])
def test_a_kill_leaves_no_gap_between_turns(tmp_path: Path, ticks: int) -> None:
    world = rated(tmp_path / "data")
    world.at_slot(1, ticks)
    world.shard.kill(Role.DEQUEUE)
    world.shard.start_dequeue()
    world.at_slot(1)
    given = turns(world)
    assert len(given) == len(set(given)) == 3
    assert [b - a for a, b in itertools.pairwise(given)] == [GAP_MS] * 2
