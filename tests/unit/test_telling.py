"""How soon cancels are told, and what, though others wait, there are many, or files are damaged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.unit.test_cancels import NOW_MS, P0, P1, PRECISION_MS, World, cancel, timer

from duewheel.errors import KafkaUnavailable, RecoveryPending
from duewheel.schemas.timers import TopicPartition
from duewheel.wheel.cancel_log import FOLDER, CancelLog
from duewheel.wheel.data_directory import Role
from duewheel.wheel.layout import RECORD_BYTES

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


def damage(world: World, first: int = 0) -> None:
    (messages,) = (world.path / "messages").iterdir()
    data = bytearray(messages.read_bytes())
    data[first:] = bytes(byte ^ 0x40 for byte in data[first:])
    messages.write_bytes(bytes(data))


def test_damage_to_what_has_left_costs_a_cancel_its_answer_and_nobody_else_anything(
    make_world: MakeWorld,
) -> None:
    world = make_world()
    world.append(timer(0, 5), replace(timer(1, 5), timer_id=b"b"))
    world.at_slot(9)
    damage(world)
    world.append(replace(timer(2, 5), timer_id=b"b"))
    world.at_slot(10)
    world.append(cancel(3), cancel(4, timer_id=b"b"), replace(timer(5, 12), timer_id=b"c"))
    world.at_slot(20)
    assert world.sources()[-1] == "timers-0@5"
    assert world.answers() == [("timers-0@3", "unknown"), ("timers-0@4", "unknown")]


def test_damage_to_what_is_pending_is_noticed(make_world: MakeWorld) -> None:
    world = make_world()
    world.append(timer(0, 30))
    damage(world)
    world.append(cancel(1))
    with pytest.raises(RecoveryPending, match="does not match its checksum"):
        world.at_slot(9)


def test_what_is_pending_is_found_beside_what_has_left_and_is_damaged(
    make_world: MakeWorld,
) -> None:
    world = make_world()
    world.append(timer(0, 30))
    (messages,) = (world.path / "messages").iterdir()
    size = messages.stat().st_size
    world.append(timer(1, 5))
    world.at_slot(9)
    damage(world, size)
    world.append(cancel(2))
    world.at_slot(10)
    assert world.answers() == [("timers-0@2", "cancelled")]


def test_what_left_before_a_restart_is_already_delivered(make_world: MakeWorld) -> None:
    world = make_world()
    world.append(timer(0, 5), cancel(1), timer(2, 5), replace(timer(3, 5), timer_id=b"b"))
    world.at_slot(9)
    world.restart(*Role)
    world.append(cancel(4), cancel(5, timer_id=b"b"), cancel(6, timer_id=b"b"))
    world.at_slot(10)
    told = [
        ("timers-0@1", "cancelled"),
        *((f"timers-0@{o}", "already_delivered") for o in (4, 5, 6)),
    ]
    assert world.answers() == told


def test_what_left_a_half_delivered_slot_before_a_restart(make_world: MakeWorld) -> None:
    world = make_world(chunk_records=1)
    world.append(timer(0, 5), replace(timer(1, 5), timer_id=b"b"))
    world.clock.sleep(0.05)
    assert world.shard.dequeue is not None
    assert world.shard.dequeue.tick()
    world.restart(Role.DEQUEUE)
    assert world.sources() == ["timers-0@0"]
    world.append(cancel(2), cancel(3, timer_id=b"b"))
    world.at_slot(9)
    assert world.sources() == ["timers-0@0", "timers-0@1"]
    assert world.answers() == [(f"timers-0@{o}", "already_delivered") for o in (2, 3)]


def with_a_cancel_that_is_over(world: World) -> None:
    """And a progress that says so."""
    world.append(timer(0, 5), cancel(1))
    world.at_slot(9)
    world.clock.sleep(6)
    world.drain()
    assert world.progress() == (None, 2)


def test_what_was_cancelled_before_a_restart_was_not_delivered(make_world: MakeWorld) -> None:
    world = make_world()
    with_a_cancel_that_is_over(world)
    world.restart(Role.DEQUEUE)
    world.drain()
    assert world.known() == (0, 1), "remembered, and not looked up again"
    world.append(cancel(2))
    world.at_slot(1_000)
    assert world.answers()[1:] == [("timers-0@2", "unknown")]


def test_what_a_cancel_may_have_left_out_that_is_cut_off_was_not_delivered(
    make_world: MakeWorld,
) -> None:
    world = make_world()
    with_a_cancel_that_is_over(world)
    for role in Role:
        world.shard.kill(role)
    cancels, (segment,) = CancelLog(world.path), (world.path / FOLDER).iterdir()
    (hour,) = cancels.files.hours()
    assert segment.stat().st_size == RECORD_BYTES
    cancels.cut(hour, np.zeros(1, np.int64))
    cancels.close()
    world.restart(*Role)
    world.append(cancel(2))
    world.at_slot(1_000)
    assert world.answers()[1:] == [("timers-0@2", "unknown")]


def test_what_was_rolled_before_a_restart_was_not_delivered(make_world: MakeWorld) -> None:
    world = make_world()
    world.append(replace(timer(0, 200), timestamp_ms=world.clock.now_ms()))
    world.at_slot(64)
    assert world.sources() == ["timers-0@0"], "to the timer topic, and from there nowhere"
    world.restart(Role.DEQUEUE)
    world.append(cancel(1))
    world.at_slot(70)
    assert world.answers() == [("timers-0@1", "unknown")]


def test_k_waits_for_answers_that_are_still_to_be_given(make_world: MakeWorld) -> None:
    """One in each transaction; what is read again from K must be told the rest."""
    world, count = make_world(chunk_records=1), 5
    world.append(*[cancel(offset, timer_id=b"nobody %d" % offset) for offset in range(count)])
    told = []
    for slot in range(2, 20):
        world.clock.set(NOW_MS + slot * PRECISION_MS)
        assert world.shard.dequeue is not None
        world.shard.dequeue.tick()
        told.append(world.progress())
    assert [k for k, a in told if 0 < a < count] == [a for _, a in told if 0 < a < count]
    assert {a for _, a in told} == set(range(1, count + 1))
