"""Slots with more timers than should leave at once: the curve, the keys' order, the copies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import structlog
from hypothesis import example, given
from hypothesis import strategies as st
from tests.harness.deliveries import (
    DOWN,
    NOW_MS,
    ROOM,
    judged,
    keyed,
    read_back,
    routed,
    rows,
    topics,
)
from tests.harness.local_world import PRECISION_MS, SLOT, LocalWorld, timer
from tests.harness.timer_rows import P0, P1, TIMER_TOPIC, timer_batch
from tests.simulation.contract_check import decoded

from duewheel.checkpoints.process_role import Role
from duewheel.schemas.arrays import Bool, Int64
from duewheel.schemas.batches import ANY_TIME, NEVER, NO_KEY, NO_POLICY, Deliveries, PolicyLabel
from duewheel.wheel.dequeue.statistics import Statistics
from duewheel.wheel.encoded import Aside
from duewheel.wheel.policies.hot_slots import HotSlots
from duewheel.wheel.policies.policy import returning
from duewheel.wheel.target_rules import Target

SPREAD = HotSlots("spread", 100, 5_000)


def of_keys(hashes: Sequence[int] | Int64) -> Deliveries:
    count = len(hashes)
    some = rows(["orders"] * count, [0] * count)
    return replace(some, key_hash=np.asarray(hashes).astype(np.int32))


def instants(
    hot: HotSlots, hashes: Sequence[int] | Int64, place: Int64 | None = None, slot: int = SLOT
) -> Int64:
    place = np.arange(len(hashes)) if place is None else place
    return asked(hot, of_keys(hashes), place, slot).not_before_ms


def asked(hot: HotSlots, sent: Deliveries, place: Int64, slot: int = SLOT) -> Deliveries:
    return judged(sent, hot, slot=slot, rank=place)


# ---- the curve ----------------------------------------------------------------------------------


def rises_as_it_should(excess: Bool, limit: int) -> bool:
    """Whether the share of rows in excess follows the line from 0 at the limit to 1 at its double,
    in each of thirty bins from 0 to three times the limit, within five standard deviations.
    """
    line = np.clip((np.arange(len(excess)) - limit) / limit, 0, 1)
    bins = np.arange(len(excess)) * 10 // limit
    expected = np.bincount(bins, line)
    deviation = np.sqrt(np.bincount(bins, line * (1 - line)))
    return bool((np.abs(np.bincount(bins, excess) - expected) <= 5 * deviation).all())


def upside_down(place: Int64, limit: int) -> Bool:
    """isReject of RocketMQ's TimerMessageStore, by the count that a message meets."""
    chance = np.random.default_rng(7).integers(0, 1000, len(place))
    between = chance > 1000 * (place - limit) / (limit + 0.1)
    found: Bool = (place > limit) & (between | (place >= 2 * limit))
    return found


@pytest.mark.parametrize("partitions", [1, 8])
@pytest.mark.parametrize("keyed_rows", [True, False])
def test_the_share_in_excess_rises_from_the_limit_to_its_double(
    partitions: int, keyed_rows: bool
) -> None:
    """Also among the keys of one timer partition, which have bits of their hash in common."""
    limit = 20_000
    hot, count = replace(SPREAD, limit=limit), 3 * limit
    hashes = np.random.default_rng(1).permutation(2**20)[:count] * partitions + partitions // 2
    sent = of_keys(hashes if keyed_rows else np.full(count, NO_KEY))
    place = np.arange(count)
    excess = asked(hot, sent, place).not_before_ms != ANY_TIME
    assert not excess[: limit + 1].any() and excess[2 * limit :].all()
    assert rises_as_it_should(excess, limit)
    assert not rises_as_it_should(upside_down(place, limit), limit)
    assert not rises_as_it_should(place > 1.5 * limit, limit), "nor is it a step"


def test_the_same_rows_are_in_excess_each_time() -> None:
    hashes = np.random.default_rng(3).integers(0, 2**31, 300)
    whole = instants(SPREAD, hashes)
    assert (whole != ANY_TIME).sum() > 100
    assert np.array_equal(instants(SPREAD, hashes), whole)


# ---- keys ---------------------------------------------------------------------------------------


@given(
    keys=st.lists(st.integers(0, 7), min_size=1, max_size=120),
    limit=st.integers(1, 40),
    window_ms=st.integers(0, 100_000),
)
@example(keys=[0] * 100, limit=40, window_ms=60_000)
def test_once_a_row_of_a_key_is_in_excess_all_later_ones_are_and_wait_as_long(
    keys: list[int], limit: int, window_ms: int
) -> None:
    hashes = [key * 0x2545F49 for key in keys]
    held = instants(HotSlots("spread", limit, window_ms), hashes)
    later = instants(HotSlots("spread", limit, window_ms), hashes, slot=SLOT + 3)
    for key in set(keys):
        mine = held[np.array(keys) == key]
        excess = mine != ANY_TIME
        assert not (excess[:-1] & ~excess[1:]).any()
        assert len(set(mine[excess].tolist())) <= 1, "they come back together, and in order"
        if excess.any():
            assert later[np.array(keys) == key].max() > mine.max(), "behind those of a slot before"


def test_what_is_spread_leaves_later_than_its_slot_and_within_the_window() -> None:
    hashes = np.random.default_rng(5).integers(0, 2**31, 40_000)
    for first in (0, 20_000):  # some of them in excess, all of them
        place = np.full(len(hashes), 150 if first == 0 else 500)
        held = instants(SPREAD, hashes, place)
        held = held[held != ANY_TIME] - (SLOT + 1) * PRECISION_MS
        assert held.min() >= 0 and held.max() < SPREAD.window_ms
        per_tenth = np.histogram(held, 10, (0, SPREAD.window_ms))[0]
        assert abs(per_tenth / len(held) - 0.1).max() < 0.015, "evenly, whoever is in excess"


def test_what_was_spread_or_parked_is_never_in_excess() -> None:
    sent = replace(of_keys([5] * 2), retries=np.array([1, 0], np.int32))
    assert returning(asked(SPREAD, sent, np.full(2, 1_000))).tolist() == [False, True]


# ---- where they go ------------------------------------------------------------------------------


def held_back(instants: Sequence[int], names: Sequence[str] | None = None) -> Deliveries:
    count = len(instants)
    sent = keyed(rows(names or ["a"] * count, [0] * count), [b"k"] * count)
    held = np.array(instants)
    policy = np.where(held == ANY_TIME, NO_POLICY, 0).astype(np.int32)
    return replace(
        sent,
        not_before_ms=held,
        policies=[PolicyLabel(HotSlots.name, HotSlots.refusal)],
        policy=policy,
    )


def test_what_is_spread_goes_back_as_a_copy_in_its_place() -> None:
    later_ms = NOW_MS + 1_234
    sent = replace(
        held_back([ANY_TIME, later_ms, ANY_TIME]),
        due_ms=np.full(3, NOW_MS - 5),
        origin_offset=np.full(3, 17),
    )
    found = routed(sent, {"a": ROOM})
    assert (topics(found), found.aside.postponed.tolist()) == (["a", "timers", "a"], [1])
    copy = found.deliveries
    batch = read_back(decoded(copy.headers[1].as_py(), int(copy.header_count[1])))
    assert (batch.due_ms[0], batch.not_before_ms[0]) == (NOW_MS - 5, later_ms)
    assert (batch.origin_offset[0], batch.retries[0]) == (17, 1), "never in excess again"


def test_a_copy_that_its_timer_topic_does_not_take_leaves_with_its_slot() -> None:
    found = routed(
        held_back([NOW_MS + 9] * 2), {"a": ROOM, "timers": Target(1, 90, batch_bytes=90)}
    )
    assert (topics(found), found.aside.postponed.tolist()) == (["a", "a"], [])
    assert not found.aside.reasons


def test_what_is_in_excess_of_a_target_without_writes_waits_for_the_later_of_both() -> None:
    sent = replace(held_back([NOW_MS + 9, NOW_MS + 90_000]), target_partition=np.array([1, 1]))
    found = routed(sent, {"a": DOWN})
    copies = found.deliveries
    held = [
        int(dict(decoded(copies.headers[row].as_py(), int(copies.header_count[row])))[name])
        for row in range(2)
        for name in ["TIMER_NOT_BEFORE_MS"]
    ]
    assert NOW_MS + 750 <= held[0] <= NOW_MS + 1_000, "as long as those that were parked before it"
    assert held[1] == NOW_MS + 90_000


def test_the_statistics_tell_them_from_what_is_parked() -> None:
    sent = held_back([NOW_MS + 9, ANY_TIME, NEVER, ANY_TIME])
    aside = Aside(
        np.array([1]),
        np.array([0]),
        dead_lettered=np.array([2]),
        codes=["hot_slot"],
        code=np.array([0]),
    )
    known = Statistics().after_commit(sent, aside, NOW_MS, 5)
    assert (known.postponed, known.parked) == ({"hot_slot": 1}, {"a": 1})
    assert (known.delivered, known.dead_letters) == (1, {"hot_slot": 1})


# ---- the loop -----------------------------------------------------------------------------------

HOT = HotSlots("spread", 4, 300)


def hot_world(path: Path, chunk_records: int, **settings: Any) -> LocalWorld:
    """A shard with a slot of many timers of two partitions."""
    return LocalWorld(path, chunk_records=chunk_records, **{"policies": (HOT,), **settings})


def fill(world: LocalWorld, order: Sequence[tuple[int, int]], slot: int = 1) -> None:
    world.append(*(timer(partition, offset, slot) for partition, offset in order))


def deliver(world: LocalWorld, *, killed: Callable[[int], bool]) -> None:
    """Everything closed, with kills of dequeue behind some of the transactions."""
    while world.tick():
        if killed(len(world.publisher.committed)):
            world.restart(Role.DEQUEUE)


def left(world: LocalWorld) -> list[tuple[str, int, int]]:
    """Source, key hash, and until when each row is held back, in the order of leaving."""
    found: list[tuple[str, int, int]] = []
    for deliveries, _ in world.publisher.committed:
        if deliveries is not None:
            found += zip(
                [(source or b"").decode() for source in deliveries.source.to_pylist()],
                deliveries.key_hash.tolist(),
                deliveries.not_before_ms.tolist(),
                strict=True,
            )
    return found


ORDER = [(number, offset) for offset in range(14) for number in range(2)]


def test_a_slot_is_spread_in_several_transactions(tmp_path: Path) -> None:
    world = hot_world(tmp_path, 3)
    fill(world, ORDER)
    world.at_slot(1)
    spread = [
        int(returning(deliveries).sum())
        for deliveries, _ in world.publisher.committed
        if deliveries is not None
    ]
    assert max(spread) == 3 and sum(spread) >= 28 - 8
    half = [
        part.half_rows for _, at in world.publisher.committed for part in at.partitions.values()
    ]
    assert (
        sorted({n for n in half if n})
        == np.cumsum([len(d) for d, _ in world.publisher.committed if d is not None])[:-1].tolist()
    ), "each tells how many rows of the slot are out"


@pytest.mark.parametrize(("chunk_records", "kills"), [(1, 0), (5, 0), (2, 3), (5, 2)])
def test_chunks_and_kills_within_the_slot_change_nothing(
    tmp_path: Path, chunk_records: int, kills: int
) -> None:
    whole = hot_world(tmp_path / "whole", 100)
    cut = hot_world(tmp_path / "cut", chunk_records)
    for world in (whole, cut):
        fill(world, ORDER)
        fill(world, ORDER[:2], slot=2)
        world.set_slot(2)
    whole.drain()
    deliver(cut, killed=lambda count: count in range(4, 4 + 4 * kills, 4))
    assert left(cut) == left(whole)
    held = [until for _, _, until in left(whole)]
    assert all(until == ANY_TIME for until in held[:5]), "up to the limit all leave"
    assert all(until > NOW_MS + 2 * PRECISION_MS - 1 for until in held[8:28])


def test_a_slot_that_was_half_out_when_the_directory_was_lost_goes_on_at_its_place(
    tmp_path: Path,
) -> None:
    """What is read again lies in another order, and what was out is not there: without a count of
    that the limit would begin anew, and later rows of a key overtake those that were spread.
    """
    world = hot_world(tmp_path / "first", 2)
    fill(world, ORDER)
    world.set_slot(1)
    for _ in range(5):
        world.tick()
    spread = {key for _, key, until in left(world) if until != ANY_TIME}
    assert spread, "some are in excess already"
    world.kill()
    other = world.beside(tmp_path / "second", replace(world.config, chunk_records=3))
    other.start_dequeue(take_over=True)
    other.start_ingest()
    world.shard, before = other, len(left(world))
    for number in range(2):
        fill(world, [(number, offset) for offset in range(14)])
    world.drain()
    rest = left(world)[before:]
    assert sorted(source for source, _, _ in left(world)) == sorted(
        f"{TIMER_TOPIC}-{number}@{offset}" for number, offset in ORDER
    )
    assert all(until != ANY_TIME for _, _, until in rest), "the tenth row and those behind it"


@pytest.mark.parametrize("chunk_records", [100, 3])
def test_a_slot_that_one_topic_fills_holds_up_no_other(tmp_path: Path, chunk_records: int) -> None:
    """Also behind a kill within the slot."""
    bystander = ("other", 0)
    world = hot_world(tmp_path, chunk_records, starts={P0: 0, P1: 0, bystander: 0})
    fill(world, ORDER)
    other = timer_batch([timer(0, offset, 1) for offset in range(HOT.limit)])
    assert world.shard.ingest is not None
    world.shard.ingest.append(replace(other, partitions=[bystander]), {bystander: HOT.limit})
    fill(world, [(0, offset) for offset in range(14, 20)])
    world.set_slot(1)
    deliver(world, killed=lambda count: count in {5, 9})
    held = {source: until for source, _, until in left(world)}
    assert {until for source, until in held.items() if source.startswith("other-")} == {ANY_TIME}
    assert sum(until != ANY_TIME for until in held.values()) >= len(ORDER) + 6 - 2 * HOT.limit
    assert len(held) == len(ORDER) + 6 + HOT.limit


def test_postponed_timers_are_logged_once_a_minute_with_their_number(tmp_path: Path) -> None:
    world = hot_world(tmp_path, 3)
    for slot in (1, 2):
        fill(world, [(number, offset + 20 * slot) for number, offset in ORDER], slot)
    world.set_slot(2)
    with structlog.testing.capture_logs() as lines:
        world.drain()
        first = world.dequeue.statistics.postponed
        world.clock.sleep(61)
        fill(world, [(number, offset + 60) for number, offset in ORDER], 3)  # overdue: one slot
        world.clock.sleep(1)
        world.drain()
    logged = [line["timers"]["hot_slot"] for line in lines if "postponed" in line["event"]]
    assert len(logged) == 2 and 0 < logged[0] < first["hot_slot"] <= logged[1]


def test_a_policy_may_forbid_rows_and_each_slot_is_judged_alone(tmp_path: Path) -> None:
    world = hot_world(tmp_path, 3, policies=(HotSlots("dead-letter", 4),))
    for slot in (1, 2):
        fill(world, [(number, offset + 20 * slot) for number, offset in ORDER], slot)
    world.set_slot(2)
    world.drain()
    assert sum(until == NEVER for _, _, until in left(world)) >= 2 * (28 - 9)
