"""How many cancels are taken while others are in memory, and that nobody waits for ever."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tests.unit.test_cancels import NOW_MS, P0, P1, PRECISION_MS, World

from duewheel.schemas.timers import TopicPartition
from duewheel.testing import LocalShard, Timer
from duewheel.wheel.bringing_again import brought_again
from duewheel.wheel.data_directory import Role
from duewheel.wheel.dequeue_config import DequeueConfig
from duewheel.wheel.engine import Appended


def timer(offset: int, slot: int, name: str, partition: int = 0, **more: Any) -> Timer:
    due_ms = NOW_MS + slot * PRECISION_MS
    return Timer(partition, offset, due_ms, timer_id=name.encode(), **more)


def cancel(offset: int, name: str, partition: int = 0) -> Timer:
    return Timer(partition, offset, 0, timer_id=name.encode(), request="cancel")


def of_two(path: Path, **settings: Any) -> World:
    """Of three timers two are cancelled, and no more may be."""
    world = World(path / "data", cancels_max=2, **settings)
    world.append(timer(0, 20, "a"), timer(1, 40, "b"), timer(2, 50, "c"))
    world.append(cancel(3, "a"), cancel(4, "b"))
    world.at_slot(1)
    return world


def given_up(world: World) -> int:
    assert world.shard.dequeue is not None
    return world.shard.dequeue.statistics.cancels.given_up


ROWS = [
    timer(5, 21, "d"),
    cancel(6, "c"),
    timer(7, 22, "e"),
    timer(0, 21, "f", partition=1),
    timer(1, 22, "g", partition=1),
]
ENDS = {P0: 8, P1: 2}


def test_beyond_as_many_the_rest_of_the_partition_waits_and_others_go_on(tmp_path: Path) -> None:
    world = of_two(tmp_path)
    assert world.shard.append(ROWS, ENDS) == Appended(3, cancels_full=True)
    assert world.engine.marks == {P0: 6, P1: 2}
    assert world.shard.append(ROWS, ENDS) == Appended(0, cancels_full=True)
    world.at_slot(19)
    assert world.shard.append(ROWS, ENDS) == Appended(0, cancels_full=True)
    world.at_slot(22)
    assert world.shard.append(ROWS, ENDS) == Appended(1)
    world.at_slot(60)
    offsets = [f"timers-0@{n}" for n in (5, 7)] + [f"timers-1@{n}" for n in (0, 1)]
    assert sorted(world.sources()) == offsets
    assert [word for _, word in world.answers()] == ["cancelled"] * 3


def test_those_on_their_way_to_memory_count(tmp_path: Path) -> None:
    """Nothing is closed meanwhile, so dequeue knows of none of them."""
    world = World(tmp_path / "data", cancels_max=3)
    rows = [cancel(0, "a"), timer(1, 30, "b", request="reschedule")]
    assert world.shard.append(rows, {P0: 2}) == Appended(1)
    more = [timer(2, 30, "c"), cancel(3, "c"), cancel(4, "d"), timer(5, 30, "e")]
    assert world.shard.append(more, {P0: 6}) == Appended(1, cancels_full=True)
    assert world.engine.marks[P0] == 4
    world.shard.kill(Role.DEQUEUE)
    assert world.shard.append(more, {P0: 6}).cancels_full
    world.restart(Role.INGEST)
    assert world.shard.append(more, {P0: 6}).cancels_full
    world.restart(Role.DEQUEUE)
    world.at_slot(2)
    assert world.shard.append(more, {P0: 6}) == Appended(1)


def test_what_meets_nothing_goes_at_once(tmp_path: Path) -> None:
    world = World(tmp_path / "data", cancels_max=2)
    for first in range(0, 40, 2):
        rows = [cancel(first + n, "nothing") for n in range(2)]
        assert world.shard.append(rows, {P0: first + 2}) == Appended(0)
        world.at_slot(first // 2 + 1)
    assert [word for _, word in world.answers()] == ["unknown"] * 40
    assert (world.known(), given_up(world)) == ((0, 0), 0)


@pytest.mark.parametrize("replies", [{}, {"reply_topic": None}])
def test_what_waits_for_ingest_does_not_keep_it_waiting(
    tmp_path: Path, replies: dict[str, None]
) -> None:
    """The partition ends far behind: copies that none of them has met may lie before its end."""
    world = World(tmp_path / "data", cancels_max=2, progress_interval_ms=PRECISION_MS, **replies)
    world.publisher.ends = {P0: 31}
    for first in range(0, 30, 2):
        rows = [cancel(first, "nothing"), cancel(first + 1, "nothing")]
        assert world.shard.append(rows, {P0: first + 2}) == Appended(0)
        world.at_slot(first + 1)
        world.at_slot(first + 2)
    assert [word for _, word in world.answers()] == ["unknown"] * (0 if replies else 30)
    assert (world.known(), given_up(world)) == ((0, 0), 0 if replies else 30)
    assert world.progress()[0] == 0, "a copy of any of them may still come"
    world.append(timer(30, 90, "later"))
    world.at_slot(700)
    assert world.progress()[0] is None


def test_while_there_is_room_nobody_is_told_before_it_is_certain(tmp_path: Path) -> None:
    world = World(tmp_path / "data", cancels_max=3)
    world.append(timer(0, 5, "a"))
    world.at_slot(9)
    world.publisher.ends = {P0: 4}
    world.append(cancel(1, "a"), cancel(2, "b"))
    world.at_slot(12)
    assert (world.answers(), given_up(world)) == ([], 0)
    world.append(timer(3, 50, "c"))
    world.at_slot(14)
    assert [word for _, word in world.answers()] == ["already_delivered", "unknown"]


def test_what_is_pending_is_told_though_there_is_no_room(tmp_path: Path) -> None:
    world = World(tmp_path / "data", cancels_max=1)
    world.append(timer(0, 30, "a"))
    world.publisher.ends = {P0: 99}
    world.append(cancel(1, "a"))
    world.at_slot(2)
    assert (world.answers(), given_up(world)) == ([("timers-0@1", "cancelled")], 0)


class Later(Executor):
    """Does what it is given when it is told to."""

    given: ClassVar[list[Callable[[], None]]] = []

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.given.append(lambda: future.set_result(fn(*args, **kwargs)))
        return future


def test_what_was_not_looked_for_yet_is_not_given_up(tmp_path: Path) -> None:
    Later.given.clear()
    world = World(tmp_path / "data", cancels_max=1, executor=Later)
    world.publisher.ends = {P0: 99}
    world.append(timer(0, 90, "a"), cancel(1, "a"))
    world.at_slot(5)
    assert (world.answers(), given_up(world)) == ([], 0)
    Later.given.pop()()
    world.at_slot(6)
    assert (world.answers(), given_up(world)) == ([("timers-0@1", "cancelled")], 0)


def test_what_waits_for_a_lookup_alone_is_not_given_up(tmp_path: Path) -> None:
    Later.given.clear()
    world = World(tmp_path / "data", cancels_max=2, executor=Later)
    world.append(timer(0, 5, "a"))
    world.at_slot(9)
    world.publisher.ends = {P0: 3}
    world.append(cancel(1, "a"))
    world.at_slot(12)
    Later.given.pop()()
    world.at_slot(13)
    assert world.answers() == []
    world.append(cancel(2, "a"))
    world.at_slot(14)
    assert world.known()[0] == 2, "there is no room"
    while Later.given:
        Later.given.pop()()
        world.drain()
    assert [word for _, word in world.answers()] == ["already_delivered"] * 2
    assert given_up(world) == 0


def test_copies_behind_a_held_cancel_come_in_and_bring_theirs(tmp_path: Path) -> None:
    """Both waits end: the cancel's when slots are delivered, the copy's behind it."""
    world = World(tmp_path / "data", cancels_max=1)
    world.append(timer(0, 200, "rolled", timestamp_ms=NOW_MS), timer(1, 90, "met"))
    world.append(cancel(2, "met"))
    world.at_slot(64)
    assert world.sources() == ["timers-0@0"], "it has been rolled"
    world.publisher.ends = {P0: 6}
    stamp_ms = world.clock.now_ms()
    rest = [
        cancel(3, "rolled"),
        cancel(4, "nothing"),
        timer(5, 200, "rolled", origin=0, timestamp_ms=stamp_ms),
    ]
    taken = []
    for slot in range(65, 100):
        appended = world.shard.append(rest, {P0: 6})
        taken.append(world.engine.marks[P0])
        assert appended.cancels_full == (taken[-1] < 6)
        world.at_slot(slot)
    assert taken[0] == 3, "the first one waits for the timer of another"
    assert taken[-1] == 6
    world.at_slot(300)
    assert world.sources() == ["timers-0@0"], "the roll, and nothing else"
    assert world.known()[0] == 0
    words = [word for _, word in world.answers()]
    assert words == ["cancelled", "unknown", "unknown"], "nobody knows of the copy on its way"


def in_flight(world: World, count: int) -> list[Timer]:
    """Timers that have been rolled, and cancelled since: their copies lie behind the cancels."""
    names = [f"rolled {n}" for n in range(count)]
    world.append(*[timer(n, 200, name, timestamp_ms=NOW_MS) for n, name in enumerate(names)])
    world.at_slot(64)
    assert len(world.sources()) == count
    world.publisher.ends = {P0: 3 * count + 2}
    for n, name in enumerate(names):
        assert not world.shard.append([cancel(count + n, name)], {P0: count + n + 1}).cancels_full
        world.at_slot(66 + 2 * n)
    assert world.known()[0] == 0, "all are told, and forgotten"
    stamp_ms = world.clock.now_ms()
    return [
        timer(2 * count + n, 200, name, origin=n, timestamp_ms=stamp_ms)
        for n, name in enumerate(names)
    ]


def test_copies_that_bring_cancels_wait_for_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path / "data", cancels_max=1)
    copies, looked = in_flight(world, 3), list[int]()

    def counted(*args: Any) -> Any:
        looked.append(len(args[2]))
        return brought_again(*args)

    monkeypatch.setattr("duewheel.wheel.cancel_room.brought_again", counted)
    rows = [
        copies[0],
        timer(7, 150, "other"),
        *[replace(c, offset=c.offset + 1) for c in copies[1:]],
    ]
    for _ in range(3):
        world.shard.append(rows, {P0: 10})
        assert world.engine.marks[P0] == 8, "the first, and what no cancel meets"
    assert looked == [3], "copies are looked for once while there is no room"
    world.at_slot(190)
    assert world.shard.append(rows, {P0: 10}).cancels_full
    for slot in (201, 300, 400):
        world.at_slot(slot)
        world.shard.append(rows, {P0: 10})
    assert world.engine.marks[P0] == 10
    world.at_slot(700)
    assert world.sources()[3:] == ["timers-0@7"]
    assert world.known()[0] == 0


def in_another_place(world: World, path: Path) -> LocalShard:
    """The directory is lost, or another one takes the shard over."""
    world.lose_files(path / "other", {P0: 0, P1: 0})
    return world.shard


def test_what_comes_again_after_a_loss_is_taken(tmp_path: Path) -> None:
    world = of_two(tmp_path)
    world.config = replace(world.config, cancels_max=1)
    other = in_another_place(world, tmp_path)
    again = [timer(0, 20, "a"), timer(1, 40, "b"), timer(2, 50, "c")]
    again += [cancel(3, "a"), cancel(4, "b")]
    assert other.append(again, {P0: 5}) == Appended(3)
    world.at_slot(2)
    assert other.append(ROWS, ENDS) == Appended(3, cancels_full=True)
    world.at_slot(42)
    assert other.append(ROWS, ENDS) == Appended(1)
    world.at_slot(80)
    assert sorted(world.sources())[:2] == ["timers-0@5", "timers-0@7"]


def test_what_is_read_again_counts(tmp_path: Path) -> None:
    """Until dequeue has read it, it counts as being in memory."""
    world = World(tmp_path / "data", cancels_max=1)
    rows = [cancel(0, "over"), cancel(1, "over"), timer(2, 50, "a"), cancel(3, "a")]
    for row in rows:
        world.append(row)
        world.at_slot(row.offset + 1)
    assert (world.known()[0], world.progress()[0]) == (1, 3)
    for role in Role:
        world.shard.kill(role)
    next((world.path / "messages").iterdir()).unlink()
    world.shard.offsets_at = lambda _: {P0: 2, P1: 0}
    world.shard.start_dequeue()
    world.engine = world.shard.start_ingest()
    assert world.engine.marks[P0] == 2
    world.append(*rows[2:])
    assert world.shard.append([cancel(4, "b")], {P0: 5}).cancels_full
    world.at_slot(60)
    assert not world.shard.append([cancel(4, "b")], {P0: 5}).cancels_full


@pytest.mark.parametrize("roles", [tuple(Role), (Role.DEQUEUE,), (Role.INGEST,)])
def test_what_restarts_goes_on_counting(tmp_path: Path, roles: tuple[Role, ...]) -> None:
    world = of_two(tmp_path)
    world.restart(*roles)
    assert world.shard.append(ROWS, ENDS).cancels_full
    world.at_slot(2)
    assert world.shard.append(ROWS, ENDS).cancels_full
    world.at_slot(42)
    assert not world.shard.append(ROWS, ENDS).cancels_full


def test_a_start_counts_those_that_it_does_not_know_yet(tmp_path: Path) -> None:
    """They came while nothing was closed, and lie above C."""
    world = World(tmp_path / "data", cancels_max=2)
    world.at_slot(1)
    rows = [timer(0, 50, "a"), cancel(1, "a"), cancel(2, "b"), cancel(3, "c")]
    assert world.shard.append(rows, {P0: 4}).cancels_full
    world.restart(Role.DEQUEUE)
    assert world.known()[0] == 0
    assert world.shard.append(rows, {P0: 4}).cancels_full


def test_a_lower_bound_waits_until_it_is_kept(tmp_path: Path) -> None:
    world = of_two(tmp_path)
    for role in Role:
        world.shard.kill(role)
    config: DequeueConfig = replace(world.config, cancels_max=1)
    world.shard = LocalShard(world.path, world.wheel, world.publisher, world.clock, config)
    world.shard.start_dequeue()
    world.engine = world.shard.start_ingest()
    world.at_slot(22)
    assert world.known()[0] == 1
    assert world.shard.append(ROWS, ENDS).cancels_full
    world.at_slot(42)
    assert not world.shard.append(ROWS, ENDS).cancels_full


def test_one_partition_does_not_take_the_room_of_all_for_ever(tmp_path: Path) -> None:
    world = World(tmp_path / "data", cancels_max=1)
    marks: dict[TopicPartition, int] = {P0: 4, P1: 4}
    rows = [timer(n, 9 + 2 * n, f"{p} {n}", partition=p) for p in (0, 1) for n in (0, 1)]
    rows += [cancel(n + 2, f"{p} {n}", partition=p) for p in (0, 1) for n in (0, 1)]
    rows.sort(key=lambda row: (row.partition, row.offset))
    slot = 1
    while world.shard.append(rows, marks).cancels_full:
        slot += 1
        world.at_slot(slot)
        assert slot < 50
    world.at_slot(60)
    assert world.known()[0] == 0
    assert len(world.answers()) == 4
