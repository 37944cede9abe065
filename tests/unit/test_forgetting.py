"""Cancels that leave memory while copies of what they meet are on their way: these bring them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.test_cancels import NOW_MS, P0, PRECISION_MS, World, cancel, timer

from duewheel.errors import RecoveryPending
from duewheel.streaming.disk_guard import written_bytes
from duewheel.testing import Timer, timer_batch
from duewheel.wheel import cancelling
from duewheel.wheel.bringing_again import brought_again
from duewheel.wheel.cancel_log import FOLDERS, CancelLog, CancelRows
from duewheel.wheel.check import check
from duewheel.wheel.data_directory import Role
from duewheel.wheel.timer_log import Records
from duewheel.wheel.unsettled import Unsettled

MakeWorld = Callable[..., World]
NEVER = np.iinfo(np.int64).max
STAMP_MS = NOW_MS + 63 * PRECISION_MS
# A timer that rolls, a cancel, and behind it the copy, in a transaction that began before.
FIRST = replace(timer(0, 200), timestamp_ms=NOW_MS)
COPY = replace(timer(2, 200, origin=0), timestamp_ms=STAMP_MS)
ROWS = (FIRST, cancel(1), COPY)


@pytest.fixture
def make_world(tmp_path: Path) -> MakeWorld:
    return lambda **settings: World(tmp_path / "data", **{"reply_topic": None, **settings})


def forgotten(world: World) -> None:
    """The timer has been rolled, its cancel is known and has met nothing."""
    world.append(FIRST)
    world.at_slot(64)
    world.publisher.ends = {P0: 3}
    world.append(cancel(1))
    for slot in (66, 67):
        world.at_slot(slot)
    assert world.known() == (0, 0)


def brought(world: World, *rows: Timer, **columns: Any) -> list[int]:
    """Offsets of the cancels that these would bring."""
    directory = world.shard.directory(Role.INGEST)
    found = brought_again(
        directory, directory.state.commit(), replace(timer_batch(rows), **columns)
    )
    return [] if found is None else found.offset.tolist()


def test_a_copy_brings_its_cancel_again(make_world: MakeWorld) -> None:
    world = make_world(progress_interval_ms=PRECISION_MS)
    forgotten(world)
    assert world.progress() == (1, 2), "it is read again after a loss until the copy has come"
    world.append(COPY)
    world.at_slot(69)
    assert (world.progress(), world.known()) == ((1, 2), (1, 0))
    world.at_slot(300)
    world.at_slot(301)
    assert world.sources() == ["timers-0@0"], "the roll, and nothing else"
    assert (world.progress(), world.known()) == ((None, 2), (0, 0))
    assert check(world.path, world.wheel).ok


def test_one_cancel_that_many_copies_bring_stays_once(make_world: MakeWorld) -> None:
    """Timers of one id are rolled; their copies come one by one behind the cancel of all."""
    world, timers = make_world(progress_interval_ms=PRECISION_MS), 8
    for offset in range(timers):
        world.append(replace(timer(offset, 200), timestamp_ms=NOW_MS))
    world.at_slot(64)
    world.publisher.ends = {P0: 2 * timers + 1}
    world.append(cancel(timers))
    world.at_slot(66)
    for origin in range(timers):
        copy = timer(timers + 1 + origin, 200, origin=origin)
        world.append(replace(copy, timestamp_ms=STAMP_MS))
        world.at_slot(67 + origin)
        assert world.known()[0] <= 3, "it, and what was brought since the last progress"
    world.at_slot(300)
    assert len(world.sources()) == timers, "the rolls, and nothing else"


def test_it_is_answered_once(make_world: MakeWorld) -> None:
    world = make_world(reply_topic="replies")
    # Another timer of the id is there, so that the answer need not wait for the copy.
    world.append(FIRST, timer(1, 80))
    world.at_slot(64)
    world.publisher.ends = {P0: 4}
    world.append(cancel(2))
    world.at_slot(66)
    assert world.answers() == [("timers-0@2", "cancelled")]
    world.at_slot(81)
    world.at_slot(82)
    assert world.known() == (0, 1)
    world.append(replace(COPY, offset=3))
    world.at_slot(84)
    assert world.known() == (1, 1)
    world.restart(*Role)
    world.at_slot(300)
    assert world.sources() == ["timers-0@0"]
    assert world.answers() == [("timers-0@2", "cancelled")]


def lose(world: World, path: Path) -> None:
    """Another, empty directory takes over."""
    # By its time the copy is read again; the others only if K says so.
    world.lose_files(path, {P0: 2})


MISFORTUNES = ("ingest killed", "dequeue killed", "loss")
# One of them at one of the steps, or at each.
STEPS = [
    *((misfortune,) * 3 for misfortune in MISFORTUNES),
    *(
        tuple(misfortune if at == step else "" for at in range(3))
        for misfortune, step in product(MISFORTUNES, range(3))
    ),
]


@pytest.mark.parametrize("steps", STEPS)
def test_whoever_is_killed_and_whatever_is_lost_a_copy_is_left_out(
    make_world: MakeWorld, tmp_path: Path, steps: tuple[str, ...]
) -> None:
    world = make_world(progress_interval_ms=PRECISION_MS)
    world.append(FIRST)
    world.at_slot(64)
    world.publisher.ends = {P0: 3}
    for step, (misfortune, count, slot) in enumerate(
        zip(steps, (2, 3, 3), (66, 69, 90), strict=True)
    ):
        world.append(*ROWS[:count])
        for at in (slot, slot + 1):
            world.at_slot(at)
        if misfortune == "loss":
            lose(world, tmp_path / f"other-{step}")
        elif misfortune:
            world.restart(Role[misfortune.split()[0].upper()])
    world.append(*ROWS)
    world.at_slot(300)
    world.at_slot(301)
    assert world.sources() == ["timers-0@0"]
    assert (world.progress()[0], world.known()) == (None, (0, 0))


def test_which_cancel_a_copy_brings(make_world: MakeWorld) -> None:
    world = make_world()
    world.append(timer(0, 5), cancel(1), cancel(2), cancel(3, timer_id=b"b"))
    world.append(timer(4, 5), cancel(5, partition=1))
    assert brought(world, timer(6, 9, origin=0)) == [2], "the last one does the work of all"
    assert brought(world, timer(6, 9, origin=1), timer(7, 9, origin=0)) == [2], "once"
    assert brought(world, timer(6, 9, origin=2)) == [], "it came before the timer"
    assert brought(world, timer(6, 9)) == [], "no copy"
    assert brought(world, timer(6, 9, origin=0, rejected=True)) == [], "no timer"
    assert brought(world, timer(6, 9, origin=0, partition=1)) == [5]
    other = replace(timer(6, 9, origin=0), timer_id=b"c")
    assert brought(world, other, timer(7, 9, origin=0)) == [2]


def test_ids_with_the_same_hash_are_told_apart(make_world: MakeWorld) -> None:
    world = make_world()
    rows = [cancel(1), cancel(2, timer_id=b"b")]
    world.engine.append(replace(timer_batch(rows), id_hash=np.full(2, 77)), {P0: 3})
    copies = [timer(3, 9, origin=0), replace(timer(4, 9, origin=0), timer_id=b"c")]
    assert brought(world, *copies, id_hash=np.full(2, 77)) == [1]


def test_the_default_id_is_that_of_the_first_copy(make_world: MakeWorld) -> None:
    world = make_world()
    first = replace(timer(0, 5), timer_id=b"")
    world.append(first, cancel(1, timer_id=b"timers-0@0"))
    copy = replace(first, offset=2, origin=0)
    assert brought(world, copy, id_hash=timer_batch([first]).id_hash) == [1]


@pytest.mark.parametrize("not_before", [80, 400])
def test_a_parked_or_spread_copy_brings_its_cancel(make_world: MakeWorld, not_before: int) -> None:
    world = make_world()
    forgotten(world)
    batch = timer_batch([replace(timer(2, 64, origin=0), timestamp_ms=STAMP_MS)])
    not_before_ms = np.array([NOW_MS + not_before * PRECISION_MS])
    world.engine.append(replace(batch, not_before_ms=not_before_ms), {P0: 3})
    world.at_slot(69)
    assert world.known() == (1, 0)
    world.at_slot(500)
    world.at_slot(501)
    assert (world.sources(), world.known()) == (["timers-0@0"], (0, 0))


def test_copies_that_come_one_after_another_are_all_left_out(make_world: MakeWorld) -> None:
    world = make_world(progress_interval_ms=PRECISION_MS)
    world.append(FIRST, replace(FIRST, offset=1), replace(FIRST, offset=2))
    world.at_slot(64)
    world.publisher.ends = {P0: 7}
    world.append(cancel(3))
    for slot in (66, 67):
        world.at_slot(slot)
    assert (world.known(), world.progress()[0]) == ((0, 0), 3)
    for copy in range(3):
        world.append(replace(COPY, offset=4 + copy, origin=copy))
        for slot in (70 + 3 * copy, 71 + 3 * copy):
            world.at_slot(slot)
        assert world.progress()[0] == 3
    world.at_slot(300)
    world.at_slot(301)
    assert (len(world.sources()), world.known(), world.progress()[0]) == (3, (0, 0), None)


def test_k_does_not_pass_what_is_over_before_it_is_settled(make_world: MakeWorld) -> None:
    """Not in the progress either that says for the first time that what it met has left."""
    world = make_world(progress_interval_ms=PRECISION_MS)
    world.append(FIRST, timer(1, 80), replace(timer(2, 80), timer_id=b"b"))
    world.at_slot(64)
    world.publisher.ends = {P0: 5}
    world.append(cancel(3))
    for slot in (66, 67):
        world.at_slot(slot)
    assert (world.known(), world.progress()[0]) == ((1, 0), 3)
    before = len(world.publisher.committed)
    for slot in (81, 82):
        world.at_slot(slot)
    assert world.sources()[-1] == "timers-0@2"
    assert {p.partitions[P0].k for _, p in world.publisher.committed[before:]} == {3}
    assert world.known() == (0, 0)


def unlinked_then(log: CancelLog, monkeypatch: pytest.MonkeyPatch, world: World, gone: int) -> None:
    """Its segments are unlinked as they are read."""
    stretches = CancelLog.stretches

    def read(self: CancelLog, hour: int, start: int, end: int) -> Iterator[tuple[int, Records]]:
        if self is log:
            self.close()
            for folder in FOLDERS:
                for path in (world.path / folder).iterdir():
                    path.unlink()
            world.shard.directory(Role.DEQUEUE).state.set_gc_cancels(gone)
        yield from stretches(self, hour, start, end)

    monkeypatch.setattr(CancelLog, "stretches", read)


def test_a_segment_that_is_given_up_as_a_copy_looks_there_is_no_damage(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world()
    world.append(timer(0, 5), cancel(1))
    log = world.shard.directory(Role.INGEST).cancels
    (hour,) = world.shard.directory(Role.INGEST).state.commit().cancels
    unlinked_then(log, monkeypatch, world, hour + 1)
    world.append(replace(COPY, offset=2, origin=1))
    assert world.engine.marks[P0] == 3


def test_a_segment_that_is_missing_is_damage(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world()
    world.append(timer(0, 5), cancel(1))
    log = world.shard.directory(Role.INGEST).cancels
    unlinked_then(log, monkeypatch, world, 0)
    with pytest.raises(RecoveryPending, match="missing"):
        world.append(COPY)


def test_a_copy_costs_nothing_where_there_are_no_cancels_and_others_never(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world()
    world.append(timer(0, 5))
    monkeypatch.setattr(CancelLog, "stretches", lambda *_: pytest.fail("it was read"))
    world.append(COPY)
    monkeypatch.undo()
    world.append(cancel(3))
    monkeypatch.setattr(CancelLog, "stretches", lambda *_: pytest.fail("it was read"))
    world.append(timer(4, 5))


def test_what_copies_bring_is_part_of_what_the_disk_must_have_room_for(
    make_world: MakeWorld,
) -> None:
    world, count = make_world(), 50
    ids = [b"id-%d" % i for i in range(count)]
    world.append(*[cancel(count + i, timer_id=own) for i, own in enumerate(ids)])
    before = sum(p.stat().st_size for p in world.path.rglob("*") if p.parent != world.path)
    rows = [replace(timer(2 * count + i, 9, origin=i), timer_id=own) for i, own in enumerate(ids)]
    world.append(*rows)
    after = sum(p.stat().st_size for p in world.path.rglob("*") if p.parent != world.path)
    assert after - before <= written_bytes(timer_batch(rows)).sum() // 2


# ---- many at once --------------------------------------------------------------------------------


@pytest.mark.parametrize("reply_topic", [None, "replies"])
def test_a_start_keeps_what_is_live_however_much_it_reads(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch, reply_topic: str | None
) -> None:
    world, count, at_once = make_world(slots=4096, reply_topic=reply_topic), 300, 40
    rows = [Timer(0, 0, NOW_MS + 30_000, timer_id=b"far"), cancel(1, timer_id=b"far")]
    for i in range(count):
        own = b"id-%d" % i
        rows += [
            Timer(0, 2 * i + 2, NOW_MS + 1_000, timer_id=own),
            cancel(2 * i + 3, timer_id=own),
        ]
    world.append(*rows)
    for slot in (1, 5, 200, 210):
        world.at_slot(slot)
    assert world.progress() == (1, 2 * count + 2)
    monkeypatch.setattr(cancelling, "LEARNT_AT_ONCE", at_once)
    monkeypatch.setattr("duewheel.wheel.cancel_log._RECORDS_AT_ONCE", at_once // 2)
    live = most_live(monkeypatch)
    world.restart(Role.DEQUEUE)
    world.drain()
    assert 0 < live[0] <= 2 * at_once
    for slot in (220, 230):
        world.at_slot(slot)
    assert world.known()[0] == 1
    world.at_slot(4_000)
    assert world.sources() == []


def most_live(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The most cancels that were in memory at once, from now on."""
    most, add = [0], cancelling.Cancelling._add

    def added(self: cancelling.Cancelling, new: Any) -> None:
        add(self, new)
        most[0] = max(most[0], len(self._live))

    monkeypatch.setattr(cancelling.Cancelling, "_add", added)
    return most


def test_what_came_while_dequeue_was_away_is_not_kept_at_its_start(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lies above C; it is read again when that has come to it."""
    world, count = make_world(slots=4096), 200
    world.append(timer(0, 500), cancel(1), replace(timer(2, 500), timer_id=b"b"))
    world.at_slot(1)
    world.shard.kill(Role.DEQUEUE)
    world.append(cancel(3, timer_id=b"b"), *[cancel(o, timer_id=b"x") for o in range(4, count)])
    world.append(cancel(0, partition=1))
    read, rows = list[int](), CancelLog.rows

    def counted(
        log: CancelLog, hour: int, at: int, which: Any, records: Records
    ) -> Iterator[CancelRows]:
        for found in rows(log, hour, at, which, records):
            read.extend(found.offset.tolist())
            yield found

    monkeypatch.setattr(CancelLog, "rows", counted)
    live = most_live(monkeypatch)
    world.shard.start_dequeue()
    world.drain()
    assert (live[0], read) == (1, [1, 3, *range(4, count), 0]), "all are read, one is kept"
    read.clear()
    world.at_slot(3)
    assert read == [3, *range(4, count), 0], "those that were not known"
    world.append(cancel(count, timer_id=b"b"))
    read.clear()
    world.at_slot(7)
    assert read == [count]
    world.at_slot(600)
    assert world.sources() == []


def test_what_has_been_told_to_nobody_never_falls_without_a_reply_topic(
    make_world: MakeWorld,
) -> None:
    world = make_world(progress_interval_ms=PRECISION_MS)
    forgotten(world)
    world.append(COPY, cancel(3, timer_id=b"b"))
    for slot in (69, 70):
        world.at_slot(slot)
        assert world.progress() == (1, 4)


# ---- what is left of them ------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_k_and_segment_are_held_until_all_is_settled(seed: int) -> None:
    rng, left = np.random.default_rng(seed), Unsettled()
    left.make_room(2)
    waiting: list[list[int]] = []  # partition, offset, hour, end; -1: nobody has told
    marks, end = np.zeros(2, np.int64), np.zeros(2, np.int64)
    for _ in range(200):
        end += rng.integers(0, 5, 2)
        count = int(rng.integers(0, 4))
        partition = rng.integers(0, 2, count).astype(np.int32)
        offset = np.maximum(marks[partition] - rng.integers(0, 9, count), 0)
        ends = np.where(rng.random(count) < 0.3, -1, end[partition])
        left.add(partition, offset, offset // 10, ends)
        waiting += np.stack([partition, offset, offset // 10, ends], axis=1).tolist()
        if rng.random() < 0.3:
            number = int(rng.integers(0, 2))
            left.tell(number, int(end[number]))
            for each in waiting:
                if each[0] == number and each[3] < 0:
                    each[3] = int(end[number])
        marks = np.minimum(marks + rng.integers(0, 7, 2), end)
        left.settle(marks)
        waiting = [each for each in waiting if each[3] < 0 or marks[each[0]] < each[3]]
        for number in range(2):
            lowest = min((each[1] for each in waiting if each[0] == number), default=NEVER)
            assert left.k[number] <= lowest
        assert left.hour <= min((each[2] for each in waiting), default=NEVER)
        assert set(left.unasked) == {each[0] for each in waiting if each[3] < 0}
    for number in range(2):
        left.tell(number, int(end[number]))
    left.settle(end)
    assert (left.k.tolist(), left.hour) == ([NEVER] * 2, NEVER)


def test_k_goes_on_though_ingest_never_comes_to_the_end() -> None:
    left, one = Unsettled(), np.zeros(1, np.int32)
    left.make_room(1)
    for mark in range(0, 1_000, 10):
        left.add(one, np.array([mark]), one.astype(np.int64), np.array([mark + 25]))
        left.settle(np.array([mark]))
        assert left.k[0] >= mark - 100
