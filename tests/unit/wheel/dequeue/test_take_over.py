"""Two instances of a shard: the later start gets it, however the two get in each other's way."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.harness.local_world import fated
from tests.harness.recovery_world import RecoveryWorld, half_delivered

from duewheel.checkpoints.process_role import Role
from duewheel.checkpoints.progress import Progress
from duewheel.errors import Displaced, Fenced


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


def displaced() -> str:
    raise Displaced("another producer has the transactional id")


def test_an_owner_waits_for_the_claim_of_the_instance_that_takes_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not take the id back meanwhile: on a busy host the other would never own the shard.
    Nor afterwards: that would fence the new owner, whose next transaction would be in doubt.
    """
    world = RecoveryWorld(tmp_path, monkeypatch, chunk_records=1)
    half_delivered(world)
    second = world.beside(tmp_path / "other")
    sleep, start = world.clock.sleep, world.publisher.start
    slept, starts = list[float](), list[int]()

    def started() -> Progress | None:
        assert len(starts) < 9, "it takes the id back without a wait, again and again"
        starts.append(len(slept))
        return start()

    def claimed_in_the_second_wait(seconds: float) -> None:
        sleep(seconds)
        slept.append(seconds)
        if len(slept) == 2:
            with fated(world.publisher, lambda: "commit"):
                second.start_dequeue(take_over=True)

    monkeypatch.setattr(world.publisher, "start", started)
    monkeypatch.setattr(world.clock, "sleep", claimed_in_the_second_wait)
    with (
        fated(world.publisher, displaced),
        pytest.raises(Fenced, match="now belongs to the data directory"),
    ):
        world.at_slot(9)
    assert (len(slept), starts) == (2, [2]), "the second one's"
    world.kill()
    second.kill(Role.DEQUEUE)


@pytest.mark.parametrize("quiet_s", [0, 600])
def test_an_owner_takes_the_id_back_from_one_that_never_claims(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quiet_s: int
) -> None:
    """Each time it waits longer, so that the slowest claim comes through in the end. Long after the
    last time it does not: a process of months would pause for longer at each time-out.
    """
    world = RecoveryWorld(tmp_path, monkeypatch, chunk_records=1)
    half_delivered(world)
    world.write(1, 6)
    world.ingest()
    begun_ms = list[int]()

    def fate() -> str:
        begun_ms.append(world.clock.true_ms)
        return displaced() if len(begun_ms) % 2 else "commit"

    with fated(world.publisher, fate):
        for slot in (7, 8, 9, 10):
            if slot == 10:
                world.clock.sleep(quiet_s)
            world.write(1, slot)
            world.ingest()
            world.at_slot(slot, ticks=1)
    waits = [back - taken for taken, back in zip(begun_ms[::2], begun_ms[1::2], strict=False)]
    assert waits[0] >= 1_000 and waits[2] >= 4_000
    assert sorted(waits[:3]) == waits[:3]
    assert waits[3] >= 8_000 if not quiet_s else waits[3] <= 2_000
    world.finish()
