"""What cancels take of the disk: room that unlinked files keep, and what a batch may write."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.test_cancels import NOW_MS, P0, P1, PRECISION_MS, World, cancel, timer

from duewheel.durability import DurableCheckpoints
from duewheel.streaming.disk_guard import written_bytes
from duewheel.testing import Timer, timer_batch
from duewheel.wheel import cancel_log
from duewheel.wheel.check import check
from duewheel.wheel.data_directory import Role
from duewheel.wheel.uncommitted import Uncommitted

MakeWorld = Callable[..., World]


@pytest.fixture
def make_world(tmp_path: Path) -> MakeWorld:
    return lambda **settings: World(tmp_path / "data", **settings)


def held(path: Path) -> list[str]:
    """Files below `path` that are unlinked, and open or mapped in this process."""
    links = [str(fd.readlink()) for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()]
    maps = re.findall(r"(/\S+ \(deleted\))", Path("/proc/self/maps").read_text())
    return sorted({x for x in [*links, *maps] if x.startswith(str(path)) and "deleted" in x})


def collected(world: World, *later: Timer) -> None:
    """Three hours later, when the first hour is unlinked; `later` is taken before."""
    world.clock.sleep(3 * 3600)
    world.drain()
    world.append(*later)
    world.drain()
    checkpoints = DurableCheckpoints(world.path)
    checkpoints.write()
    for seconds in (61, 6):
        world.clock.sleep(seconds)
        world.drain()
    checkpoints.close()


def an_hour_later(world: World) -> None:
    """The logs of the hours before are unlinked."""
    checkpoints = DurableCheckpoints(world.path)
    for seconds in (3600, 61):
        world.clock.sleep(seconds)
        world.drain()
        checkpoints.write()
    world.clock.sleep(61)
    world.drain()
    checkpoints.close()


def test_lookups_let_go_of_hours_that_are_unlinked(make_world: MakeWorld) -> None:
    """On a full disk ingest waits for room and takes no cancel: no other round would do so."""
    world = make_world()
    world.append(timer(0, 5), cancel(1))
    world.at_slot(9)
    assert world.answers() == [("timers-0@1", "cancelled")]
    collected(world, timer(2, 3 * 360_000 + 30))
    world.engine.let_go()
    assert len(list((world.path / "timerlog").iterdir())) == 1
    assert held(world.path) == []


def test_ingest_that_waits_for_room_lets_go_of_cancels(make_world: MakeWorld) -> None:
    world = make_world()
    world.append(timer(0, 5), cancel(1))
    world.at_slot(9)
    collected(world, cancel(2))
    an_hour_later(world)
    assert len(list((world.path / "cancels").iterdir())) == 1
    world.engine.let_go()
    assert held(world.path) == []


def test_no_batch_writes_more_than_the_guard_allows_for(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reschedules are written as timers and as cancels, and again if their slot is closed."""
    world = make_world()
    rows = [
        Timer(0, o, NOW_MS + PRECISION_MS, timer_id=b"id-%d" % o, request="reschedule")
        for o in range(200)
    ]
    batch = timer_batch(rows)
    write: Callable[..., None] = Uncommitted.write_cancels

    def closed_then(*args: Any) -> None:
        write(*args)
        state = world.shard.directory(Role.DEQUEUE).state
        close = state.close()
        assert close is not None
        state.write_close(replace(close, floor=close.floor + 5))

    monkeypatch.setattr(Uncommitted, "write_cancels", closed_then)
    world.engine.append(batch, {P0: 200})
    folders = ("timerlog", "messages", "cancels", "requests")
    sizes = [p.stat().st_size for name in folders for p in (world.path / name).iterdir()]
    assert sum(sizes) <= written_bytes(batch).sum()


def test_what_is_over_is_collected(make_world: MakeWorld) -> None:
    world = make_world()
    world.append(timer(0, 5), cancel(1))
    world.at_slot(9)
    world.clock.sleep(3 * 3600)
    world.drain()
    slot = (world.clock.now_ms() - NOW_MS) // PRECISION_MS
    world.append(timer(2, slot + 30), cancel(3))
    world.drain()
    checkpoints = DurableCheckpoints(world.path)
    directory, left = world.shard.directory(Role.DEQUEUE), []
    for seconds in (61, 6, 3600, 61, 61):
        checkpoints.write()
        world.clock.sleep(seconds)
        world.drain()
        left.append([len(list((world.path / f).iterdir())) for f in cancel_log.FOLDERS])
    assert left[:3] == [[2, 2]] * 3, "a log of the hour in which all was over is on disk"
    assert left[-1] == [1, 1]
    assert world.known() == (0, 0), "nor is it remembered"
    assert len(directory.state.commit().cancels) == 2
    # The durable checkpoint still names what is gone: that is no damage.
    assert check(world.path, world.wheel).ok
    assert world.shard.append([Timer(1, 0, world.clock.now_ms())], {P1: 1}).rows
    assert len(directory.state.commit().cancels) == 1
    checkpoints.write()
    checkpoints.close()
    world.restart(Role.DEQUEUE, Role.INGEST)
    assert check(world.path, world.wheel).ok


def test_a_segment_with_a_live_cancel_stays(make_world: MakeWorld) -> None:
    world = make_world(slots=1 << 22)
    world.append(timer(0, 6 * 360_000), cancel(1))
    an_hour_later(world)
    world.append(cancel(2, timer_id=b"b"))
    for _ in range(3):
        an_hour_later(world)
    assert world.known()[0] == 1
    assert len(list((world.path / cancel_log.FOLDER).iterdir())) == 2
    world.restart(Role.DEQUEUE)
    world.at_slot(7 * 360_000)
    assert world.sources() == []


def test_a_segment_stays_while_copies_may_be_on_their_way(make_world: MakeWorld) -> None:
    world = make_world(reply_topic=None)
    world.publisher.ends = {P0: 100}  # they may be for all that time
    world.append(timer(0, 5), cancel(1))
    world.at_slot(9)
    world.at_slot(10)
    assert world.known() == (0, 0), "only on disk"
    world.clock.sleep(3 * 3600)
    world.drain()
    world.append(cancel(2))
    for _ in range(2):
        an_hour_later(world)
    directory, segments = world.shard.directory(Role.DEQUEUE), world.path / cancel_log.FOLDER
    directory.collect(world.publisher.committed[-1][1])  # as a standby does
    assert len(list(segments.iterdir())) == 2
    world.restart(Role.DEQUEUE, Role.INGEST)
    world.append(timer(3, 0, origin=0))
    world.drain()
    assert world.sources() == [], "a cancel that has waited for its copy for hours"
    assert len(list(segments.iterdir())) == 3, "the copy has brought it again"
    found = world.publisher.committed[-1][1]
    over = {p: replace(part, k=None, c=9, c1=None) for p, part in found.partitions.items()}
    found = replace(found, partitions=over)
    world.shard.directory(Role.DEQUEUE).collect(found)
    assert len(list(segments.iterdir())) == 3
    an_hour_later(world)
    world.shard.directory(Role.DEQUEUE).collect(found)
    assert len(list(segments.iterdir())) == 1
