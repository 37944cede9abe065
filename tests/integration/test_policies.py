"""Policies of delivery on a real broker: timers in excess of a slot return through their timer
topic or become dead letters, and so do timers that are too late.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.harness.fault_judge import FaultTopics
from tests.harness.proxied_shard import WHEEL, ProxiedShard
from tests.harness.shared_broker import SharedBroker

from duewheel.wheel.policies.expiry import Expiry
from duewheel.wheel.policies.hot_slots import HotSlots
from duewheel.wheel.policies.policy import Policy
from duewheel.wheel.policies.rate import Rate

pytestmark = pytest.mark.kafka

COUNT, KEYS, LIMIT, WINDOW_MS = 90, 9, 20, 600
MakeShard = Callable[[Callable[[FaultTopics], Policy]], ProxiedShard]


@pytest.fixture
def make_shard(tmp_path: Path, broker: SharedBroker) -> Iterator[MakeShard]:
    made: list[ProxiedShard] = []

    def make(policy: Callable[[FaultTopics], Policy]) -> ProxiedShard:
        topics = FaultTopics.named(f"policies-{uuid.uuid4().hex[:8]}")
        topics.create(broker.bootstrap_servers)
        policies = [policy(topics)]
        made.append(ProxiedShard(tmp_path, broker, broker.bootstrap_servers, topics, policies))
        made[0].start()
        return made[0]

    yield make
    for shard in made:
        shard.stop()


def left(shard: ProxiedShard) -> int:
    """Timers that were delivered, have become dead letters, or were dropped."""
    known = shard.dequeue.statistics
    return known.delivered + sum(known.dead_letters.values()) + known.dropped


def write(shard: ProxiedShard) -> int:
    """Each key goes to a partition of its own of three; when they are due."""
    return shard.write([(shard.topics.orders, n % KEYS % 3) for n in range(COUNT)], keys=KEYS)


def require_order_of_keys(records: dict[int, list[Any]]) -> None:
    for some in records.values():
        for key in {record.key for record in some}:
            numbers = [int(record.value) for record in some if record.key == key]
            assert numbers == sorted(numbers)


def test_what_is_in_excess_comes_later_once_and_in_the_order_of_its_key(
    make_shard: MakeShard,
) -> None:
    shard = make_shard(lambda _: HotSlots("spread", LIMIT, WINDOW_MS))
    due_ms = write(shard)
    shard.turn_until(lambda: left(shard) >= COUNT, "some never come")
    found = shard.arrived(shard.topics.orders)
    records = [record for some in found.values() for record in some]
    assert Counter(int(r.value) for r in records) == Counter(range(COUNT)), "exactly once"
    require_order_of_keys(found)
    at_once = [int(r.value) for r in records if r.timestamp < due_ms + WHEEL.precision_ms]
    assert all(number < 2 * LIMIT for number in at_once), "beyond twice the limit none leaves"
    written = shard.arrived(shard.topics.timers)[0]
    copies = [int(r.value) for r in written if "TIMER_ORIGIN" in dict(r.headers)]
    assert set(range(2 * LIMIT, COUNT)) <= set(copies) <= set(range(LIMIT + 1, COUNT))
    for record in records:
        assert record.timestamp >= due_ms
        assert dict(record.headers)["TIMER_DUE_MS"] == b"%d" % due_ms
    counted = shard.dequeue.statistics
    assert counted.parked == {}
    assert counted.postponed["hot_slot"] == len(copies) == len(set(copies)), "each once"


def test_overdue_timers_expire_and_those_within_their_lateness_are_delivered(
    make_shard: MakeShard,
) -> None:
    shard = make_shard(lambda topics: Expiry({topics.timers: 60_000}))
    orders = [(shard.topics.orders, 0)] * 5
    shard.write(orders, after_ms=-120_000)
    shard.write(orders, after_ms=-30_000)
    shard.write(orders)
    shard.write(orders, after_ms=-20_000, more=[("TIMER_EXPIRES_MS", b"2027-01-01T00:00Z")])
    shard.write(orders, after_ms=-10_000, more=[("TIMER_EXPIRES_MS", b"1700000000000")])
    shard.turn_until(lambda: left(shard) >= 5 * len(orders), "some never come")
    assert shard.values(shard.topics.orders) == {0: [*range(5)] * 3}
    letters = [r for some in shard.arrived(shard.topics.dead_letters).values() for r in some]
    codes = Counter(dict(letter.headers)["TIMER_ERROR_CODE"] for letter in letters)
    assert codes == {b"expired": 10}
    assert shard.dequeue.statistics.dead_letters == {"expired": 10}


def test_expired_timers_are_dropped_and_counted_where_their_topic_says_so(
    make_shard: MakeShard,
) -> None:
    shard = make_shard(lambda own: Expiry({own.timers: 60_000}, frozenset({own.timers})))
    orders = [(shard.topics.orders, 0)] * 5
    for after_ms in (-120_000, 0, -120_000):
        shard.write(orders, after_ms=after_ms)
    shard.turn_until(lambda: left(shard) >= 3 * len(orders), "some never come")
    assert shard.values(shard.topics.orders) == {0: [*range(5)]}
    assert not any(shard.arrived(shard.topics.dead_letters).values())
    assert (shard.dequeue.statistics.dropped, shard.dequeue.statistics.dead_letters) == (10, {})


def test_what_exceeds_a_rate_waits_over_restarts_in_the_order_of_its_key(
    make_shard: MakeShard,
) -> None:
    shard = make_shard(lambda topics: Rate({topics.orders: 20.0}))
    write(shard)
    shard.turn_until(lambda: left(shard) >= COUNT // 4, "some never come")
    shard.restart_dequeue()
    shard.turn_until(lambda: left(shard) >= COUNT // 4, "some never come")
    shard.restart_dequeue()

    def arrived() -> int:
        return sum(map(len, shard.arrived(shard.topics.orders).values()))

    shard.turn_until(lambda: arrived() >= COUNT, "some never come")
    found = shard.arrived(shard.topics.orders)
    numbers = [int(record.value) for some in found.values() for record in some]
    assert Counter(numbers) == Counter(range(COUNT)), "exactly once"
    require_order_of_keys(found)


@pytest.mark.crash_matrix
def test_what_is_in_excess_becomes_a_dead_letter_that_can_be_replayed(
    make_shard: MakeShard,
) -> None:
    shard = make_shard(lambda _: HotSlots("dead-letter", LIMIT))
    write(shard)
    shard.turn_until(lambda: left(shard) >= COUNT, "some never come")
    delivered = shard.arrived(shard.topics.orders)
    require_order_of_keys(delivered)
    letters = [r for some in shard.arrived(shard.topics.dead_letters).values() for r in some]
    numbers = [int(r.value) for some in (*delivered.values(), letters) for r in some]
    assert Counter(numbers) == Counter(range(COUNT))
    assert COUNT - 2 * LIMIT <= len(letters) <= COUNT - LIMIT - 1
    for letter in letters:
        said = dict(letter.headers)
        assert said["TIMER_ERROR_CODE"] == b"hot_slot"
        assert said["REAL_TOPIC"] == shard.topics.orders.encode()
    assert shard.dequeue.statistics.dead_letters == {"hot_slot": len(letters)}
