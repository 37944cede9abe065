"""Target topics are named by producers: their names live and die with the messages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.harness.local_world import NOW_MS, LocalWorld
from tests.harness.timer_rows import P0, TimerRow, timer_batch

from duewheel.checkpoints.process_role import Role
from duewheel.schemas.hashing import java_hash, topic_hash
from duewheel.wheel.inspect import pending_counts
from duewheel.wheel.inspect.listing import Filter, list_pending
from duewheel.wheel.inspect.pending_counts import OTHER, PendingTimers
from duewheel.wheel.slots import HOUR_MS, WheelConfig
from duewheel.wheel.storage import record_builder
from duewheel.wheel.storage.byte_layouts import RECORD_BYTES
from duewheel.wheel.storage.data_directory import DataDirectory

WHEEL = WheelConfig(50, 4096, window_ms=60_000, margin_ms=0)


@pytest.fixture
def world(tmp_path: Path) -> LocalWorld:
    return LocalWorld(
        tmp_path / "data", WHEEL, starts={P0: 0}, chunk_records=50_000, chunk_bytes=64 << 20
    )


def append(world: LocalWorld, count: int, due_ms: int) -> None:
    """Timers that all have targets of their own."""
    first = world.engine.marks[P0]
    batch = timer_batch([TimerRow(0, first + n, due_ms) for n in range(count)])
    names = [f"none.{first + n}" for n in range(count)]
    batch = replace(batch, targets=names, target=np.arange(count, dtype=np.int32))
    world.engine.append(batch, {P0: first + count})


def deliver(world: LocalWorld, until_ms: int) -> None:
    world.clock.set(until_ms)
    for _ in range(60):  # a transaction has 400 topics at most
        world.tick()


def test_names_of_targets_are_gone_with_their_messages(world: LocalWorld) -> None:
    for step in range(1, 4):
        due_ms = NOW_MS + step * 1_000
        append(world, 20_000, due_ms)
        deliver(world, due_ms + 100)
    assert len(world.publisher.sources()) == 60_000
    assert (world.path / "topics").stat().st_size < 100  # the timer topic alone
    for role in (Role.INGEST, Role.DEQUEUE):
        assert len(world.shard.directory(role).topics) == 1


def test_pending_timers_are_counted_by_name_up_to_a_bound(world: LocalWorld) -> None:
    for _ in range(3):
        append(world, 1_000, NOW_MS + 10_000)
    seen = DataDirectory(world.path, WHEEL)
    found = PendingTimers(seen).count()
    assert (found.total, len(found.by_topic)) == (3_000, pending_counts.TOPICS_MAX + 1)
    assert found.by_topic[OTHER] == 3_000 - pending_counts.TOPICS_MAX
    deliver(world, NOW_MS + 10_100)
    assert PendingTimers(seen).count().by_topic == {}
    seen.close()


def put(world: LocalWorld, target: str, count: int, due_ms: int = NOW_MS + 10_000) -> None:
    first = world.engine.marks[P0]
    batch = timer_batch([TimerRow(0, first + n, due_ms) for n in range(count)])
    batch = replace(batch, targets=[target], target=np.zeros(count, np.int32))
    world.engine.append(batch, {P0: first + count})


def test_no_target_takes_the_place_of_another_with_its_java_hash(world: LocalWorld) -> None:
    """Counts would give it the other's timers; a list by topic would read all of its messages."""
    theirs, own = "team.AaAa", "team.BBBB"
    assert java_hash(theirs) == java_hash(own)
    put(world, own, 3)
    put(world, theirs, 2)
    seen = DataDirectory(world.path, WHEEL)
    assert PendingTimers(seen).count().by_topic == {own: 3, theirs: 2}
    records = seen.log.view(*next(iter(seen.state.commit().hours.items()))[:1], 5 * RECORD_BYTES)
    assert len(set(records["topic_hash"].tolist())) == 2
    assert [timer.target for timer in list_pending(seen, Filter(topic=theirs), 5)] == [theirs] * 2


def test_timers_of_an_earlier_version_are_counted_and_listed(
    world: LocalWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr(record_builder, "topic_hash", lambda name, _: java_hash(name))
        put(world, "orders", 3)
    put(world, "orders", 2)
    seen = DataDirectory(world.path, WHEEL)
    assert PendingTimers(seen).count().by_topic == {"orders": 5}
    assert len(list(list_pending(seen, Filter(topic="orders"), 10))) == 5


@pytest.mark.parametrize("counted_between", [False, True])
def test_names_that_came_first_hide_no_target_with_more_timers(
    world: LocalWorld, counted_between: bool
) -> None:
    """Another team invents them: as many as have names in a count, in each hour."""
    seen = DataDirectory(world.path, WHEEL)
    pending = PendingTimers(seen)
    for hour in range(3):
        append(world, pending_counts.TOPICS_MAX, NOW_MS + hour * HOUR_MS + 10_000)
    if counted_between:
        pending.count()
    put(world, "orders", 20)
    put(world, "bills", 1)
    put(world, "bills", 1, NOW_MS + HOUR_MS + 10_000)
    found = pending.count()
    assert (found.by_topic["orders"], found.by_topic["bills"]) == (20, 2), "over all hours"
    assert len(found.by_topic) == pending_counts.TOPICS_MAX + 1
    assert sum(found.by_topic.values()) == found.total == 3 * pending_counts.TOPICS_MAX + 22
    seen.close()


def test_of_targets_that_leave_the_others_have_names(world: LocalWorld) -> None:
    """Also in the midst of a slot."""
    append(world, 1_500, NOW_MS + 1_000)
    put(world, "orders", 3)
    seen = DataDirectory(world.path, WHEEL)
    pending = PendingTimers(seen)
    assert pending.count().by_topic["orders"] == 3
    world.clock.set(NOW_MS + 1_100)
    left = len(world.publisher.sources())
    while left < 1_500:
        world.tick()
        left = len(world.publisher.sources())
        found = pending.count()
        assert sum(found.by_topic.values()) == found.total == 1_503 - left
        assert found.by_topic["orders"] == 3
        assert found == PendingTimers(seen).count()
    assert found.by_topic == {"orders": 3}
    seen.close()


@pytest.mark.parametrize("hash_of_busy", [-(2**31), 2**31 - 1])
def test_targets_with_the_most_timers_are_counted_by_name(
    world: LocalWorld, monkeypatch: pytest.MonkeyPatch, hash_of_busy: int
) -> None:
    """Whatever their hashes are, which differ in each directory."""
    hashes = {"busy": hash_of_busy}
    monkeypatch.setattr(
        record_builder, "topic_hash", lambda name, key: hashes.get(name, topic_hash(name, key))
    )
    first, others = world.engine.marks[P0], 2 * pending_counts.TOPICS_MAX
    batch = timer_batch([TimerRow(0, first + n, NOW_MS + 10_000) for n in range(others + 10)])
    names = [*(f"none.{number}" for number in range(others)), "busy"]
    target = np.minimum(np.arange(others + 10), others).astype(np.int32)
    world.engine.append(replace(batch, targets=names, target=target), {P0: first + others + 10})
    found = PendingTimers(DataDirectory(world.path, WHEEL)).count().by_topic
    assert (found["busy"], len(found)) == (10, pending_counts.TOPICS_MAX + 1)
