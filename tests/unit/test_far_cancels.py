"""Cancels whose timers are due much later: put away on disk, and there again in time."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit import test_forgetting as forgetting
from tests.unit.test_cancels import NOW_MS, P0, P1, PRECISION_MS, World
from tests.unit.test_cancels_on_disk import an_hour_later

from duewheel.checkpoints import files
from duewheel.errors import RecoveryPending
from duewheel.schemas.columns import binary
from duewheel.testing import Timer
from duewheel.wheel import cancel_log, cancelling, far_cancels
from duewheel.wheel.cancel_log import CancelRows
from duewheel.wheel.check import check
from duewheel.wheel.data_directory import Role
from duewheel.wheel.far_cancels import FarCancels
from duewheel.wheel.tombstones import Tombstones

NEVER = np.iinfo(np.int64).max
MOST = 8  # cancels in memory
MANY = 100
SLOTS = 8_192
FAR = 7_000  # slots: more than a minute

MakeWorld = Callable[..., World]


@pytest.fixture
def make_world(tmp_path: Path) -> Iterator[MakeWorld]:
    worlds = list[World]()

    def make(**more: Any) -> World:
        settings = {"cancels_max": MOST, "slots": SLOTS, "progress_interval_ms": PRECISION_MS}
        worlds.append(World(tmp_path / "data", **{**settings, **more}))
        return worlds[-1]

    yield make
    for world in worlds:
        world.shard.kill(Role.DEQUEUE)


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(far_cancels, "PAGE", 2)
    monkeypatch.setattr(cancelling, "AWAY_EVERY_MS", 0)
    monkeypatch.setattr(cancelling, "AWAY_AGAIN_MS", 0)


@pytest.fixture
def most_live(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    return forgetting.most_live(monkeypatch)


def timer(offset: int, slot: int, name: str, partition: int = 0, **more: Any) -> Timer:
    due_ms = NOW_MS + slot * PRECISION_MS
    return Timer(partition, offset, due_ms, timer_id=name.encode(), **more)


def cancel(offset: int, name: str, partition: int = 0) -> Timer:
    return Timer(partition, offset, 0, timer_id=name.encode(), request="cancel")


def far(world: World) -> int:
    assert world.shard.dequeue is not None
    return world.shard.dequeue.statistics.cancels.far


def far_slot(number: int) -> int:
    """Of the timer: those that are cancelled first are due last."""
    return FAR + MANY - number


def cancel_many(world: World, count: int = MANY, slot_of: Callable[[int], int] = far_slot) -> None:
    """Timers of these slots, and the cancels of all of them, as many at once as fit."""
    world.append(*[timer(n, slot_of(n), f"far-{n}") for n in range(count)])
    end, at = 2 * count, 1
    rows = [cancel(count + n, f"far-{n}") for n in range(count)]
    while world.engine.marks[P0] < end:
        begin = world.engine.marks[P0]
        world.shard.append([row for row in rows if row.offset >= begin], {P0: end})
        assert world.engine.marks[P0] > begin, "nothing fits any more"
        world.at_slot(at)
        at += 1


# ---- in a shard ----------------------------------------------------------------------------------


@pytest.mark.parametrize("replies", [{}, {"reply_topic": None}])
def test_many_more_than_fit_are_taken_and_what_lies_behind_them_is_on_time(
    make_world: MakeWorld, replies: dict[str, None]
) -> None:
    world = make_world(**replies)
    cancel_many(world)
    assert (world.known()[0] + far(world), far(world) >= MANY - MOST) == (MANY, True)
    assert [word for _, word in world.answers()] == ["cancelled"] * (0 if replies else MANY)
    now = (world.clock.now_ms() - NOW_MS) // PRECISION_MS
    assert world.shard.append([timer(2 * MANY, now + 3, "near")], {P0: 2 * MANY + 1}).rows == 1
    world.at_slot(now + 3)
    assert world.sources()[-1] == f"timers-0@{2 * MANY}"
    assert world.progress() == (MANY, 2 * MANY)
    world.at_slot(FAR + MANY + 1)
    assert world.sources() == [f"timers-0@{2 * MANY}"]
    assert (world.known()[0], far(world)) == (0, 0)
    world.at_slot(FAR + MANY + 5)
    assert world.progress()[0] is None
    assert check(world.path, world.wheel).ok


def test_what_comes_back_at_once_after_a_pause_is_bounded(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch, most_live: list[int]
) -> None:
    world = make_world()
    cancel_many(world)
    monkeypatch.setattr(cancelling, "LEARNT_AT_ONCE", 6)
    world.append(timer(2 * MANY, FAR + 50, "between"), timer(2 * MANY + 1, FAR + MANY, "last"))
    most_live[0] = 0
    world.at_slot(FAR + MANY + 1)
    assert world.sources() == [f"timers-0@{2 * MANY}", f"timers-0@{2 * MANY + 1}"]
    assert 0 < most_live[0] <= MOST + 6 + 2


@pytest.mark.parametrize("chunk_records", [6, 15])
def test_what_has_left_goes_before_more_come_back(
    make_world: MakeWorld,
    monkeypatch: pytest.MonkeyPatch,
    most_live: list[int],
    chunk_records: int,
) -> None:
    """Numbers in proportion to what they are: of 131,072 as many are live as stay there, 100,000
    come back at once, all are looked at when 16,384 were for each chunk of 20,000, or of 50,000.
    """
    world = make_world(chunk_records=chunk_records, cancels_max=80)
    # Of two timers each, one due soon: such are not put away.
    rows = [timer(n, 300, f"twice-{n}", 1) for n in range(40)]
    rows += [timer(40 + n, FAR + 1_100, f"twice-{n}", 1) for n in range(40)]
    world.append(*rows, *[cancel(80 + n, f"twice-{n}", 1) for n in range(40)])
    cancel_many(world, 1_000, lambda number: FAR + 1_000 - number)
    before, most_live[0] = far(world), 0
    assert before > 900
    monkeypatch.setattr(cancelling, "LEARNT_AT_ONCE", 30)
    monkeypatch.setattr(cancelling, "_SWEPT_AT_ONCE", 5)
    world.at_slot(FAR + 1_050)
    assert world.sources() == []
    assert most_live[0] < 80 + 2 * 30, f"{most_live[0]} in memory, {before} were put away"


def test_of_one_slot_no_more_are_put_away_than_may_come_back(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch, most_live: list[int]
) -> None:
    """The others wait, as they did; what is cancelled too late is delivered."""
    monkeypatch.setattr(far_cancels, "CROWD", 1)
    world = make_world()
    with pytest.raises(AssertionError, match="nothing fits"):
        cancel_many(world, slot_of=lambda _: FAR)
    taken = world.engine.marks[P0] - MANY
    assert MOST < taken == world.known()[0] + far(world) < 3 * MOST
    most_live[0] = 0
    world.at_slot(FAR)
    assert world.sources() == [f"timers-0@{n}" for n in range(taken, MANY)]
    assert most_live[0] == taken
    world.append(cancel(2 * MANY - 1, "far-99"))
    assert world.engine.marks[P0] == 2 * MANY


def test_what_has_left_before_a_cancel_came_keeps_it_not_in_memory(make_world: MakeWorld) -> None:
    """Ids that are used again, as of what recurs: the timers of the first time have left."""
    world = make_world()
    rows = [timer(n, 1, f"far-{n}") for n in range(MANY)]
    world.append(*rows)
    world.at_slot(2)
    world.append(*[timer(MANY + n, FAR + n, f"far-{n}") for n in range(MANY)])
    requests, end = [cancel(2 * MANY + n, f"far-{n}") for n in range(MANY)], 3 * MANY
    for slot in range(3, 40):
        begin = world.engine.marks[P0]
        world.shard.append([row for row in requests if row.offset >= begin], {P0: end})
        world.at_slot(slot)
    assert world.engine.marks[P0] == end, f"{world.engine.marks[P0] - 2 * MANY} of {MANY} taken"


def test_a_second_one_of_the_same_id_is_told_what_is_so(make_world: MakeWorld) -> None:
    world = make_world()
    cancel_many(world)
    now = (world.clock.now_ms() - NOW_MS) // PRECISION_MS
    world.append(cancel(2 * MANY, "far-0"))
    world.at_slot(now + 1)
    assert world.answers()[-1] == (f"timers-0@{2 * MANY}", "cancelled")
    world.at_slot(FAR + MANY + 1)
    world.append(cancel(2 * MANY + 1, "far-0"))
    for slot in (2, 3):
        world.at_slot(FAR + MANY + slot)
    assert world.answers()[-1] == (f"timers-0@{2 * MANY + 1}", "unknown")
    assert world.sources() == []


@pytest.mark.parametrize("roles", [(Role.DEQUEUE,), (Role.INGEST,), tuple(Role)])
def test_a_start_learns_of_them_and_puts_them_away_again(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch, roles: tuple[Role, ...]
) -> None:
    world = make_world()
    cancel_many(world)
    monkeypatch.setattr(cancelling, "LEARNT_AT_ONCE", 5)
    monkeypatch.setattr("duewheel.wheel.cancel_log._RECORDS_AT_ONCE", 5)
    world.restart(*roles)
    now = (world.clock.now_ms() - NOW_MS) // PRECISION_MS
    world.at_slot(now + 1)
    assert (world.known()[0] <= MOST, world.known()[0] + far(world)) == (True, MANY)
    answers = world.answers()
    world.at_slot(FAR + MANY + 1)
    assert (world.sources(), world.answers()) == ([], answers)


def test_what_is_put_away_is_read_again_after_a_loss(make_world: MakeWorld, tmp_path: Path) -> None:
    world = make_world()
    cancel_many(world)
    k, answered = world.progress()
    assert (k, answered) == (MANY, 2 * MANY)
    world.lose_files(tmp_path / "other", {P0: 0, P1: 0})
    rows = [timer(n, far_slot(n), f"far-{n}") for n in range(MANY)]
    rows += [cancel(MANY + n, f"far-{n}") for n in range(MANY)]
    world.append(*rows)
    answers = world.answers()
    world.at_slot(FAR + MANY + 1)
    assert (world.sources(), world.answers()) == ([], answers)


def test_its_segment_of_the_cancel_log_stays(make_world: MakeWorld) -> None:
    """Of those that stay in memory the timers are due first; then all others are put away."""
    world, late = make_world(slots=1 << 22), 6 * 3_600_000 // PRECISION_MS
    cancel_many(world, slot_of=lambda n: (late if n < MANY - MOST else FAR) + n)
    an_hour_later(world)
    assert (world.known()[0], far(world)) == (0, MANY - MOST)
    world.append(cancel(2 * MANY, "another"))
    for _ in range(3):
        an_hour_later(world)
    assert far(world) == MANY - MOST
    assert len(list((world.path / cancel_log.FOLDER).iterdir())) == 2
    world.restart(Role.DEQUEUE)
    world.at_slot(late + MANY + 1)
    assert world.sources() == []


def test_what_a_copy_brings_again_does_the_work_of_the_first(make_world: MakeWorld) -> None:
    """The first one meets nothing in later slots; it comes back behind the one that does."""
    world = make_world()
    cancel_many(world)
    now = (world.clock.now_ms() - NOW_MS) // PRECISION_MS
    copy = timer(2 * MANY, FAR + MANY + 50, "far-0", origin=0)
    world.append(copy)
    world.at_slot(now + 1)
    answers = world.answers()
    for slot in (FAR + MANY - 1, FAR + MANY, FAR + MANY + 10, FAR + MANY + 60):
        world.at_slot(slot)
    assert (world.sources(), world.answers()) == ([], answers)


def flip(fd: int) -> None:
    (octet,) = os.pread(fd, 1, 200)
    os.pwrite(fd, bytes([octet ^ 1]), 200)


@pytest.mark.parametrize("damage", [flip, lambda fd: os.ftruncate(fd, 300)])
def test_a_page_that_is_damaged_stops_delivery_and_a_start_learns_anew(
    make_world: MakeWorld, damage: Callable[[int], None]
) -> None:
    world = make_world()
    cancel_many(world)
    assert world.shard.dequeue is not None
    assert world.shard.dequeue._cancels is not None
    for run in world.shard.dequeue._cancels._far._runs:
        damage(run.fd)
    answers = world.answers()
    with pytest.raises(RecoveryPending, match="starting anew"):
        world.at_slot(FAR + MANY + 1)
    assert world.sources() == []
    world.restart(Role.DEQUEUE)
    world.drain()
    assert (world.sources(), world.answers()) == ([], answers)


def test_with_a_full_disk_they_stay_and_ingest_waits_as_it_would(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, room = make_world(), files.open_unnamed

    def no_room(folder: Path) -> int:
        raise OSError(errno.ENOSPC, "no space left on device", folder)

    monkeypatch.setattr(files, "open_unnamed", no_room)
    world.append(*[timer(n, FAR + n, f"far-{n}") for n in range(MANY)])
    rows = [cancel(MANY + n, f"far-{n}") for n in range(MANY)]
    assert world.shard.append(rows, {P0: 2 * MANY}).cancels_full
    world.at_slot(1)
    assert (world.known()[0], far(world)) == (MOST, 0)
    assert world.shard.append(rows[MOST:], {P0: 2 * MANY}).cancels_full
    monkeypatch.setattr(files, "open_unnamed", room)
    world.at_slot(2)
    assert 0 < far(world) <= MOST
    world.shard.append(rows[MOST:], {P0: 2 * MANY})
    assert world.engine.marks[P0] > MANY + MOST


def test_what_has_no_answer_yet_or_is_due_soon_stays(make_world: MakeWorld) -> None:
    world = make_world()
    world.append(*[timer(n, 50 + n, f"near-{n}") for n in range(MOST)])
    world.append(*[cancel(MOST + n, f"near-{n}") for n in range(MOST)])
    world.at_slot(1)
    assert (world.known()[0], far(world)) == (MOST, 0)
    assert world.shard.append([cancel(2 * MOST, "near-0")], {P0: 2 * MOST + 1}).cancels_full
    world.at_slot(50 + MOST)
    assert (
        world.shard.append([cancel(2 * MOST, "near-0")], {P0: 2 * MOST + 1}).cancels_full is False
    )


def test_a_disk_that_cannot_be_read_is_told_as_promised(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world()
    cancel_many(world)

    def broken(*_: object) -> None:
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(os, "preadv", broken)
    with pytest.raises(RecoveryPending, match="starting anew"):
        world.at_slot(FAR + MANY + 1)


# ---- alone ---------------------------------------------------------------------------------------


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def tombstones(first: list[int], at: int = 0) -> Tombstones:
    """Offsets count from `at`; the partition is the last digit of an offset."""
    count = len(first)
    offset, zeros = at + np.arange(count), np.zeros(count, np.int64)
    ids = binary([b"id-%d" % n for n in offset.tolist()])
    index = (offset % 10).astype(np.int32)
    rows = CancelRows(index, index, offset, offset, ids, offset // 7 + 5, offset, offset, zeros > 0)
    known = Tombstones.known(rows, index, 3)
    known.first[:], known.last[:] = first, np.array(first) + 2
    return known


def columns_of(cancels: Tombstones) -> list[Any]:
    arrays = [getattr(cancels, name) for name in far_cancels._COLUMNS]
    return [np.asarray(a).tolist() if isinstance(a, np.ndarray) else a.to_pylist() for a in arrays]


@pytest.mark.parametrize("seed", range(20))
def test_all_that_is_due_comes_back_as_it_was(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    away, there, after = FarCancels(tmp_path), dict[int, int](), 0
    offsets = 0
    while after < 200 or there:
        if after < 200:
            first = (after + 1 + rng.integers(0, 60, int(rng.integers(1, 30)))).tolist()
            known = tombstones(first, offsets)
            rows = np.flatnonzero(rng.random(len(first)) < 0.7)
            if len(rows):
                away.put_away(known, rows)
                there |= {int(known.offset[n]): first[n] for n in rows}
            offsets += len(first)
        most, until = int(rng.integers(1, 20)), after + int(rng.integers(1, 20))
        back, end = away.bring_back(after, until, most)
        assert after < end <= until
        found = dict(zip(back.offset.tolist(), back.first.tolist(), strict=True))
        assert found.items() <= there.items()
        assert back.timer_id.to_pylist() == [b"id-%d" % o for o in found]
        assert back.last.tolist() == [first + 2 for first in found.values()]
        assert (back.hour == back.offset // 7 + 5).all()
        there = {o: f for o, f in there.items() if o not in found}
        assert all(f > end for f in there.values())
        assert len(away) == len(there)
        if end < until:
            assert len(found) >= most
        k, needed = away.k(12), {o % 10 for o in there}
        assert all(k[o % 10] <= o for o in there)
        assert all(away.hour <= o // 7 + 5 for o in there)
        assert needed or (k.min() == NEVER and away.hour == NEVER)
        after = end
    away.close()


def test_nothing_of_them_is_in_the_folder(tmp_path: Path) -> None:
    away = FarCancels(tmp_path)
    away.put_away(tombstones([5, 6, 7]), np.arange(3))
    assert (len(away), list(tmp_path.iterdir())) == (3, [])
    before = open_files()
    away.close()
    assert (len(away), open_files()) == (0, before - 1)


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EISDIR])
def test_a_file_system_that_has_no_files_without_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    opened = os.open

    def refused(path: Any, flags: int, *args: Any, **more: Any) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(number, "not supported", path)
        return opened(path, flags, *args, **more)

    monkeypatch.setattr(os, "open", refused)
    away = FarCancels(tmp_path)
    away.put_away(tombstones([5, 6, 7]), np.arange(3))
    assert list(tmp_path.iterdir()) == []
    assert len(away.bring_back(0, 9, 9)[0]) == 3
    away.close()


def test_each_column_comes_back(tmp_path: Path) -> None:
    away, known = FarCancels(tmp_path), tombstones([9, 8, 7, 6, 5])
    known.again[::2], known.word[:], known.log_end[:] = True, 2, 77
    away.put_away(known, np.arange(5))
    back, end = away.bring_back(0, 9, 100)
    assert end == 9
    assert columns_of(back) == columns_of(known.take(np.arange(5)[::-1]))


def test_a_write_that_fails_changes_nothing(tmp_path: Path) -> None:
    away, known = FarCancels(tmp_path), tombstones(list(range(1, 3_000)))
    away.put_away(known, np.arange(10))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4_096, limits[1]))
    before = open_files()
    try:
        with pytest.raises(OSError, match="too large"):
            away.put_away(known, np.arange(3_000 - 1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (len(away), open_files()) == (10, before)
    back, _ = away.bring_back(0, 3_000, 3_000)
    assert len(back) == 10


def test_no_more_files_are_opened_than_so_many(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(far_cancels, "RUNS_MAX", 3)
    world = make_world()
    with pytest.raises(AssertionError, match="nothing fits"):
        cancel_many(world)
    assert world.shard.dequeue is not None
    assert world.shard.dequeue._cancels is not None
    away = world.shard.dequeue._cancels._far
    assert (away.is_full, len(away._runs), world.known()[0]) == (True, 3, MOST)
    world.at_slot(FAR + MANY + 1)
    assert not away.is_full
