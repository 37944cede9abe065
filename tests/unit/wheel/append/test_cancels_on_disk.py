"""The disk space of cancels: the blocks of unlinked files, and the bytes of a batch."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.harness.cancel_world import CancelWorld, cancel, timer
from tests.harness.local_world import NOW_MS, PRECISION_MS
from tests.harness.timer_rows import P0, P1, TIMER_TOPIC, TimerRow, timer_batch

from duewheel.checkpoints.cancel_bounds import CancelBounds
from duewheel.checkpoints.process_role import Role
from duewheel.runtime.checkpointer import DurableCheckpoints
from duewheel.streaming.disk_guard import written_bytes
from duewheel.wheel.append.staged_batch import StagedBatch
from duewheel.wheel.storage import cancel_log
from duewheel.wheel.storage.full_check import check
from duewheel.wheel.storage.topic_numbers import TopicNames

MakeWorld = Callable[..., CancelWorld]


@pytest.fixture
def make_world(tmp_path: Path) -> MakeWorld:
    # Hours pass in these tests: with a small ring each would be thousands of laps.
    return lambda **settings: CancelWorld(tmp_path / "data", slots=1 << 17, **settings)


def held(path: Path) -> list[str]:
    """Files below `path` that are unlinked, and open or mapped in this process."""
    links = [str(fd.readlink()) for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()]
    maps = re.findall(r"(/\S+ \(deleted\))", Path("/proc/self/maps").read_text())
    found = {x for x in [*links, *maps] if x.startswith(str(path)) and "deleted" in x}
    return sorted(x for x in found if "/#" not in x)  # the index never had a name


def collected(world: CancelWorld, *later: TimerRow) -> None:
    """Three hours later, when the first hour is unlinked; `later` is taken before."""
    world.clock.sleep(3 * 3600)
    world.drain()
    world.append(*later)
    world.drain()
    world.clock.sleep(6)  # a progress says so
    world.drain()
    checkpoints = DurableCheckpoints(world.path)
    checkpoints.write()
    for seconds in (61, 6):
        world.clock.sleep(seconds)
        world.drain()
    checkpoints.close()


def an_hour_later(world: CancelWorld) -> None:
    """The logs of the hours before are unlinked."""
    checkpoints = DurableCheckpoints(world.path)
    for seconds in (3600, 61):
        world.clock.sleep(seconds)
        world.drain()
        checkpoints.write()
    world.clock.sleep(61)
    world.drain()
    checkpoints.close()


def test_ingest_that_waits_for_room_closes_logs_that_are_unlinked(make_world: MakeWorld) -> None:
    world = make_world()
    world.append(timer(0, 5), cancel(1))
    world.at_slot(9)
    assert world.answers() == [("timers-0@1", "cancelled")]
    collected(world, timer(2, 3 * 360_000 + 30))
    world.engine.close_expired_files()
    assert len(list((world.path / "timerlog").iterdir())) == 1
    assert held(world.path) == []


def test_ingest_that_waits_for_room_closes_segments_that_are_unlinked(
    make_world: MakeWorld,
) -> None:
    world = make_world()
    world.append(timer(0, 5), cancel(1))
    world.at_slot(9)
    collected(world, cancel(2))
    an_hour_later(world)
    assert len(list((world.path / "cancels").iterdir())) == 1
    world.engine.close_expired_files()
    assert held(world.path) == []


def test_no_batch_writes_more_than_the_guard_allows_for(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reschedules are written as timers and as cancels, and again if their slot is closed."""
    world = make_world()
    rows = [
        TimerRow(0, o, NOW_MS + PRECISION_MS, timer_id=b"id-%d" % o, request="reschedule")
        for o in range(200)
    ]
    batch = timer_batch(rows)
    write: Callable[..., None] = StagedBatch.write_cancels

    def closed_then(*args: Any) -> None:
        write(*args)
        state = world.shard.directory(Role.DEQUEUE).state
        close = state.close()
        assert close is not None
        state.write_close(close._replace(floor=close.floor + 5))

    monkeypatch.setattr(StagedBatch, "write_cancels", closed_then)
    world.engine.append(batch, {P0: 200})
    folders = ("timerlog", "messages", "cancelled", "cancels", "requests")
    sizes = [p.stat().st_size for name in folders for p in (world.path / name).iterdir()]
    assert sum(sizes) <= written_bytes(batch).sum()


def test_segments_go_once_all_in_them_is_replied_to(make_world: MakeWorld) -> None:
    world = make_world()
    world.append(timer(0, 5), cancel(1))
    world.at_slot(9)
    world.clock.sleep(3 * 3600)
    world.drain()
    slot = (world.clock.now_ms() - NOW_MS) // PRECISION_MS
    world.append(timer(2, slot + 30), cancel(3))
    assert [len(list((world.path / f).iterdir())) for f in cancel_log.FOLDERS] == [2, 2]
    checkpoints = DurableCheckpoints(world.path)
    checkpoints.write()
    world.clock.sleep(61)
    world.drain()
    assert [len(list((world.path / f).iterdir())) for f in cancel_log.FOLDERS] == [1, 1]
    # The durable checkpoint still names what is gone: that is no damage.
    assert check(world.path, world.wheel).ok
    world.clock.sleep(6)
    world.drain()
    assert world.shard.append([TimerRow(1, 0, world.clock.now_ms())], {P1: 1}).rows
    assert len(world.shard.directory(Role.DEQUEUE).state.commit().cancels) == 1
    checkpoints.write()
    checkpoints.close()
    world.restart(Role.DEQUEUE, Role.INGEST)
    assert check(world.path, world.wheel).ok


def test_a_segment_stays_until_all_in_it_is_replied_to(make_world: MakeWorld) -> None:
    """Replies that leave one by one take longer than the hour does."""
    world = make_world(chunk_bytes=1)
    requests = [cancel(n, timer_id=b"%d" % n) for n in range(4)]
    world.append(*requests)
    checkpoints = DurableCheckpoints(world.path)
    checkpoints.write()
    checkpoints.close()
    world.clock.sleep(3 * 3600)
    assert world.shard.dequeue is not None
    world.shard.dequeue.tick()
    assert 0 < len(world.answers()) < len(requests)
    world.append(cancel(len(requests)))
    assert len(world.shard.directory(Role.DEQUEUE).state.commit().cancels) == 2
    world.clock.sleep(61)
    world.drain()
    assert len(world.answers()) == len(requests) + 1


def test_a_cancel_of_a_topic_that_is_gone_keeps_no_segment(make_world: MakeWorld) -> None:
    """It gets no reply, for its partition has no progress any more."""
    world = make_world()
    world.append(timer(0, 5), cancel(1))
    for role in Role:
        world.shard.kill(role)
    TopicNames(world.path).retire("timers")
    world.shard.start_dequeue()
    world.shard.start_ingest()
    world.at_slot(9)
    assert world.answers() == []
    world.clock.sleep(3 * 3600)
    world.drain()
    world.append(cancel(2))
    checkpoints = DurableCheckpoints(world.path)
    checkpoints.write()
    checkpoints.close()
    world.clock.sleep(61)
    world.drain()
    assert len(list((world.path / cancel_log.FOLDER).iterdir())) == 1


def test_before_logs_go_copies_may_be_in_flight_again(make_world: MakeWorld) -> None:
    """A cancel that comes then finds nothing of a timer that was rolled in the hour that goes."""
    world = make_world()
    world.append(timer(0, 5))
    world.at_slot(9)
    world.clock.sleep(3 * 3600)
    world.drain()
    world.append(TimerRow(1, 0, world.clock.now_ms() + 100))
    world.clock.sleep(6)  # a progress says so
    world.drain()
    checkpoints = DurableCheckpoints(world.path)
    checkpoints.write()
    checkpoints.close()
    world.publisher.ends = {P0: 8}
    world.clock.sleep(61)
    world.drain()
    assert len(list((world.path / "timerlog").iterdir())) == 1
    bounds = CancelBounds.read(world.path)
    assert bounds is not None and bounds.blind == {P0: 8, P1: 0}
    world.append(cancel(7), cancel(8, timer_id=b"b"))
    world.clock.sleep(1)
    world.drain()
    assert [chase.origin for chase in world.chases()] == [7]
    assert world.answers() == [("timers-0@8", "unknown")]


@pytest.mark.parametrize("partition", [0, 2])
def test_on_a_full_disk_partitions_that_came_since_the_start_are_not_forgotten(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch, partition: int
) -> None:
    """The file is removed when hours go: without it copies of any of them may be in flight."""
    world = make_world()
    world.append(timer(0, 5, partition=1), timer(0, 5, partition=partition))
    world.at_slot(9)
    world.clock.sleep(3 * 3600)
    world.drain()
    now_ms = world.clock.now_ms()
    world.append(TimerRow(partition, 1, now_ms + 3_000_000, timer_id=b"x", timestamp_ms=now_ms))
    world.append(TimerRow(1, 1, now_ms + 100))
    for seconds in (6, 1_400):
        world.clock.sleep(seconds)
        world.drain()
    assert f"timers-{partition}@1" in world.sources(), "rolled"
    checkpoints = DurableCheckpoints(world.path)
    checkpoints.write()
    checkpoints.close()
    world.clock.sleep(61)
    with monkeypatch.context() as disk:
        disk.setattr(CancelBounds, "write", full_disk)
        world.drain()
    assert CancelBounds.read(world.path) is None
    world.publisher.ends = {(TIMER_TOPIC, number): 4 for number in range(3)}
    world.clock.sleep(2)
    world.drain()
    world.append(TimerRow(partition, 2, 0, timer_id=b"x", request="cancel"))
    world.clock.sleep(2)
    world.drain()
    assert (world.answers(), len(world.chases())) == ([], 1)


def full_disk(*_: object) -> None:
    raise OSError(errno.ENOSPC, "no space left on device")
