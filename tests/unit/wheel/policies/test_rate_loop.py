"""The queue of a target with a rate, in a loop on real files."""

from __future__ import annotations

from pathlib import Path

from tests.harness.local_world import PRECISION_MS, LocalWorld, ring

from duewheel.checkpoints.process_role import Role
from duewheel.checkpoints.progress import Progress
from duewheel.schemas.batches import Deliveries
from duewheel.wheel.policies.policy import returning
from duewheel.wheel.policies.rate import Rate

GAP_MS = 1_000
TARGET = "orders"


def turns(world: LocalWorld) -> list[int]:
    """The turns that were given in committed transactions."""
    some = [found for found, _ in world.publisher.committed if isinstance(found, Deliveries)]
    return [turn for found in some for turn in found.not_before_ms[returning(found)].tolist()]


def test_after_a_kill_new_turns_come_after_all_earlier_ones(tmp_path: Path) -> None:
    rate = Rate({TARGET: 1_000 / GAP_MS})
    world = LocalWorld(tmp_path / "data", ring(1_024), chunk_records=2, policies=(rate,))
    world.put(*[PRECISION_MS] * 6)
    world.at_slot(1)
    before = turns(world)
    assert len(before) == 2, "one leaves at once, and three are for another target"
    progress = world.publisher.committed[-1][1]
    assert Progress.decode(progress.encode()).charged_ms == {TARGET: before[-1]}
    world.shard.kill(Role.DEQUEUE)
    world.shard.start_dequeue()
    world.put(*[2 * PRECISION_MS] * 4)
    world.at_slot(2)
    assert turns(world) == [*before, before[-1] + GAP_MS, before[-1] + 2 * GAP_MS]
