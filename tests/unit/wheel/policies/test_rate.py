"""Rates: how much leaves within any time, in which order, and how often a copy is written, also
over stops, kills and a queue that is forgotten.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.harness.deliveries import keyed, rows

from duewheel.checkpoints.rate_queues import Queues
from duewheel.schemas.batches import ANY_TIME
from duewheel.wheel.policies.policy import DueRows, postponed, returning
from duewheel.wheel.policies.rate import Rate
from duewheel.wheel.slots import closable_slot, slot_of

PRECISION_MS = 50
SLOT = 36_000_000_000
START_MS = SLOT * PRECISION_MS


@dataclass
class Queued:
    """A timer, or its newest copy."""

    place: tuple[int, int]  # in the order of due times: its first slot, and its number
    key: int
    slot: int
    turn_ms: int = ANY_TIME
    copies: int = 0


def due_rows(
    some: list[Queued], now_ms: int, queues: Queues, target: str = "mails", window_ms: int = 10**9
) -> DueRows:
    count = len(some)
    sent = keyed(rows([target] * count, [0] * count), [b"%d" % row.key for row in some])
    sent = replace(
        sent,
        turn_ms=np.array([row.turn_ms for row in some], np.int64),
        retries=np.array([min(row.copies, 1) for row in some], np.int32),
    )
    slots = np.array([row.slot for row in some], np.int64)
    pending = np.ones(count, np.bool_)
    return DueRows(sent, slots, slots * 0, PRECISION_MS, window_ms, now_ms, pending, queues)


@dataclass
class World:
    """A wheel, its clock, and the queues as the last transaction has left them."""

    rate: Rate
    chunk: int = 3
    now_ms: int = START_MS
    queues: Queues = field(default_factory=dict)
    wheel: list[Queued] = field(default_factory=list)  # in the order of the log
    log: list[Queued] = field(default_factory=list)  # copies that ingest has not taken yet
    ingest_is_slow: bool = False
    left: list[tuple[int, Queued]] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def write(self, key: int, delay_ms: int = 0) -> None:
        due_slot = slot_of(self.now_ms + delay_ms, PRECISION_MS)
        slot = max(due_slot, self._open_slot)
        self.wheel.append(Queued((slot, next(self.numbers)), key, slot))

    def pass_by(self, ms: int, *, killed_after: int = 10**9) -> None:
        """Time passes, then all slots are closed that are past, and delivered chunk by chunk; after
        so many of these the process is killed, before its next transaction.
        """
        self.now_ms += ms
        due = [row for row in self.wheel if row.slot < self._open_slot]
        due.sort(key=lambda row: row.slot)
        ranges = range(0, len(due), self.chunk)
        for first in list(ranges)[:killed_after]:
            self._deliver(due[first : first + self.chunk])

    def _deliver(self, some: list[Queued]) -> None:
        found, self.queues = postponed(due_rows(some, self.now_ms, self.queues), [self.rate])
        back = returning(found)
        for index, row in enumerate(some):
            self.wheel.remove(row)
            if not back[index]:
                assert found.turn_ms[index] == ANY_TIME
                self.left.append((self.now_ms, row))
                continue
            row.slot = slot_of(int(found.not_before_ms[index]), PRECISION_MS)
            assert row.slot >= self._open_slot
            row.turn_ms, row.copies = int(found.turn_ms[index]), row.copies + 1
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
            assert next(turns) < 5_000
            first = min(row.slot for row in self.wheel)
            self.pass_by(max(PRECISION_MS, first * PRECISION_MS - self.now_ms))

    def require_rate(self, more: int = 0) -> None:
        """No time has more than the rate permits in it, two messages, and the slack."""
        per_ms, times = self.rate.per_second["mails"] / 1_000, [at for at, _ in self.left]
        at_ms = np.array(times)
        for first, at in enumerate(times):
            most = (at_ms[first:] - at + self.rate.slack_slots * PRECISION_MS) * per_ms + 2 + more
            assert (np.arange(1, len(most) + 1) <= most).all(), at

    def require_order(self) -> None:
        for key in {row.key for _, row in self.left}:
            places = [row.place for _, row in self.left if row.key == key]
            assert places == sorted(places)


def test_the_excess_leaves_later_in_one_copy_each_at_the_rate() -> None:
    world = World(Rate({"mails": 100.0}, 1), chunk=1_000)
    for number in range(500):
        world.write(number % 7)
    world.drain()
    assert [row.copies for _, row in world.left].count(1) == 500 - 1
    assert max(row.copies for _, row in world.left) == 1
    took_ms = world.left[-1][0] - world.left[0][0]
    assert 5_900 <= took_ms <= 6_200
    world.require_rate()
    world.require_order()


def test_below_the_rate_nothing_waits_once_the_queue_has_ended() -> None:
    world = World(Rate({"mails": 100.0}), chunk=1_000)
    for turn in range(60):
        for key in range(3):
            world.write(3 * turn + key)
        world.pass_by(1_500 if turn == 5 else 50)
    assert sum(row.copies for _, row in world.left) <= 18, "those before the pause"
    assert all(not row.copies for _, row in world.left[-150:])


@pytest.mark.parametrize("slots_late", [1, 4, 40, 4_000])
def test_a_stop_shifts_the_queue_and_keeps_its_order(slots_late: int) -> None:
    world = World(Rate({"mails": 20.0}), chunk=4)
    for number in range(200):
        world.write(number % 5)
    for _ in range(20):
        world.pass_by(50)
    for number in range(50):
        world.write(number % 5, delay_ms=number * 37)
    world.pass_by(slots_late * 50)
    world.drain()
    world.require_rate()
    world.require_order()
    assert max(row.copies for _, row in world.left) <= 2


def test_new_timers_do_not_overtake_copies_that_ingest_takes_late() -> None:
    world = World(Rate({"mails": 20.0}), chunk=1_000, ingest_is_slow=True)
    for number in range(30):
        world.write(number % 3)
    world.pass_by(50)
    for _ in range(40):
        world.pass_by(50)
    for number in range(30):
        world.write(number % 3)
    world.pass_by(50)
    world.drain()
    world.require_rate()
    world.require_order()


steps = st.lists(
    st.tuples(
        st.integers(0, 12),  # timers that are written
        st.integers(0, 3),  # their slots ahead
        st.sampled_from([10, 50, 50, 50, 120, 400, 3_000]),  # ms that pass
        st.sampled_from([0, 1, 10**9, 10**9, 10**9]),  # transactions before a kill
        st.booleans(),  # whether ingest takes the copies then
    ),
    max_size=16,
)


@settings(max_examples=25, deadline=None)
@given(steps, st.sampled_from([0.5, 7.0, 20.0, 60.0, 1_000.0]), st.integers(1, 6))
def test_rate_and_order_hold_over_stops_and_kills(
    story: list[tuple[int, int, int, int, bool]], per_second: float, chunk: int
) -> None:
    world = World(Rate({"mails": per_second}), chunk)
    for count, ahead, ms, killed_after, _ in story:
        for number in range(count):
            world.write(number % 3, delay_ms=ahead * PRECISION_MS)
        world.pass_by(ms, killed_after=killed_after)
    world.drain()
    world.require_rate()
    world.require_order()


@settings(max_examples=15, deadline=None)
@given(steps, st.integers(1, 6), st.integers(0, 15))
def test_a_forgotten_queue_costs_order_and_not_the_rate(
    story: list[tuple[int, int, int, int, bool]], chunk: int, forgotten: int
) -> None:
    world = World(Rate({"mails": 20.0}), chunk)
    for number, (count, ahead, ms, killed_after, takes) in enumerate(story):
        world.ingest_is_slow = not takes
        for key in range(count):
            world.write(key % 3, delay_ms=ahead * PRECISION_MS)
        if number == forgotten:
            world.queues = {}
        world.pass_by(ms, killed_after=killed_after)
        if takes:
            world.take()
    world.drain()
    world.require_rate(more=1)
