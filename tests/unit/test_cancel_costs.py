"""What cancels may cost: work at a closing, memory of a round of lookups."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.unit.test_cancels import NOW_MS, P0, P1, PRECISION_MS, World, cancel
from tests.unit.test_cancels_on_disk import an_hour_later

from duewheel.durability import DurableCheckpoints
from duewheel.schemas.columns import Column, binary, take
from duewheel.schemas.record_tail import key_values
from duewheel.schemas.timers import Int64
from duewheel.testing import Timer, timer_batch
from duewheel.wheel import cancelling, data_directory
from duewheel.wheel.cancel_log import FOLDER, CancelLog, CancelRows
from duewheel.wheel.data_directory import Role
from duewheel.wheel.lookups import Lookups
from duewheel.wheel.message_store import MessageStore, StoredMessages
from duewheel.wheel.timer_log import Records
from duewheel.wheel.tombstones import Run, Tombstones

MakeWorld = Callable[..., World]
LIVE = 2_000
FIRST_SLOT = 500  # in which any of their timers leaves


@pytest.fixture
def make_world(tmp_path: Path) -> MakeWorld:
    return lambda **settings: World(tmp_path / "data", **settings)


def with_live_cancels(make_world: MakeWorld, live: int) -> World:
    """For each a timer is due, in a slot of its own from FIRST_SLOT on."""
    world, rows = make_world(slots=8192), []
    for i in range(live):
        due_ms, own = NOW_MS + (FIRST_SLOT + i) * PRECISION_MS, b"id-%d" % i
        rows += [Timer(0, 2 * i, due_ms, timer_id=own), cancel(2 * i + 1, timer_id=own)]
    world.append(*rows)
    for slot in range(5, 10):
        world.at_slot(slot)
    assert world.known() == (live, 0)
    assert world.progress() == (1, 2 * live)
    return world


def test_a_closing_moves_what_has_come_and_not_what_is_live(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, closings, moved = with_live_cancels(make_world, LIVE), 50, 0
    tombstones_take, run_of = Tombstones.take, Run.of

    def taken(self: Tombstones, rows: Int64) -> Tombstones:
        nonlocal moved
        moved += len(rows)
        return tombstones_take(self, rows)

    def run(key: Int64, timer_id: Column, offset: Int64) -> Run:
        nonlocal moved
        moved += len(key)
        return run_of(key, timer_id, offset)

    monkeypatch.setattr(Tombstones, "take", taken)
    monkeypatch.setattr(Run, "of", run)
    for i in range(closings):
        world.append(cancel(2 * LIVE + i, timer_id=b"nobody-%d" % i))
        world.at_slot(20 + i)
    assert len(world.answers()) == LIVE + closings
    assert closings < moved < LIVE


@pytest.mark.parametrize("at_once", [1, 20, 16_384])
def test_what_is_over_is_dropped_however_seldom_all_are_looked_at(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(cancelling, "_SWEPT_AT_ONCE", at_once)
    live = 200
    world = with_live_cancels(make_world, live)
    lowest, end = [], FIRST_SLOT + live
    for slot in range(FIRST_SLOT, end):
        world.at_slot(slot)
        k, _ = world.progress()
        lowest.append(2 * live if k is None else k)
    assert world.sources() == []
    assert lowest == sorted(lowest), "K does not fall"
    # Of cancel 2i + 1 the timer leaves in slot FIRST_SLOT + i.
    behind = [2 * i + 1 - k for i, k in enumerate(lowest)]
    assert min(behind) >= -2, "a cancel is read again until its timer has left"
    assert max(behind) <= 2 * live // at_once + 2
    for slot in range(end, end + live // at_once + 2):
        world.at_slot(slot)
    assert world.known() == (0, live)


def test_k_that_was_told_does_not_fall_back_when_many_come(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They put off looking at all of them, which was due when K was told."""
    live, r = 200, NOW_MS // PRECISION_MS + FIRST_SLOT + 9  # ten timers leave
    world = with_live_cancels(make_world, live)
    assert world.shard.dequeue is not None
    cancels = world.shard.dequeue._cancels
    assert cancels is not None
    monkeypatch.setattr(cancelling, "_SWEPT_AT_ONCE", live)
    assert cancels.marks(r, {})[P0] == (21, 2 * live)
    first, end = 2 * live, 3 * live
    world.append(*[cancel(o, timer_id=b"nobody") for o in range(first, end)])
    for _ in cancels.learn(world.shard.directory(Role.DEQUEUE).state.commit(), {P0: end}, r):
        pass
    assert cancels.marks(r, {})[P0] == (21, 2 * live)


def test_a_round_keeps_ids_and_not_messages(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, size, count = make_world(slots=4096), 512 * 1024, 80
    rows = [Timer(0, o, NOW_MS + 9_000, timer_id=b"id-%d" % o) for o in range(count)]
    batch = timer_batch(rows)
    values = take(binary([b"x" * size]), np.zeros(count, np.int64))
    large = key_values(binary([None] * count), values)
    world.engine.append(replace(batch, key_value=large), {P0: count})
    del large, values
    held_bytes, read = [], MessageStore.read

    def watched(store: MessageStore, hour: int, records: Records) -> StoredMessages:
        held_bytes.append(pa.total_allocated_bytes())
        return read(store, hour, records)

    monkeypatch.setattr(MessageStore, "read", watched)
    lookups = Lookups(world.path, PRECISION_MS, world.clock)
    commit = world.shard.directory(Role.INGEST).state.commit()
    log_bytes = {hour: lengths.log_bytes for hour, lengths in commit.hours.items()}
    found = lookups.begin(batch.id_hash, log_bytes, r=-1).result()
    lookups.close()
    assert len(found.origin) == count
    assert len(held_bytes) > 3, "several pieces"
    assert max(held_bytes) - held_bytes[0] < 2 * size


def test_who_collects_without_knowing_cancels_reads_each_of_them_once(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a standby does, whose signs of life wait meanwhile."""
    world, count, read = make_world(slots=1 << 20), 400, list[int]()
    world.append(*[cancel(o, timer_id=b"id-%d" % o) for o in range(count)])
    world.append(Timer(0, count, NOW_MS + 9_000_000, timer_id=b"far"))
    world.append(cancel(count + 1, timer_id=b"far"))
    world.at_slot(1)
    world.clock.sleep(3_700)
    world.drain()
    world.append(cancel(count + 2, timer_id=b"nobody"))
    checkpoints = DurableCheckpoints(world.path)
    checkpoints.write()
    checkpoints.close()
    found = world.publisher.committed[-1][1]
    assert found.partitions[P0].k == count + 1
    rows_of = CancelLog.read

    def counted(log: CancelLog, hour: int, start: int, end: int) -> Iterator[CancelRows]:
        for rows in rows_of(log, hour, start, end):
            read.append(len(rows))
            yield rows

    monkeypatch.setattr(CancelLog, "read", counted)
    monkeypatch.setattr(data_directory, "_CANCELS_AT_ONCE", 250)
    directory, segments = world.shard.directory(Role.DEQUEUE), world.path / FOLDER
    for _ in range(5):
        directory.collect(found)
    assert read == [250, 151, 1, 1, 1]
    given_up = {P1: found.partitions[P1]}
    directory.collect(replace(found, partitions=given_up))
    assert len(list(segments.iterdir())) == 2
    over = {p: replace(part, k=None, c=count + 2, c1=None) for p, part in found.partitions.items()}
    directory.collect(replace(found, partitions=over))
    assert len(list(segments.iterdir())) == 2
    an_hour_later(world)
    directory.collect(replace(found, partitions=over))
    assert len(list(segments.iterdir())) == 1


def test_what_is_over_leaves_though_there_is_always_something_to_look_up(
    make_world: MakeWorld,
) -> None:
    """New cancels in every slot, and rounds that are over long before the next slot is closed."""
    rounds: list[Callable[[], None]] = []

    class Beside(Executor):
        def submit(self, fn: Any, /, *given: Any, **named: Any) -> Future[Any]:
            future: Future[Any] = Future()
            rounds.append(lambda: future.set_result(fn(*given, **named)))
            return future

    world = make_world(executor=Beside, reply_topic=None)
    world.publisher.ends = {P0: 0}
    assert world.shard.dequeue is not None
    for offset in range(40):
        world.append(cancel(offset, timer_id=b"nobody %d" % offset))
        world.clock.set(NOW_MS + (offset + 1) * PRECISION_MS)
        world.shard.dequeue.tick()
        while rounds:
            rounds.pop()()
    assert world.known()[0] < 10
