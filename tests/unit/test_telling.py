"""How soon cancels are told, though others have to wait, or there are many."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from tests.unit.test_cancels import P0, P1, World, cancel

from duewheel.errors import KafkaUnavailable
from duewheel.schemas.timers import TopicPartition

MakeWorld = Callable[..., World]


@pytest.fixture
def make_world(tmp_path: Path) -> MakeWorld:
    return lambda **settings: World(tmp_path / "data", **settings)


def test_a_turn_goes_on_while_answers_wait(make_world: MakeWorld) -> None:
    """Else a thousand a slot would be all that leaves."""
    world, count = make_world(), 3_000
    world.append(*[cancel(o, timer_id=b"id-%d" % o) for o in range(count)])
    world.at_slot(1)
    world.drain()
    assert len(world.answers()) == count


def test_a_partition_whose_end_nobody_tells_does_not_hold_up_the_others(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, asked = make_world(), list[set[TopicPartition]]()

    def log_ends(partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        asked.append(set(partitions))
        if P1 in partitions:
            raise KafkaUnavailable("no leader")
        return dict.fromkeys(partitions, 0)

    monkeypatch.setattr(world.publisher, "log_ends", log_ends)
    world.append(cancel(0, partition=1))
    world.at_slot(1)
    world.append(cancel(0))
    for slot in (2, 50, 100, 200):
        world.at_slot(slot)
    assert world.answers() == [("timers-0@0", "unknown")]
    assert asked == [{P1}, {P0}], "the other one is left alone for ten seconds"
    world.append(cancel(1))
    world.at_slot(1_200)
    assert asked[2:] == [{P0}, {P1}], "and then has a request of its own"
    assert world.answers()[1:] == [("timers-0@1", "unknown")]
