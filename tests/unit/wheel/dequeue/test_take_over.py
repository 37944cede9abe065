"""Two instances of a shard: the later start gets it, however the two get in each other's way."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.harness.recovery_world import RecoveryWorld, half_delivered

from duewheel.checkpoints.progress import Progress
from duewheel.errors import Fenced, PublishDoubt
from duewheel.wheel.publisher_protocol import Prepared


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
    publish, incarnations, left = world.publisher.publish, [], rounds

    def taken_back(prepared: Prepared | None, progress: Progress) -> int | None:
        nonlocal left
        if not left:
            return publish(prepared, progress)
        left -= 1
        incarnations.append(progress.incarnation)
        with monkeypatch.context() as undone:
            undone.setattr(world.publisher, "publish", publish)
            world.at_slot(12 + rounds, ticks=1)
        raise PublishDoubt("fenced")

    monkeypatch.setattr(world.publisher, "publish", taken_back)
    second.start_dequeue(take_over=True)
    monkeypatch.setattr(world.publisher, "publish", publish)
    assert len(set(incarnations)) == rounds
    # The first one is fenced at its next transaction, and reads why.
    with monkeypatch.context() as patch:
        patch.setattr(world.publisher, "fate", lambda: "lose")
        with pytest.raises(Fenced, match="now belongs to the data directory"):
            world.at_slot(14 + rounds)
    world.kill()
    second.start_ingest()
    world.shard = second
    world.finish()
