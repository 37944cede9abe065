"""The timers that cancels stop, and their outcomes, against the rules, one cancel at a time."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import numpy as np
import pytest

from duewheel.schemas.batches import ANY_OFFSET, NO_SLOT
from duewheel.wheel.append.cancel_matches import NO_CANCEL, PAIRS_AT_ONCE, Cancels, Timers, resolve
from duewheel.wheel.storage.cancel_log import (
    ALREADY_DELIVERED,
    CANCELLED,
    CHASE,
    CHASE_FOUND,
    UNKNOWN,
)

R, FLOOR = 10, 20


def a_case(random: Random) -> tuple[Cancels, Timers]:
    """A batch with few ids. What is closed lies below C, as do cancels that are read again."""
    c, end = random.randint(0, 30), 40
    group, first, offset, slot = list[int](), list[int](), list[int](), list[int]()
    cancelled: list[bool] = []
    for at in sorted(random.sample(range(end), random.randint(0, 20))):
        group.append(random.randint(0, 2))
        mine = [f for f, g in zip(first, group, strict=False) if g == group[-1]]
        first.append(random.choice(mine) if mine and random.random() < 0.4 else at)
        offset.append(at)
        lowest = 1 if at < c else FLOOR + 1
        slot.append(random.randint(lowest, FLOOR + 9))
        cancelled.append(random.random() < 0.2)
    rows = []
    for at in sorted(random.sample(range(end), random.randint(1, 12))):
        here = [
            g for g, o in zip(group, offset, strict=True) if o == at
        ]  # a reschedule's own timer
        of = here[0] if here else random.randint(0, 3)
        is_chase = not here and at > 0 and random.random() < 0.4
        asked = random.randint(0, at - 1) if is_chase else at
        name = random.choice([ANY_OFFSET] * 4 + [random.randint(0, end)])
        slot_of_chase = random.randint(0, FLOOR) if is_chase else NO_SLOT
        was_found = is_chase and random.random() < 0.4
        rows.append((of, at, asked, name, slot_of_chase, was_found))
    of_cancels = [np.array(column, np.int64) for column in zip(*rows, strict=True)]
    groups, q, request, named, chase_slot, found = of_cancels
    again, blind = q < c, np.full(len(q), random.choice([0, 0, 15, 50]))
    bound, chased = np.where(again, R, FLOOR), again | (q < blind)
    cancels = Cancels(groups, q, request, named, chase_slot, found > 0, bound, chased, blind)
    of_timers = [np.array(values, np.int64) for values in (group, first, offset, slot)]
    group_of, first_of, offset_of, slot_of = of_timers
    is_cancelled = np.array(cancelled, np.bool_)
    return cancels, Timers(group_of, first_of, offset_of, slot_of, is_cancelled)


def one_at_a_time(cancels: Cancels, timers: Timers) -> tuple[list[int], list[int]]:
    """Outcomes, and by whom each timer is cancelled, by the rules."""
    by, outcomes = [NO_CANCEL] * len(timers), []
    for x in range(len(cancels)):
        matching = list(matched(cancels, timers, x))
        found = bool(cancels.has_cancelled[x])
        for t in matching:
            if not timers.cancelled[t] and by[t] == NO_CANCEL and timers.slot[t] > cancels.bound[x]:
                by[t], found = x, True
        outcomes.append(outcome(cancels, timers, by, matching, x, found=found))
    return outcomes, by


def matched(cancels: Cancels, timers: Timers, x: int) -> Iterator[int]:
    for t in range(len(timers)):
        first = timers.first_offset[t]
        if (
            timers.group[t] == cancels.group[x]
            and timers.offset[t] < cancels.offset[x]
            and first < cancels.request[x]
            and cancels.named[x] in {ANY_OFFSET, first}
        ):
            yield t


def outcome(
    cancels: Cancels, timers: Timers, by: list[int], matching: list[int], x: int, *, found: bool
) -> int:
    last: dict[int, int] = {}
    for t in sorted(matching, key=lambda t: timers.offset[t]):
        last[int(timers.first_offset[t])] = t
    stopped = {first: bool(timers.cancelled[t]) or by[t] != NO_CANCEL for first, t in last.items()}
    undecided = any(
        not stopped[first] and timers.slot[t] > cancels.chase_slot[x] for first, t in last.items()
    )
    if undecided or cancels.must_chase[x]:
        return CHASE_FOUND if found else CHASE
    if found:
        return CANCELLED
    if not last or cancels.request[x] < cancels.blind[x]:
        return UNKNOWN
    newest = max(last)
    if not stopped[newest]:
        return ALREADY_DELIVERED
    is_sure = newest >= cancels.blind[x] or cancels.named[x] != ANY_OFFSET
    return CANCELLED if is_sure else UNKNOWN


@pytest.mark.parametrize("seed", range(8))
def test_all_at_once_is_one_at_a_time(seed: int) -> None:
    random, pairs_at_once = Random(seed), 3 if seed % 2 else PAIRS_AT_ONCE
    met = set()
    for _ in range(400):
        cancels, timers = a_case(random)
        resolved = resolve(cancels, timers, FLOOR, pairs_at_once=pairs_at_once)
        outcomes, by = one_at_a_time(cancels, timers)
        assert resolved.cancelled_by.tolist() == by, (cancels, timers)
        assert resolved.outcome.tolist() == outcomes, (cancels, timers)
        met |= set(outcomes)
    assert met == {CANCELLED, ALREADY_DELIVERED, UNKNOWN, CHASE, CHASE_FOUND}


@pytest.mark.parametrize(
    ("blind", "named", "expected"),
    [
        (0, ANY_OFFSET, CANCELLED),
        (3, ANY_OFFSET, CANCELLED),
        (4, ANY_OFFSET, UNKNOWN),
        (4, 3, CANCELLED),
    ],
)
def test_a_timer_that_was_cancelled_before_decides_only_if_none_that_is_newer_can_be_missing(
    blind: int, named: int, expected: int
) -> None:
    """Due in hours, then rescheduled to now: delivered, and gone with its hour. Who cancels then
    has cancelled nothing."""
    one = np.zeros(1, np.int64)
    no = np.zeros(1, np.bool_)
    at = one + 9
    cancels = Cancels(one, at, at, one + named, one + NO_SLOT, no, one + FLOOR, no, one + blind)
    timers = Timers(one, one + 3, one + 3, one + FLOOR + 5, ~no)
    assert resolve(cancels, timers, FLOOR).outcome.tolist() == [expected]


def test_work_does_not_grow_with_the_product_of_cancels_and_copies_of_the_timer_they_name() -> None:
    """A client may repeat a copy as it is. Two thousand million pairs would hold engine.lock for a
    minute and a half."""
    count = 65_536
    at, no = np.arange(1, count + 1), np.zeros(count, np.bool_)
    same, closed = np.zeros(count, np.int64), np.full(count, FLOOR)
    no_slot = np.full(count, NO_SLOT)
    cancels = Cancels(same, at + count, at + count, same, no_slot, no, closed, no, same)
    timers = Timers(same, same, at, np.full(count, FLOOR + 5), no)
    resolved = resolve(cancels, timers, FLOOR)
    assert resolved.cancelled_by.tolist() == [0] * count
    assert resolved.outcome.tolist() == [CANCELLED] * count


def test_work_does_not_grow_with_the_product_of_cancels_and_timers_of_one_id() -> None:
    """Pairs of them would fill the memory."""
    count = 300_000
    at = np.arange(count)
    group, no = np.zeros(count, np.int64), np.zeros(count, np.bool_)
    any_, no_slot = np.full(count, ANY_OFFSET), np.full(count, NO_SLOT)
    floor = np.full(count, FLOOR)
    cancels = Cancels(group, at, at, any_, no_slot, no, floor, no, group)
    timers = Timers(group, at, at, np.full(count, FLOOR + 5), no)
    resolved = resolve(cancels, timers, FLOOR)
    assert resolved.cancelled_by[:-1].tolist() == list(range(1, count))
    assert resolved.outcome.tolist() == [UNKNOWN] + [CANCELLED] * (count - 1)


@pytest.mark.parametrize("of_chases", [False, True])
def test_work_does_not_grow_with_the_product_of_cancels_read_again_and_timers(
    of_chases: bool,
) -> None:
    """A standby reads all of them again, a recovery some: 1,000 chases of an id with 900,000 timers
    held engine.lock for three minutes, so that nothing of the shard was delivered.
    """
    count = 300_000
    at = np.arange(count)
    group, no = np.zeros(count, np.int64), np.zeros(count, np.bool_)
    any_, until = np.full(count, ANY_OFFSET), np.full(count, FLOOR if of_chases else NO_SLOT)
    request = np.minimum(at + 1, count // 2) if of_chases else count + at
    cancels = Cancels(group, count + at, request, any_, until, no, at * 0 + R, ~no, group)
    timers = Timers(group, at, at, np.full(count, R + 1), no)
    resolved = resolve(cancels, timers, FLOOR)
    half = count // 2
    first = [*range(half), *[NO_CANCEL] * half] if of_chases else [0] * count
    assert resolved.cancelled_by.tolist() == first
    stops = np.isin(at, first)
    assert resolved.outcome.tolist() == np.where(stops, CHASE_FOUND, CHASE).tolist()
