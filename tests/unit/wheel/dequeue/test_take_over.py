"""Two instances of a shard: the later start gets it, however the two get in each other's way."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.harness.local_world import fated
from tests.harness.recovery_world import RecoveryWorld, half_delivered

from duewheel.checkpoints.role import Role
from duewheel.errors import Fenced


@pytest.mark.parametrize("empty", [True, False])
@pytest.mark.parametrize("rounds", [0, 1, 4])
def test_an_owner_that_goes_on_is_overcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty: bool, rounds: int
) -> None:
    """It takes the transactional id back before the other could say that the shard is its own."""
    world = RecoveryWorld(tmp_path, monkeypatch, chunk_records=1)
    half_delivered(world)
    world.write(1, 6)
    world.ingest()
    other = tmp_path / "other"
    if not empty:
        shutil.copytree(world.path, other)
    second = world.beside(other)
    incarnations, left = [], rounds

    def taken_back() -> str:
        nonlocal left
        if not left:
            return "commit"
        left -= 1
        incarnations.append(second.directory(Role.DEQUEUE).state.incarnations[1])
        with fated(world.publisher, lambda: "commit"):
            world.at_slot(12 + rounds, ticks=1)
        return "lose"

    with fated(world.publisher, taken_back):
        second.start_dequeue(take_over=True)
    assert len(set(incarnations)) == rounds
    # The first one is fenced at its next transaction, and reads why.
    with (
        fated(world.publisher, lambda: "lose"),
        pytest.raises(Fenced, match="now belongs to the data directory"),
    ):
        world.at_slot(14 + rounds)
    world.kill()
    second.start_ingest()
    world.shard = second
    world.finish()
