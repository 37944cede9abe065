"""Rates: how much leaves within any time, in which order, and how many copies that costs, also over
stops, kills, and copies that ingest takes late.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.harness.deliveries import keyed, rows

from duewheel.schemas.batches import NEVER, Deliveries
from duewheel.wheel.policies.expiry import Expiry
from duewheel.wheel.policies.policy import DueRows, RateQueue, postponed, returning
from duewheel.wheel.policies.rate import BURST_US, Rate
from duewheel.wheel.slots import closable_slot, slot_of

PRECISION_MS = 50
LEAD_MS = Rate({}).lead_ms
SLOT = 36_000_000_000
START_MS = SLOT * PRECISION_MS
WINDOW_MS = 10**9
Queues = dict[str, RateQueue]


@dataclass
class Queued:
    """A timer, or its newest copy."""

    place: tuple[int, int]  # in the order of due times: its first slot, and its number
    key: int
    slot: int
    copies: int = 0


def due_rows(
    some: list[Queued],
    now_ms: int,
    queues: Queues,
    target: str = "mails",
    window_ms: int = WINDOW_MS,
) -> DueRows:
    count = len(some)
    sent = keyed(rows([target] * count, [0] * count), [b"%d" % row.key for row in some])
    sent = replace(sent, retries=np.array([min(row.copies, 1) for row in some], np.int32))
    slots = np.array([row.slot for row in some], np.int64)
    pending = np.ones(count, np.bool_)
    return DueRows(sent, slots, slots * 0, PRECISION_MS, window_ms, now_ms, pending, queues)


@dataclass
class World:
    """A wheel, its clock, and the queues of the process that delivers."""

    rate: Rate
    chunk: int = 1_000
    window_ms: int = WINDOW_MS
    now_ms: int = START_MS - PRECISION_MS
    queues: Queues = field(default_factory=dict)
    wheel: list[Queued] = field(default_factory=list)  # in the order of the log
    log: list[Queued] = field(default_factory=list)  # copies that ingest has not taken yet
    ingest_is_slow: bool = False
    left: list[tuple[int, Queued]] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def write(self, *keys: int, delay_ms: int = 0) -> None:
        for key in keys:
            slot = max(slot_of(self.now_ms + delay_ms, PRECISION_MS), self._open_slot)
            self.wheel.append(Queued((slot, next(self.numbers)), key, slot))

    def pass_by(self, ms: int = PRECISION_MS, *, killed_after: int = 10**9) -> None:
        """Time passes, then all slots are closed that are past, and delivered chunk by chunk; after
        so many of these the process is killed.
        """
        self.now_ms += ms
        due = [row for row in self.wheel if row.slot < self._open_slot]
        due.sort(key=lambda row: row.slot)
        ranges = range(0, len(due), self.chunk)
        for first in list(ranges)[:killed_after]:
            self._deliver(due[first : first + self.chunk])
        if killed_after < len(ranges):
            self.queues = {t: RateQueue(queue.last_ms * 1_000) for t, queue in self.queues.items()}

    def _deliver(self, some: list[Queued]) -> None:
        due = due_rows(some, self.now_ms, self.queues, window_ms=self.window_ms)
        found = postponed(due, [self.rate])
        for row, back, until_ms in zip(some, returning(found), found.not_before_ms, strict=True):
            self.wheel.remove(row)
            if not back:
                self.left.append((self.now_ms, row))
                continue
            assert until_ms >= self.now_ms + LEAD_MS, "ingest has the time to take it"
            assert until_ms <= row.slot * PRECISION_MS + self.window_ms
            row.slot, row.copies = slot_of(int(until_ms), PRECISION_MS), row.copies + 1
            self.log.append(row)
        if not self.ingest_is_slow:
            self.take()

    def take(self) -> None:
        """Ingest takes the copies, perhaps after the ends of their slots."""
        for row in self.log:
            row.slot = max(row.slot, self._open_slot)
        self.wheel += self.log
        self.log = []

    @property
    def _open_slot(self) -> int:
        return closable_slot(self.now_ms, PRECISION_MS) + 1

    def drain(self) -> None:
        turns = itertools.count()
        self.ingest_is_slow = False
        self.take()
        while self.wheel:
            assert next(turns) < 20_000, "some never leave"
            first = min(row.slot for row in self.wheel)
            self.pass_by(max(PRECISION_MS, first * PRECISION_MS - self.now_ms))

    def require_rate(self, stopped_ms: int = 0) -> None:
        """No time has more in it than the rate permits, but for the turns of a stop."""
        per_us, times = self.rate.per_second["mails"] / 1e6, [at for at, _ in self.left]
        at_us = np.array(times, np.int64) * 1_000
        for first, at in enumerate(at_us):
            free_us = BURST_US + (LEAD_MS + PRECISION_MS + stopped_ms) * 1_000
            most = (at_us[first:] - at + free_us) * per_us + 1.001
            assert (np.arange(1, len(most) + 1) <= most).all(), at

    def require_order(self) -> None:
        for key in {row.key for _, row in self.left}:
            places = [row.place for _, row in self.left if row.key == key]
            assert places == sorted(places), key

    def copies(self) -> list[int]:
        return [row.copies for _, row in self.left]


def due_for(targets: list[str], queues: Queues) -> DueRows:
    """A row for each of these targets, each with a key of its own."""
    count = len(targets)
    sent = keyed(rows(targets, [0] * count), [b"%d" % key for key in range(count)])
    slots = np.full(count, SLOT)
    every = np.ones(count, np.bool_)
    return DueRows(sent, slots, slots * 0, PRECISION_MS, WINDOW_MS, START_MS, every, queues)


def test_each_target_has_its_own_turns_however_the_rows_alternate() -> None:
    rate = Rate({"mails": 0.5, "bills": 2.0})
    turn = ["mails", "free", "bills", "bills"]
    together: Queues = {}
    found = rate.not_before_ms(due_for(turn * 50, together))
    assert found is not None
    for target in ("mails", "bills", "free"):
        mine = np.flatnonzero(np.array(turn * 50) == target)
        due, alone = due_for(turn * 50, {}), Rate({target: rate.per_second.get(target, 1e9)})
        expected = alone.not_before_ms(due)
        assert expected is not None
        assert found[mine].tolist() == expected[mine].tolist()
        assert target == "free" or together[target].charged_us == due.queues[target].charged_us


class Column(np.ndarray):
    """Counts the passes over all of its rows."""

    passes = 0

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        Column.passes += any(each is self for each in inputs)
        plain = [np.asarray(each) if isinstance(each, Column) else each for each in inputs]
        return getattr(ufunc, method)(*plain, **options)


@pytest.mark.parametrize("rated", [1, 300])
def test_a_target_without_a_rate_costs_no_pass_over_the_rows(
    rated: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Column, "passes", 0)
    targets = [f"target-{number}" for number in range(300)]
    due = due_for(targets * 2, {})
    column = due.deliveries.target.view(Column)
    due = replace(due, deliveries=replace(due.deliveries, target=column))
    rate = Rate(dict.fromkeys(targets[:rated], 1.0))
    found = rate.not_before_ms(due)
    assert found is not None and len(due.queues) == rated
    assert Column.passes <= 2


def waiting(deliveries: Deliveries) -> list[bool]:
    found: list[bool] = returning(deliveries).tolist()
    return found


def test_the_excess_leaves_later_in_one_copy_each_at_the_rate() -> None:
    world = World(Rate({"mails": 100.0}))
    world.write(*range(500))
    world.drain()
    assert world.copies() == [0] * 100 + [1] * 400, "a second's timers leave at once"
    assert 3_950 <= world.left[-1][0] - world.left[0][0] <= 4_100
    world.require_rate()


def test_below_the_rate_nothing_waits_however_lately_a_queue_was_there() -> None:
    world, keys = World(Rate({"mails": 100.0})), itertools.count()
    world.write(*itertools.islice(keys, 300))
    for turn in range(400):
        world.write(*itertools.islice(keys, 2 + turn % 2))  # 50 per second
        world.pass_by()
    late = [row for _, row in world.left if row.place[1] >= 300 + 6 * 50]
    assert len(late) >= 650 and not any(row.copies for row in late), "after 300 / (100 - 50) s"
    world.require_rate()


def test_a_key_that_waits_is_followed_by_its_later_timers_only() -> None:
    world = World(Rate({"mails": 20.0}))
    world.write(*range(24))
    world.pass_by()
    world.pass_by(550)  # the four that wait come after a second, and have been charged by now
    world.write(23, 77)
    world.drain()
    found = {row.place[1]: row.copies for _, row in world.left}
    assert (found[23], found[24], found[25]) == (1, 1, 0)
    world.require_order()
    world.require_rate()


@pytest.mark.parametrize(("ahead_ms", "waits"), [(1, True), (-10, True), (-50, False)])
def test_after_a_start_new_timers_queue_behind_the_last_turn(ahead_ms: int, waits: bool) -> None:
    queues = {"mails": RateQueue((START_MS + ahead_ms) * 1_000)}
    due = due_rows([Queued((SLOT, 0), 5, SLOT)], START_MS, queues)
    assert waiting(postponed(due, [Rate({"mails": 1_000.0})])) == [waits], "in the same slot, too"


@pytest.mark.parametrize("slots_late", [1, 4, 40, 400])
def test_a_stop_keeps_the_order(slots_late: int) -> None:
    world = World(Rate({"mails": 20.0}), chunk=4)
    world.write(*(number % 5 for number in range(200)))
    for _ in range(20):
        world.pass_by()
    for number in range(50):
        world.write(number % 5, delay_ms=number * 37)
    world.pass_by(slots_late * PRECISION_MS)
    world.drain()
    world.require_rate(slots_late * PRECISION_MS)
    world.require_order()
    assert max(world.copies()) == 1


def test_several_kills_do_not_exceed_the_rate() -> None:
    world = World(Rate({"mails": 20.0}), chunk=2)
    world.write(*range(60))
    for _ in range(20):
        world.pass_by(killed_after=3)
    world.drain()
    world.require_rate()


def test_what_would_wait_beyond_half_a_window_becomes_a_dead_letter() -> None:
    some = [Queued((SLOT, n), n, SLOT) for n in range(30)]
    due = due_rows(some, START_MS, {}, window_ms=20_000)
    found = postponed(due, [Rate({"mails": 2.0})])
    assert (found.not_before_ms == NEVER).tolist() == [False] * 22 + [True] * 8
    again = due_rows(some[:2], START_MS + 1_000, due.queues, window_ms=20_000)
    assert waiting(postponed(again, [Rate({"mails": 2.0})])) == [True, True], "a second later"


def test_after_an_outage_of_a_day_the_rate_holds() -> None:
    some = [Queued((SLOT - 1_000, n), n, SLOT - 1_000) for n in range(30)]  # 50 s, 5 windows
    due = due_rows(some, START_MS, {}, window_ms=10_000)
    found = postponed(due, [Rate({"mails": 10.0})])
    assert waiting(found) == [False] * 10 + [True] * 20
    assert found.not_before_ms[10:].min() >= START_MS + LEAD_MS


def test_other_targets_and_timers_that_do_not_leave_are_not_charged() -> None:
    rate, some = Rate({"mails": 1.0}), [Queued((SLOT, n), n, SLOT) for n in range(3)]
    queues: Queues = {}
    assert not any(waiting(postponed(due_rows(some, START_MS, queues, "others"), [rate])))
    assert not queues
    due = replace(due_rows(some, START_MS, queues), pending=np.array([False, False, True]))
    postponed(due, [rate])
    assert queues["mails"].charged_us == START_MS * 1_000, "one of them"
    expired = Expiry({"timers": 1})
    found = postponed(due_rows(some, START_MS, queues), [expired, rate])
    assert not returning(found).any() and queues["mails"].charged_us == START_MS * 1_000


steps = st.lists(
    st.tuples(
        st.integers(0, 12),  # timers that are written
        st.integers(0, 3),  # their slots ahead
        st.sampled_from([10, 50, 50, 50, 120, 400, 3_000]),  # ms that pass
        st.sampled_from([0, 1, 10**9, 10**9]),  # transactions before a kill
    ),
    max_size=16,
)
per_second = st.sampled_from([0.5, 7.0, 20.0, 60.0, 1_000.0])


@settings(max_examples=60, deadline=None)
@given(steps, per_second, st.integers(1, 6), st.booleans())
def test_rate_and_order_hold_over_stops_and_kills(
    story: list[tuple[int, int, int, int]], per_second: float, chunk: int, kills: bool
) -> None:
    world = World(Rate({"mails": per_second}), chunk)
    for count, ahead, ms, killed_after in story:
        world.write(*(key % 3 for key in range(count)), delay_ms=ahead * PRECISION_MS)
        world.pass_by(ms, killed_after=killed_after if kills else 10**9)
    world.drain()
    world.require_rate(sum(ms for _, _, ms, _ in story))
    world.require_order()


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 20), max_size=60), per_second)
def test_without_a_stop_each_timer_waits_once_at_most(counts: list[int], per_second: float) -> None:
    world, keys = World(Rate({"mails": per_second}), chunk=7), itertools.count()
    for count in counts:
        world.write(*itertools.islice(keys, count))
        world.pass_by()
    world.drain()
    world.require_rate()
    assert max(world.copies(), default=0) <= 1
