"""Targets that take no writes for a while, on a real broker: the others continue by themselves.

Timers are written to their topic by a producer, and read from it as ingest reads them, but without
Spark: what is parked comes in again that way. Delivery goes through a proxy (fault_proxy.py) that
answers for the broker of one partition: no single broker can be brought to refuse it.
"""

from __future__ import annotations

import itertools
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient
from tests.harness.fault_judge import FaultTopics
from tests.harness.fault_proxy import ALWAYS, Action, Fault, FaultProxy
from tests.harness.kafka_shard import CLOCK
from tests.harness.launcher import wait_until
from tests.harness.proxied_shard import (
    QUICKLY,
    WHEEL,
    ProxiedShard,
)
from tests.harness.shared_broker import SharedBroker
from tests.harness.topics import alter

from duewheel.checkpoints.config_epochs import Epochs
from duewheel.checkpoints.process_role import Role
from duewheel.checkpoints.progress import PartitionProgress, Progress
from duewheel.kafka.publish.held_queue import BATCHES_AT_ONCE, hold_closed
from duewheel.schemas.batches import Deliveries
from duewheel.schemas.wire.single_record import single
from duewheel.wheel.dequeue_config import DequeueConfig
from duewheel.wheel.encoded import Part
from duewheel.wheel.publisher_protocol import Prepared, PublishAttempt
from duewheel.wheel.slots import WheelConfig

pytestmark = pytest.mark.kafka


def numbered(timers: Sequence[tuple[str, int]], topic: str, partition: int) -> list[int]:
    """The numbers of those that go there, in the order of the timer partition."""
    return [number for number, place in enumerate(timers) if place == (topic, partition)]


@pytest.fixture
def shard(tmp_path: Path, broker: SharedBroker, proxy: FaultProxy) -> Iterator[ProxiedShard]:
    limits = replace(QUICKLY, backoff_s=(1.0, 30.0))
    topics = FaultTopics.named(f"parking-{uuid.uuid4().hex[:8]}")
    topics.create(broker.bootstrap_servers)
    shard = ProxiedShard(tmp_path, broker, proxy.bootstrap_servers, topics, limits=limits)
    yield shard
    shard.stop()


def test_without_a_dead_letter_topic_dead_letters_wait_and_hold_up_nobody(
    shard: ProxiedShard, broker: SharedBroker
) -> None:
    """It is deleted while the shard runs: of all kinds of dead letters each arrives, once, when it
    is there again, and says what it would have said; also over a start of dequeue meanwhile.
    """
    orders, dead = shard.topics.orders, shard.topics.dead_letters
    shard.start()
    shard.write([("no.such.topic", 0)])
    shard.turn_until(lambda: len(shard.statistics.dead_letters) == 1, "not known yet")
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    admin.delete_topics([dead])
    wait_until(lambda: dead not in admin.list_topics(), "not deleted")
    timers = [(orders, n % 3) for n in range(20)]
    bad = [("no.such.topic", 0), (orders, 99), ("no such name!", 0), (shard.topics.timers, 0)]
    shard.write([*timers, *bad])
    shard.turn_until(lambda: shard.statistics.letters_kept >= 2 * len(bad), "they do not wait")
    assert shard.statistics.delivered == len(timers)
    assert shard.statistics.doubts <= 2, "one transaction may find out"
    assert shard.statistics.dead_letters == {"unknown_target_topic": 1}
    waits = [shard.publisher.letters_wait]
    shard.publisher.start()
    admin.create_topics({dead: {"num_partitions": 3}}, wait_for_metadata=True)
    admin.close()
    shard.turn_until(
        lambda: shard.statistics.dead_letters.get("waited", 0) >= len(bad), "they never come"
    )
    assert sum(shard.statistics.dead_letters.values()) == len(bad) + 1
    waits.append(shard.publisher.letters_wait)
    assert waits == [True, False]
    letters = [r for some in shard.arrived(dead).values() for r in some]
    assert sorted(int(r.value) for r in letters) == list(range(20, 24)), "exactly once"
    codes = {int(r.value): dict(r.headers)["TIMER_ERROR_CODE"] for r in letters}
    assert [codes[n] for n in range(20, 24)] == [
        b"unknown_target_topic",
        b"bad_target_partition",
        b"bad_target_topic",
        b"forbidden_target",
    ]
    for letter in letters:
        said = [name for name, _ in letter.headers]
        assert not {"TIMER_ORIGIN", "TIMER_RETRIES", "TIMER_DEAD_LETTER"} & set(said)
        assert said.count("TIMER_ERROR_CODE") == 1
        source = dict(letter.headers)["TIMER_SOURCE"]
        assert source.startswith(f"{shard.topics.timers}-0@".encode())


def test_a_dead_letter_partition_without_leader_is_passed_over(
    shard: ProxiedShard, proxy: FaultProxy
) -> None:
    dead = shard.topics.dead_letters
    shard.start()
    placed = replace(FAULTS["too few in sync"], topic=dead, partition=1, times=ALWAYS)
    placed = proxy.inject(placed)
    bad = [("no.such.topic", 0)] * 30
    shard.write([*bad, (shard.topics.orders, 0)], keys=30)
    shard.turn_until(lambda: shard.statistics.delivered >= 1, "held up")
    shard.turn_until(
        lambda: sum(shard.statistics.dead_letters.values()) >= len(bad), "they never come"
    )
    letters = shard.values(dead)
    assert 1 not in letters, f"the proxy has refused {placed.hits} requests: {letters}"
    assert sorted(itertools.chain(*letters.values())) == list(range(30)), "exactly once"


@pytest.mark.slow
@pytest.mark.parametrize("action", [Action.REFUSE, Action.MISREPORT])
def test_records_called_too_large_become_dead_letters(
    shard: ProxiedShard, proxy: FaultProxy, action: Action
) -> None:
    """After each refusal their timer topic rests, then they come again in smaller batches."""
    orders, dead = shard.topics.orders, shard.topics.dead_letters
    shard.start()
    placed = proxy.inject(Fault("Produce", action, 10, topic=orders, times=2))
    shard.write([(orders, number % 4) for number in range(8)])

    def left() -> int:
        return 8 - shard.statistics.delivered - sum(shard.statistics.dead_letters.values())

    shard.turn_until(lambda: not left() and placed.hits == 2, "they never come")
    assert shard.statistics.doubts == 2
    assert set(shard.statistics.dead_letters) <= {"record_too_large"}
    arrived = [*shard.values(orders).values(), *shard.values(dead).values()]
    assert sorted(itertools.chain(*arrived)) == list(range(8)), "exactly once"


def require_parked_once(shard: ProxiedShard, record: Any, due_ms: int) -> None:
    """A delivery that tells nothing of its way, and what it asked for."""
    headers = [name for name, _ in record.headers]
    assert headers == ["own", "TIMER_SOURCE", "TIMER_DUE_MS", "UNIQ_KEY"]
    said = dict(record.headers)
    assert said["TIMER_DUE_MS"] == b"%d" % due_ms
    assert said["TIMER_SOURCE"].startswith(f"{shard.topics.timers}-0@".encode())
    assert record.timestamp >= due_ms


FAULTS: Mapping[str, Fault] = {
    "no leader": Fault("Metadata", Action.LEADERLESS),
    "too few in sync": Fault("Produce", Action.REFUSE, 19),
    "too few in sync after all": Fault("Produce", Action.MISREPORT, 20),
    "another leader, for ever": Fault("Produce", Action.REFUSE, 6),
    "leader unknown": Fault("Produce", Action.REFUSE, 5),
    "timestamps refused": Fault("Produce", Action.REFUSE, 32),
    "no right, and metadata says otherwise": Fault("Produce", Action.REFUSE, 29),
    "an error that nobody expects": Fault("Produce", Action.REFUSE, -1),
}
QUICK = ("no leader", "too few in sync", "timestamps refused")


@pytest.mark.slow
@pytest.mark.parametrize(
    "what",
    [
        what if what in QUICK else pytest.param(what, marks=pytest.mark.crash_matrix)
        for what in FAULTS
    ],
)
def test_a_partition_without_writes_holds_up_nobody_else(
    shard: ProxiedShard, proxy: FaultProxy, what: str
) -> None:
    """Neighbours of the same slot, also in other partitions of the same topic, go on in order; what
    is parked comes, once, when the partition takes writes again.
    """
    orders, bills = shard.topics.orders, shard.topics.bills
    shard.start()
    fault = FAULTS[what]
    for name, value in (("topic", orders), ("partition", 1), ("times", ALWAYS)):
        setattr(fault, name, value)
    placed = proxy.inject(fault)
    timers = [(topic, number % 3) for number in range(40) for topic in (orders, bills)]
    due_ms = shard.write(timers)
    free = {(topic, number) for topic, number in timers} - {(orders, 1)}

    parked = numbered(timers, orders, 1)
    others = len(timers) - len(parked)
    shard.turn_until(
        lambda: shard.dequeue.statistics.delivered >= others, "the neighbours are held up"
    )
    for topic, number in free:
        assert shard.values(topic)[number] == numbered(timers, topic, number), "in order"
    assert 1 not in shard.values(orders)
    assert shard.dequeue.statistics.delivered == others
    known_before = placed.action is Action.LEADERLESS
    assert (shard.dequeue.statistics.doubts == 0) == known_before, "metadata costs no transaction"
    shard.turn_until(
        lambda: shard.dequeue.statistics.parked.get(orders, 0) > len(parked), "parked once only"
    )
    proxy.clear()
    shard.turn_until(lambda: shard.dequeue.statistics.delivered >= len(timers), "never come")
    records = shard.arrived(orders)[1]
    assert Counter(int(r.value) for r in records) == Counter(parked), "exactly once"
    for record in records:
        require_parked_once(shard, record, due_ms)
    assert shard.values(shard.topics.dead_letters) == {}
    assert shard.dequeue.statistics.delivered == len(timers)


ROLLING = WheelConfig(precision_ms=50, slots=10_000, window_ms=3_000, margin_ms=100_000)


@pytest.fixture
def rolling_shard(
    tmp_path: Path, broker: SharedBroker, proxy: FaultProxy
) -> Iterator[ProxiedShard]:
    """One whose timers roll when they are due in more than three seconds."""
    topics = FaultTopics.named(f"rolling-{uuid.uuid4().hex[:8]}")
    topics.create(broker.bootstrap_servers)
    shard = ProxiedShard(tmp_path, broker, proxy.bootstrap_servers, topics, wheel=ROLLING)
    yield shard
    shard.stop()


def test_rolls_of_a_timer_partition_without_leader_wait_and_hold_up_nobody(
    rolling_shard: ProxiedShard, proxy: FaultProxy
) -> None:
    """Others leave meanwhile, also of that partition; dequeue is killed; then all come, once."""
    shard, orders = rolling_shard, rolling_shard.topics.orders
    home = shard.topics.timers, 0
    shard.start()
    proxy.inject(Fault("Metadata", Action.LEADERLESS, topic=home[0], partition=0, times=ALWAYS))
    due_ms = shard.write([(orders, 0)] * 20, after_ms=8_000)
    soon = [shard.write([(orders, 1 + number)] * 20, home=number) for number in range(2)]
    shard.turn_until(lambda: shard.statistics.delivered == 40, "held up by rolls that wait")
    shard.turn_until(lambda: shard.copies_held == 20, "no copies are held")
    assert shard.statistics.doubts == 0, "metadata costs no transaction"
    mirror = shard.local.directory(Role.DEQUEUE).state.mirror()
    assert mirror is not None
    assert mirror.progress.held[home].copies == 20
    assert len(shard.arrived(home[0])[0]) == 40, "nothing is written to the partition"

    shard.restart_dequeue()
    later = shard.write([(orders, 3)] * 20, home=1)
    shard.turn_until(lambda: shard.statistics.delivered == 20, "held up after a start")
    assert shard.copies_held == 20
    assert CLOCK.now_ms() < due_ms
    proxy.clear()
    shard.turn_until(lambda: shard.statistics.delivered == 40, "what was held never comes")
    assert shard.copies_held == 0
    arrived = shard.arrived(orders)
    assert {number: len(some) for number, some in arrived.items()} == dict.fromkeys(range(4), 20)
    for number, first_ms in enumerate([due_ms, *soon, later]):
        assert all(record.timestamp >= first_ms for record in arrived[number])
    assert sorted(int(r.value) for r in arrived[0]) == list(range(20)), "exactly once"


@pytest.mark.slow
def test_rolls_of_a_topic_made_anew_wait_until_that_is_accepted(
    rolling_shard: ProxiedShard,
) -> None:
    """Their copies name offsets of the old topic: the new one has, or gets, others there."""
    shard, orders = rolling_shard, rolling_shard.topics.orders
    shard.start()
    due_ms = shard.write([(orders, 0)] * 20, after_ms=10_000)
    shard.turn_until(lambda: shard.has_read(20), "nothing is appended")
    shard.make_timers_anew()
    shard.turn_until(lambda: shard.copies_held == 20, "no copies are held")
    assert not shard.arrived(shard.topics.timers), "copies went to another topic"
    shard.write([(orders, 1)] * 30)
    shard.accept_loss()
    shard.turn_until(lambda: shard.statistics.delivered == 50, "what was held never comes")
    arrived = shard.arrived(orders)
    assert sorted(int(r.value) for r in arrived[0]) == list(range(20)), "exactly once"
    assert all(record.timestamp >= due_ms for record in arrived[0])
    ids = {dict(record.headers)["UNIQ_KEY"] for record in arrived[0]}
    assert ids == {b"%s-0@%d" % (shard.topics.timers.encode(), n) for n in range(20)}
    assert len(arrived[1]) == 30
    assert not shard.arrived(shard.topics.dead_letters)


def test_a_target_and_its_timer_partition_without_leader_hold_up_nobody(
    shard: ProxiedShard, proxy: FaultProxy
) -> None:
    orders, bills = shard.topics.orders, shard.topics.bills
    shard.start()
    for topic, number in ((orders, 1), (shard.topics.timers, 0)):
        fault = Fault("Produce", Action.REFUSE, 6, topic=topic, partition=number, times=ALWAYS)
        proxy.inject(fault)
    timers = [(topic, 1) for _ in range(20) for topic in (orders, bills)]
    shard.write(timers)
    shard.turn_until(lambda: shard.statistics.delivered == 20, "bills are held up")
    shard.turn_until(lambda: shard.copies_held == 20, "no copies are held")
    proxy.clear()
    shard.turn_until(lambda: shard.statistics.delivered == 40, "what was held never comes")
    assert shard.values(orders) == {1: numbered(timers, orders, 1)}
    assert shard.values(bills) == {1: numbered(timers, bills, 1)}


@pytest.mark.slow
def test_a_held_batch_that_its_partition_refuses_holds_up_nobody(
    rolling_shard: ProxiedShard, proxy: FaultProxy, broker: SharedBroker
) -> None:
    """The topic takes smaller records only when it is back. A held batch cannot be divided."""
    shard, orders = rolling_shard, rolling_shard.topics.orders
    home = shard.topics.timers, 0
    shard.start()
    proxy.inject(Fault("Metadata", Action.LEADERLESS, topic=home[0], partition=0, times=ALWAYS))
    shard.write([(orders, 0)] * 3, after_ms=8_000, padding=30_000)
    shard.turn_until(lambda: shard.copies_held == 3, "no copies are held")
    limit_records(broker, home[0], 20_000)
    proxy.clear()
    shard.turn_until(lambda: shard.statistics.doubts > 0, "nothing is refused")
    shard.write([(orders, 1)] * 10, home=1)
    shard.turn_until(lambda: shard.statistics.delivered == 10, "held up by a refused batch")
    assert shard.copies_held == 3
    limit_records(broker, home[0], 1_048_588)
    shard.turn_until(lambda: shard.statistics.delivered == 13, "what was held never comes")
    assert shard.copies_held == 0
    assert len(shard.arrived(orders)[0]) == 3


def limit_records(broker: SharedBroker, topic: str, size: int) -> None:
    alter(broker.bootstrap_servers, topic, {"max.message.bytes": str(size)})


@pytest.mark.crash_matrix
def test_thousands_of_held_batches_are_moved_by_many_transactions(
    shard: ProxiedShard, broker: SharedBroker
) -> None:
    """All in one would run out of time, again and again, and hold up the shard."""
    count, place = 3_000, (shard.topics.timers, 0)
    copies = [Part(*place, single(b"%d" % n, bytes(250)), None) for n in range(count)]
    written = hold_closed(copies, {place}, {}, {}, lambda: 0)
    assert len(written.records) == 2, "they are written soon"
    epochs = Epochs.first(DequeueConfig(0, 1, {}).slot_values(WHEEL))
    parts = {place: PartitionProgress(5, 0)}
    progress = Progress(0, 1, "a", 1, 1, epochs, parts, held=written.held)
    shard.publisher.start()
    shard.publisher.publish(PublishAttempt(progress, records=written.records))
    left = [count]
    while progress.held:
        attempt = shard.publisher.compose(Prepared(Deliveries.none()), progress)
        shard.publisher.publish(attempt)
        progress = attempt.progress
        left.append(sum(of.copies for of in progress.held.values()))
    assert len(left) == 1 + -(-count // BATCHES_AT_ONCE)
    assert [int(r.key) for r in shard.arrived(shard.topics.timers)[0]] == list(range(count))
