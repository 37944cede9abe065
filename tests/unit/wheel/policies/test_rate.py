"""Rates: how much leaves within any time, in which order, and how often a copy is written, also
over stops, kills, and copies that ingest takes late.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.harness.deliveries import keyed, rows

from duewheel.checkpoints.rate_queues import Queues, RateQueue, queues_from, queues_json
from duewheel.schemas.batches import ANY_TIME
from duewheel.wheel.policies.policy import DueRows, postponed, returning
from duewheel.wheel.policies.rate import Rate
from duewheel.wheel.slots import closable_slot, slot_of

PRECISION_MS = 50
LEAD_MS = Rate({}).lead_ms
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
    until_ms: int = 0


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
        so many of these the process is killed, before its next transaction: then it has the queues
        of its progress.
        """
        self.now_ms += ms
        due = [row for row in self.wheel if row.slot < self._open_slot]
        due.sort(key=lambda row: row.slot)
        ranges = range(0, len(due), self.chunk)
        for first in list(ranges)[:killed_after]:
            self._deliver(due[first : first + self.chunk])
        if killed_after < len(ranges):
            self.queues = queues_from(json.loads(json.dumps(queues_json(self.queues))))

    def _deliver(self, some: list[Queued]) -> None:
        found, self.queues = postponed(due_rows(some, self.now_ms, self.queues), [self.rate])
        back = returning(found)
        for index, row in enumerate(some):
            self.wheel.remove(row)
            if not back[index]:
                assert found.turn_ms[index] == ANY_TIME
                self.left.append((self.now_ms, row))
                continue
            row.until_ms = int(found.not_before_ms[index])
            assert row.until_ms >= self.now_ms + LEAD_MS, "ingest has the time to take it"
            row.slot = slot_of(row.until_ms, PRECISION_MS)
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

    def require_rate(self, late_ms: int = 0) -> None:
        """No time has more in it than the rate permits."""
        per_ms, times = self.rate.per_second["mails"] / 1_000, [at for at, _ in self.left]
        at_ms = np.array(times)
        for first, at in enumerate(times):
            most = (at_ms[first:] - at + LEAD_MS + PRECISION_MS + late_ms) * per_ms + 1
            assert (np.arange(1, len(most) + 1) <= most).all(), at

    def require_order(self) -> None:
        for key in {row.key for _, row in self.left}:
            places = [row.place for _, row in self.left if row.key == key]
            assert places == sorted(places)

    def copies(self) -> list[int]:
        return [row.copies for _, row in self.left]


def test_the_excess_leaves_later_in_one_copy_each_at_the_rate() -> None:
    world = World(Rate({"mails": 100.0}), chunk=1_000)
    for number in range(500):
        world.write(number)
    world.drain()
    assert world.copies() == [0] * 100 + [1] * 400, "a second's timers leave at once"
    took_ms = world.left[-1][0] - world.left[0][0]
    assert 4_950 <= took_ms <= 5_050
    world.require_rate()


def test_below_the_rate_nothing_waits_however_lately_a_queue_was_there() -> None:
    world, keys = World(Rate({"mails": 100.0}), chunk=1_000), itertools.count()
    for _ in range(300):
        world.write(next(keys))
    for turn in range(400):
        for _ in range(2 + turn % 2):  # 50 per second
            world.write(next(keys))
        world.pass_by(PRECISION_MS)
    late = [row for _, row in world.left if row.place[1] >= 300 + 5 * 50]
    assert len(late) >= 700 and not any(row.copies for row in late), "after 200 / (100 - 50) s"
    world.require_rate()


def test_a_key_that_waits_is_followed_by_its_later_timers_only() -> None:
    world = World(Rate({"mails": 20.0}), chunk=1_000)
    for number in range(30):
        world.write(number)
    world.pass_by(PRECISION_MS)
    world.pass_by(560)  # charged is ahead by less than a second, and the last ones wait
    for number in (29, 77):
        world.write(number)
    world.drain()
    assert [row.copies for _, row in world.left if row.place[1] >= 30] == [0, 1]
    world.require_order()


def test_a_start_does_not_know_which_keys_wait() -> None:
    rate, row = Rate({"mails": 20.0}), Queued((SLOT, 0), 5, SLOT)
    for left_ms, waits in ((START_MS - 1, True), (START_MS, False)):
        queue = RateQueue(START_MS * 1_000, tail_ms=START_MS, left_ms=left_ms)
        found, _ = postponed(due_rows([row], START_MS, {"mails": queue}), [rate])
        assert returning(found)[0] == waits, "until the last turn has left"


@pytest.mark.parametrize("slots_late", [1, 4, 40, 4_000])
def test_a_stop_shifts_the_queue_and_keeps_its_order(slots_late: int) -> None:
    world = World(Rate({"mails": 20.0}), chunk=4)
    for number in range(200):
        world.write(number % 5)
    for _ in range(20):
        world.pass_by(PRECISION_MS)
    for number in range(50):
        world.write(number % 5, delay_ms=number * 37)
    world.pass_by(slots_late * PRECISION_MS)
    world.drain()
    world.require_rate(0 if slots_late < 40 else 3 * LEAD_MS)
    world.require_order()
    assert max(world.copies()) <= 2
    took_ms = world.left[-1][0] - world.left[0][0]
    assert took_ms <= 12_500 + slots_late * PRECISION_MS + 2 * LEAD_MS, "by the stop alone"


def test_what_stands_still_is_moved_once_over_several_kills() -> None:
    world = World(Rate({"mails": 20.0}), chunk=2)
    for number in range(60):
        world.write(number)
    world.pass_by(PRECISION_MS)
    for _ in range(10):
        world.pass_by(5_000, killed_after=3)
    world.drain()
    world.require_rate(3 * LEAD_MS)
    assert world.left[-1][0] - START_MS <= 10 * 5_000 + 3_000 + 3 * LEAD_MS


def test_a_queue_does_not_starve_beside_a_backlog() -> None:
    world = World(Rate({"mails": 20.0}), chunk=1_000)
    for number in range(100):
        world.write(number)
    for _ in range(8):
        world.pass_by(10_000)
    assert len(world.left) == 100, "a lead's timers leave with each range, however late it is"
    world.require_rate(3 * LEAD_MS)


def test_order_and_rate_hold_when_ingest_is_late() -> None:
    world = World(Rate({"mails": 20.0}), chunk=1_000, ingest_is_slow=True)
    for number in range(200):
        world.write(number % 9)
    for turn in range(400):
        world.write(turn % 9, delay_ms=5_000) if turn % 20 == 0 else None
        world.pass_by(PRECISION_MS)
    world.drain()
    world.require_rate(3 * LEAD_MS)
    world.require_order()
    assert world.left[-1][0] - START_MS <= 20_000 + 22_000 + 20_000, "after as long again"


def test_a_copy_that_others_have_overtaken_is_charged_again() -> None:
    rate, row = Rate({"mails": 20.0}), Queued((0, 0), 5, SLOT, turn_ms=START_MS - 3_000)
    for left_ms in (-2_000, -4_000):
        queue = RateQueue(START_MS * 1_000, START_MS, left_ms=START_MS + left_ms)
        _, queues = postponed(due_rows([row], START_MS, {"mails": queue}), [rate])
        assert (queues["mails"].charged_us == (START_MS + 50) * 1_000) == (left_ms > -3_000)


def test_other_targets_and_cancelled_timers_are_not_charged() -> None:
    rate, some = Rate({"mails": 1.0}), [Queued((SLOT, n), n, SLOT) for n in range(3)]
    found, queues = postponed(due_rows(some, START_MS, {}, "others"), [rate])
    assert not returning(found).any() and not queues
    rows_due = replace(due_rows(some, START_MS, {}), pending=np.array([False, False, True]))
    found, queues = postponed(rows_due, [rate])
    assert not returning(found).any()
    assert queues["mails"].charged_us == (START_MS + LEAD_MS) * 1_000


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
per_second = st.sampled_from([0.5, 7.0, 20.0, 60.0, 1_000.0])


@settings(max_examples=40, deadline=None)
@given(steps, per_second, st.integers(1, 6))
def test_rate_and_order_hold_over_stops_and_kills(
    story: list[tuple[int, int, int, int, bool]], per_second: float, chunk: int
) -> None:
    world = World(Rate({"mails": per_second}), chunk)
    for count, ahead, ms, killed_after, _ in story:
        for number in range(count):
            world.write(number % 3, delay_ms=ahead * PRECISION_MS)
        world.pass_by(ms, killed_after=killed_after)
    world.drain()
    world.require_rate(3 * LEAD_MS)
    world.require_order()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 20), max_size=60), per_second)
def test_without_faults_the_bound_is_a_second(counts: list[int], per_second: float) -> None:
    world, keys = World(Rate({"mails": per_second}), chunk=7), itertools.count()
    for count in counts:
        for _ in range(count):
            world.write(next(keys))
        world.pass_by(PRECISION_MS)
    while world.wheel:
        world.pass_by(PRECISION_MS if per_second > 1 else 500)
    world.require_rate(0 if per_second > 1 else 500)
    assert max(world.copies(), default=0) <= 1


@settings(max_examples=25, deadline=None)
@given(steps, st.integers(1, 6))
def test_the_rate_holds_when_ingest_is_late(
    story: list[tuple[int, int, int, int, bool]], chunk: int
) -> None:
    world = World(Rate({"mails": 20.0}), chunk)
    for count, ahead, ms, killed_after, takes in story:
        world.ingest_is_slow = not takes
        for key in range(count):
            world.write(key % 3, delay_ms=ahead * PRECISION_MS)
        world.pass_by(ms, killed_after=killed_after)
        if takes:
            world.take()
    world.drain()
    world.require_rate(4 * LEAD_MS)


def one_by_one(
    some: list[Queued], now_ms: int, queue: RateQueue, gap_us: float
) -> list[tuple[int, int]]:
    """The rule as it reads, a row at a time: until when each waits, and its turn."""
    p, was, shift = PRECISION_MS, queue.shift_ms, queue.shift_ms
    charged, tails = max(queue.charged_us, now_ms * 1_000), dict[int, int]()

    def late_by(row: Queued) -> int:
        return (row.slot - 1) * p - row.turn_ms - was

    def is_lost(row: Queued) -> bool:
        return late_by(row) > LEAD_MS and (
            row.turn_ms <= queue.left_ms or late_by(row) > 30 * LEAD_MS
        )

    since_ms, lag_ms = max(some[0].slot * p, queue.seen_ms), 0
    late = [row for row in some if late_by(row) > LEAD_MS and not is_lost(row)]
    if late:
        since_ms = min(row.turn_ms + was for row in late)
        lag_ms = max(map(late_by, late))
    early = [row.turn_ms + was for row in some if slot_of(row.turn_ms + was, p) > row.slot]
    last_ms = min([*early, since_ms + LEAD_MS + 1]) - 1
    if now_ms - since_ms > LEAD_MS and queue.tail_ms + was > last_ms:
        shift += now_ms + 2 * LEAD_MS + lag_ms - last_ms
        charged = max(charged, (queue.tail_ms + shift + p) * 1_000)
    else:
        last_ms = 2**62
    found = []
    for row in some:
        turn = row.turn_ms + was
        if has_turn := not is_lost(row):
            waits = slot_of(turn, p) > row.slot or turn > last_ms
            turn += shift - was
        else:
            charged += int(gap_us)
            turn = -(-charged // 1_000)
            tail = tails.get(row.key, queue.tail_ms)
            waits = turn > now_ms + LEAD_MS or tail > queue.left_ms
            if waits:
                tails[row.key] = turn - shift
        until = max(turn, now_ms + LEAD_MS)
        found.append((until, turn - shift) if waits else (ANY_TIME, ANY_TIME))
        assert has_turn or not waits or turn - shift > queue.tail_ms
    return found


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(-60, 0), st.integers(0, 4), st.sampled_from([None, -90, -9, 0, 50])),
        min_size=1,
        max_size=30,
    ),
    st.tuples(
        *(st.integers(0, 4_000), st.integers(-4_000, 4_000), st.integers(0, 3_000)),
        *(st.integers(-4_000, 0), st.integers(-4_000, 4_000)),
    ),
    st.integers(1, 500),
)
def test_all_rows_at_once_wait_as_one_by_one(
    some: list[tuple[int, int, int | None]], at: tuple[int, int, int, int, int], gap_ms: int
) -> None:
    timers = [
        Queued((0, n), key, SLOT + ago, ANY_TIME if t is None else START_MS + t * PRECISION_MS)
        for n, (ago, key, t) in enumerate(sorted(some, key=lambda each: each[0]))
    ]
    more_ms, tail_ms, shift_ms, seen_ms, left_ms = at
    queue = RateQueue(
        charged_us=(START_MS + tail_ms + shift_ms + more_ms) * 1_000,  # never before the tail
        tail_ms=START_MS + tail_ms,
        shift_ms=shift_ms,
        seen_ms=START_MS + seen_ms,
        left_ms=START_MS + left_ms,
    )
    rate, due = Rate({"mails": 1_000 / gap_ms}), due_rows(timers, START_MS, {"mails": queue})
    answer, again = rate.later(due), rate.later(due)  # of an aborted transaction
    assert answer is not None and answer.turn_ms is not None and answer.queues is not None
    assert again is not None and again.queues == answer.queues
    assert (again.not_before_ms == answer.not_before_ms).all()
    found = list(zip(answer.not_before_ms.tolist(), answer.turn_ms.tolist(), strict=True))
    assert found == one_by_one(timers, START_MS, queue, gap_ms * 1_000)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=60), st.integers(1, 9))
def test_chunks_do_not_matter(keys: list[int], chunk: int) -> None:
    timers = [Queued((SLOT, n), key, SLOT) for n, key in enumerate(keys)]
    rate, queues, found = Rate({"mails": 20.0}), dict[str, RateQueue](), list[int]()
    for first in range(0, len(timers), chunk):
        some = due_rows(timers[first : first + chunk], START_MS, queues)
        deliveries, after = postponed(some, [rate])
        found, queues = found + deliveries.not_before_ms.tolist(), dict(after)
    whole, _ = postponed(due_rows(timers, START_MS, {}), [rate])
    assert found == whole.not_before_ms.tolist()
