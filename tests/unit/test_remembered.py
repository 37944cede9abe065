"""How many cancels that are over are remembered, and what is said of what others have left out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from tests.unit.test_cancels import NOW_MS, PRECISION_MS, World, cancel

from duewheel.schemas.columns import binary
from duewheel.testing import Timer
from duewheel.wheel.cancel_log import CancelRows
from duewheel.wheel.data_directory import Role
from duewheel.wheel.layout import HOUR_MS
from duewheel.wheel.remembered import Remembered
from duewheel.wheel.tombstones import NOTHING, Tombstones


def cancels(*last: int) -> Tombstones:
    """Some that are over, each with a hash of its own."""
    count = np.arange(len(last))
    rows = CancelRows(
        topic=count.astype(np.int32),
        partition=count.astype(np.int32),
        offset=count,
        id_hash=count,
        timer_id=binary([b"id"] * len(last)),
        hour=count,
        position=count,
        size=count,
        again=count < 0,
    )
    return replace(Tombstones.known(rows, rows.partition, 0), last=np.array(last))


def all_of(remembered: Remembered) -> list[int]:
    return sorted(remembered.near(np.ones(1 << 16, np.bool_)).last.tolist())


def test_those_whose_rows_would_have_left_first_are_forgotten() -> None:
    remembered = Remembered(4, PRECISION_MS)
    remembered.add(cancels(5, 9, 6, 8))
    assert (len(remembered), remembered.unknown_to, remembered.forgotten) == (4, NOTHING, 0)
    remembered.add(cancels(7))
    assert (all_of(remembered), remembered.unknown_to, remembered.forgotten) == ([7, 8, 9], 6, 2)
    remembered.add(cancels(6, 3, 10))
    assert (all_of(remembered), remembered.unknown_to) == ([7, 8, 9, 10], 6), "none of these helps"
    assert remembered.forgotten == 4


def test_of_those_of_one_slot_all_are_forgotten() -> None:
    remembered = Remembered(4, PRECISION_MS)
    remembered.add(cancels(7, 7, 7, 7, 8))
    assert (all_of(remembered), remembered.unknown_to) == ([8], 7)
    one = Remembered(1, PRECISION_MS)
    one.add(cancels(3, 4))
    assert (len(one), one.unknown_to) == (0, 4)


def test_none_is_remembered_longer_than_the_log_of_its_rows() -> None:
    remembered, slots = Remembered(4, PRECISION_MS), HOUR_MS // PRECISION_MS
    remembered.add(cancels(slots - 1, slots))
    remembered.forget_below(1)
    assert all_of(remembered) == [slots]
    assert (remembered.unknown_to, remembered.forgotten) == (NOTHING, 0)


def timer(offset: int, slot: int, name: bytes) -> Timer:
    return Timer(0, offset, NOW_MS + slot * PRECISION_MS, timer_id=name)


def with_cancelled(world: World) -> None:
    """Three timers that cancels have left out, in slots 5, 6 and 7, and one in each that left."""
    names = [b"a", b"b", b"c"]
    world.append(*[timer(n, 5 + n, name) for n, name in enumerate(names)])
    world.append(*[timer(3 + n, 5 + n, b"other " + name) for n, name in enumerate(names)])
    # There may be no room for all three at once.
    for n, name in enumerate(names):
        world.append(cancel(6 + n, timer_id=name))
        world.at_slot(4 + n)
    world.at_slot(9)
    assert world.sources() == [f"timers-0@{offset}" for offset in (3, 4, 5)]
    assert [word for _, word in world.answers()] == ["cancelled"] * 3


def asked_again(world: World) -> list[str]:
    """What the timers' ids are told, in the order of their slots; first those left out."""
    names = [prefix + name for prefix in (b"", b"other ") for name in (b"a", b"b", b"c")]
    begin = len(world.answers())
    for n, name in enumerate(names):
        world.append(cancel(9 + begin + n, timer_id=name))
        world.clock.sleep(0.2)
        world.drain()
    return [word for _, word in world.answers()[begin:]]


def test_nothing_that_a_forgotten_cancel_has_left_out_counts_as_delivered(tmp_path: Path) -> None:
    world = World(tmp_path / "data", cancels_max=2)
    with_cancelled(world)
    assert world.known() == (0, 1)
    assert world.shard.dequeue is not None
    assert world.shard.dequeue.statistics.cancels.forgotten == 2
    assert asked_again(world) == ["unknown"] * 5 + ["already_delivered"]


def test_as_many_as_fit_are_remembered_at_a_start(tmp_path: Path) -> None:
    world = World(tmp_path / "data", cancels_max=3)
    with_cancelled(world)
    world.clock.sleep(6)
    world.drain()
    assert world.progress() == (None, 9)
    world.restart(Role.DEQUEUE)
    world.drain()
    assert world.known() == (0, 3)
    world.append(cancel(9, timer_id=b"a"), cancel(10, timer_id=b"other a"))
    world.clock.sleep(0.2)
    world.drain()
    assert [word for _, word in world.answers()[3:]] == ["unknown", "already_delivered"]


def test_a_start_that_finds_more_says_unknown_of_all_that_had_left(tmp_path: Path) -> None:
    world = World(tmp_path / "data", cancels_max=2)
    with_cancelled(world)
    world.clock.sleep(6)
    world.drain()
    world.restart(Role.DEQUEUE)
    world.drain()
    assert world.known() == (0, 0)
    assert asked_again(world) == ["unknown"] * 6
    slot = (world.clock.now_ms() - NOW_MS) // PRECISION_MS + 9
    world.append(timer(90, slot, b"later"))
    world.at_slot(slot)
    world.append(cancel(91, timer_id=b"later"))
    world.at_slot(slot + 9)
    assert world.answers()[-1] == ("timers-0@91", "already_delivered")
